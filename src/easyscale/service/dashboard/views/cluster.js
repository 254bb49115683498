// The cluster: what runs where, now and over time, who waits and why, what happened last. Made for a wall as well.

import { get } from "/static/api.js";
import { timeline, used } from "/static/charts/timeline.js";
import { fill, h, keyed, write } from "/static/dom.js";
import { percent, setTime, when } from "/static/format.js";
import { onComeback, onRecord } from "/static/live.js";
import { paced } from "/static/pace.js";
import { problemBox } from "/static/problem.js";
import { choices, empty, heading, jobLink, pill, setPill } from "/static/views/parts.js";
import { showTypes } from "/static/views/tiles.js";

const WINDOWS = [
  ["900", "15 min"],
  ["3600", "1 h"],
  ["21600", "6 h"],
  ["86400", "24 h"],
];
const EVENTS = 12;
const WAITING = 8;
const QUIET = new Set(["job-progressed", "job-proposed"]); // too many to read

export function mount(root, { info, go }) {
  const names = new Map(); // job id to name
  const nameOf = (job) => names.get(job) || job;
  let seen = { devices: [], types: [], queued: 0, running: 0, policy: info.policy };
  let window_ = "3600";
  let span = { since: 0, until: 1, spans: [] };

  const trouble = h("div", { role: "alert" });
  const figures = figureRow();
  const types = h("div", { class: "types" });
  const chart = timeline(
    () => ({ ...span, devices: seen.devices, nameOf }),
    (job) => go(jobLink(job)),
  );
  const waiting = h("ul", { class: "waiting" });
  const events = h("ol", { class: "events" });
  let recent = [];

  fill(
    root,
    heading("Cluster"),
    trouble,
    figures.node,
    h("section", { "aria-labelledby": "now-h" }, h("h2", { id: "now-h" }, "Devices now"), types),
    h(
      "section",
      { class: "card", "aria-labelledby": "time-h" },
      h(
        "div",
        { class: "head" },
        h("h2", { id: "time-h" }, "Timeline"),
        choices(
          "window",
          WINDOWS,
          window_,
          (word) => {
            window_ = word;
            lookBack.ask();
          },
          "How far back",
        ),
      ),
      h(
        "div",
        { class: "lanes scroll-y", tabindex: "0", role: "region", "aria-label": "Timeline of allocations" },
        chart.node,
      ),
    ),
    h(
      "div",
      { class: "halves" },
      h(
        "section",
        { class: "card", "aria-labelledby": "wait-h" },
        h(
          "div",
          { class: "head" },
          h("h2", { id: "wait-h" }, "Waiting, and why"),
          h("a", { href: "#/jobs?state=queued" }, "The whole queue"),
        ),
        waiting,
      ),
      h(
        "section",
        { class: "card", "aria-labelledby": "last-h" },
        h("h2", { id: "last-h" }, "What happened last"),
        events,
      ),
    ),
  );

  const guarded = (work) => async () => {
    try {
      await work();
      fill(trouble);
    } catch (error) {
      fill(trouble, problemBox(error));
    }
  };

  const look = paced(
    guarded(async () => {
      const [view, queue, running] = await Promise.all([
        get("/cluster"),
        get("/jobs", { state: ["queued", "paused"], order: "submitted", limit: WAITING }),
        get("/jobs", { state: ["starting", "running", "pausing", "stopping"], limit: 500 }),
      ]);
      seen = view;
      for (const row of [...queue.jobs, ...running.jobs]) names.set(row.id, row.name);
      figures.show(view);
      showTypes(types, view, nameOf);
      showWaiting(waiting, queue.jobs, info);
      showEvents(events, recent, nameOf);
      chart.redraw();
    }),
    { gap: 2000, every: 15_000 },
  );

  const lookBack = paced(
    guarded(async () => {
      const until = Date.now() / 1000;
      span = await get("/timeline", { since: until - Number(window_), until });
      figures.used(
        seen.devices.length ? used(span.spans, seen.devices, span.since, span.until) : null,
        WINDOWS.find(([w]) => w === window_)[1],
      );
      await learn([...span.spans, ...recent].map((x) => x.job).filter(Boolean), names);
      chart.redraw();
      showEvents(events, recent, nameOf);
    }),
    { gap: 2000, every: 10_000 },
  );

  const loadEvents = guarded(async () => {
    recent = (await get("/records", { limit: 100, newest: true })).records;
    showEvents(events, recent, nameOf);
  });

  const ends = [
    onRecord((record) => {
      recent = [...recent.slice(-100), record];
      if (!QUIET.has(record.kind)) {
        showEvents(events, recent, nameOf);
        look.ask();
        lookBack.ask();
      }
    }),
    onComeback(() => {
      look.ask();
      lookBack.ask();
      loadEvents();
    }),
  ];
  look.ask();
  setTimeout(lookBack.ask, 150); // the devices first: they are the lanes
  loadEvents();
  return {
    stop() {
      for (const end of ends) end();
      look.stop();
      lookBack.stop();
      chart.stop();
    },
  };
}

/** Names of jobs that have ended since. */
async function learn(jobs, names) {
  const missing = [...new Set(jobs)].filter((job) => !names.has(job));
  if (!missing.length) return;
  const page = await get("/jobs", { order: "-submitted", limit: 500 });
  for (const row of page.jobs) names.set(row.id, row.name);
  for (const job of missing) if (!names.has(job)) names.set(job, job);
}

function figureRow() {
  const parts = {};
  const cell = (name, label) => {
    parts[name] = h("dd", {}, "–");
    return h("div", {}, h("dt", {}, label), parts[name]);
  };
  const label = h("dt", {}, "Used");
  parts.used = h("dd", {}, "–");
  const node = h(
    "dl",
    { class: "figures" },
    cell("held", "Devices in use"),
    cell("running", "Jobs running"),
    cell("queued", "Jobs waiting"),
    h("div", {}, label, parts.used),
    cell("policy", "Policy"),
  );
  return {
    node,
    show(view) {
      const total = view.types.reduce((sum, t) => sum + t.total, 0);
      const held = view.types.reduce((sum, t) => sum + t.held, 0);
      fill(parts.held, String(held), h("small", {}, ` of ${total}`));
      write(parts.running, view.running);
      write(parts.queued, view.queued);
      write(parts.policy, view.policy);
    },
    used(part, window_) {
      write(label, `Used, last ${window_}`);
      write(parts.used, part === null ? "–" : percent(part));
    },
  };
}

function showWaiting(node, rows, info) {
  if (!rows.length) {
    const what = "Nothing waits.";
    if (node.textContent.startsWith(what)) return;
    fill(
      node,
      h(
        "li",
        { class: "bare" },
        empty(what, "A new job starts as soon as a device is free:", "easyscale submit --ests 4 -- train.py"),
      ),
    );
    return;
  }
  if (node.querySelector(".bare")) fill(node);
  keyed(
    node,
    rows,
    (r) => r.id,
    (row) => {
      const part = {
        link: h("a", { href: jobLink(row.id) }),
        state: pill(row.state),
        why: h("p", { class: "why" }),
        who: h("span", { class: "hint" }),
        at: when(row.submitted),
      };
      const item = h("li", {}, h("div", { class: "line" }, part.link, part.state, part.who, part.at), part.why);
      item.pieces = part;
      return item;
    },
    (item, row) => {
      write(item.pieces.link, row.name);
      setPill(item.pieces.state, row.state);
      write(item.pieces.who, row.team === info.you.team ? row.user : `${row.team} · ${row.user}`);
      setTime(item.pieces.at, row.submitted);
      write(
        item.pieces.why,
        row.waits ||
          (row.state === "paused"
            ? "Paused by a person; it goes on after resume."
            : "The scheduler has not looked at it yet."),
      );
    },
  );
}

/** The sentence, with the job's name in it as a link, or before it. */
function linked({ job, text }, name) {
  if (!job) return text;
  const link = h("a", { href: jobLink(job), class: "who" }, name);
  const at = text.indexOf(name);
  return at < 0 ? [link, " ", text] : [text.slice(0, at), link, text.slice(at + name.length)];
}

function showEvents(node, records, nameOf) {
  const rows = records
    .filter((r) => !QUIET.has(r.kind))
    .slice(-EVENTS)
    .reverse();
  if (!rows.length) {
    fill(node, h("li", { class: "bare" }, empty("Nothing has happened yet.", null)));
    return;
  }
  if (node.querySelector(".bare")) fill(node);
  keyed(
    node,
    rows,
    (r) => r.seq,
    (r) => h("li", { "data-kind": r.kind }, when(r.time), " ", h("span", {})),
    (item, r) => {
      const name = r.job ? nameOf(r.job) : "";
      if (item.nameSeen === name) return;
      item.nameSeen = name;
      fill(item.lastElementChild, linked(r, name));
    },
  );
}
