// A job's page: how it goes, where its ESTs run, what happened to it, what it printed, and the buttons to change it.

import { get, part } from "/static/api.js";
import { lineChart } from "/static/charts/line.js";
import { planChart } from "/static/charts/plans.js";
import { announce, fill, h, keyed, write } from "/static/dom.js";
import { absolute, devices, duration, number, percent, setTime, when } from "/static/format.js";
import { onComeback, onRecord } from "/static/live.js";
import { paced } from "/static/pace.js";
import { problemBox } from "/static/problem.js";
import { controls } from "/static/views/job-controls.js";
import { logs } from "/static/views/job-logs.js";
import { proposals, spec, pauses } from "/static/views/job-facts.js";
import { ENDED, choices, copyable, empty, setPill } from "/static/views/parts.js";

const POINTS = 400;
const NOISE = new Set(["job-progressed", "job-proposed"]);
const FIRST_METRICS = ["loss", "steps_per_second"];

export function mount(root, { info }, [id]) {
  const path = `/jobs/${part(id)}`;
  const page = { job: null, points: [], records: [], axis: "step", log: false, all: false, most: 100 };
  const trouble = h("div", { role: "alert" });
  const whole = h("div", { class: "job-page", hidden: true });
  const title = h("h1", { tabindex: "-1" }, id);
  const state = h("span", { class: "pill" });
  const buttons = controls(
    info.you,
    () => page.job,
    (job) => showJob(job),
  );
  const why = h("p", { class: "why banner", hidden: true });
  const facts = factList();
  const plan = planChart(() => ({
    plans: page.job?.plans || [],
    allocations: page.job?.allocations || [],
    ests: page.job?.ests || 1,
    end: page.job?.ended ?? Date.now() / 1000,
  }));
  const charts = metricCharts(page);
  const events = h("ol", { class: "events" });
  const more = h(
    "button",
    {
      type: "button",
      class: "small",
      on: {
        click: () => {
          page.most = 1000;
          loadEvents();
        },
      },
    },
    "Older events",
  );
  const noise = h("input", {
    type: "checkbox",
    on: {
      change: () => {
        page.all = noise.checked;
        showEvents();
      },
    },
  });
  const grow = h("div", {});
  const stops = h("div", {});
  const told = h("div", {});
  const output = logs(path, () => page.job);
  const finger = h("div", {});

  fill(
    root,
    h(
      "nav",
      { "aria-label": "Where you are", class: "crumbs" },
      h("a", { href: "#/jobs" }, "Jobs"),
      " › ",
      h("span", { class: "mono" }, id),
    ),
    h("div", { class: "head job-head" }, h("div", { class: "title" }, title, state), buttons.node),
    trouble,
    whole,
  );
  const card = (name, text, ...inside) => {
    const label = `${name}-h`;
    return h("section", { class: `card ${name}`, "aria-labelledby": label }, h("h2", { id: label }, text), inside);
  };
  fill(
    whole,
    why,
    facts.node,
    h(
      "section",
      { class: "card metrics", "aria-labelledby": "metrics-h" },
      h("div", { class: "head" }, h("h2", { id: "metrics-h" }, "Metrics"), charts.tools),
      charts.node,
    ),
    card("plan", "Where its ESTs run", plan.node),
    h(
      "div",
      { class: "halves" },
      h(
        "section",
        { class: "card events-card", "aria-labelledby": "events-h" },
        h(
          "div",
          { class: "head" },
          h("h2", { id: "events-h" }, "Events"),
          h("label", { class: "check" }, noise, "with progress"),
        ),
        events,
        more,
      ),
      h(
        "div",
        { class: "stack" },
        card("proposals", "Proposals", grow),
        card("pauses", "Pauses", stops),
        card("finger", "Fingerprint", finger),
      ),
    ),
    output.node,
    card("spec", "As submitted", told),
  );

  // ---------------------------------------------------------------------------------------- showing

  function showJob(job) {
    const before = page.job?.state;
    page.job = job;
    document.title = `${job.name} · ${job.state} · EasyScale`;
    write(title, job.name);
    setPill(state, job.state);
    if (before && before !== job.state) announce(`${job.name} is ${job.state} now.`);
    whole.hidden = false;
    const reason = job.error || job.waits;
    why.hidden = !reason;
    write(why, reason || "");
    why.classList.toggle("bad", Boolean(job.error));
    facts.show(job);
    buttons.show(job);
    plan.redraw();
    fill(grow, proposals(job));
    fill(stops, pauses(job));
    fill(
      finger,
      job.fingerprint
        ? [
            h(
              "p",
              { class: "hint" },
              "The sha256 of the trained model. Stock DDP on as many processes ends with the same.",
            ),
            copyable(job.fingerprint),
          ]
        : empty("None yet.", "It is there when the job has finished."),
    );
    if (!told.firstChild) fill(told, spec(job));
    output.show(job);
  }

  function showEvents() {
    const rows = page.records
      .filter((r) => page.all || !NOISE.has(r.kind))
      .slice(-page.most)
      .reverse();
    more.hidden = page.records.length < page.most;
    if (!rows.length) return fill(events, h("li", { class: "bare" }, empty("Nothing yet.", null)));
    if (events.querySelector(".bare")) fill(events);
    keyed(
      events,
      rows,
      (r) => r.seq,
      (r) => h("li", { "data-kind": r.kind }, when(r.time), " ", h("span", {}, r.text)),
      () => {},
    );
  }

  // ---------------------------------------------------------------------------------------- asking

  const guarded = (work) => async () => {
    try {
      await work();
      fill(trouble);
    } catch (error) {
      if (error.status === 403 || error.status === 404) stop(); // asking again will not help
      fill(trouble, problemBox(error));
    }
  };
  const look = paced(
    guarded(async () => showJob(await get(path))),
    { gap: 1500, every: 20_000 },
  );
  const lookSeries = paced(
    guarded(async () => {
      page.points = (await get(`${path}/series`, { most: POINTS })).points;
      charts.show();
    }),
    { gap: 3000, every: 20_000 },
  );
  const loadEvents = guarded(async () => {
    page.records = (await get(`${path}/records`, { newest: true, limit: page.most })).records;
    showEvents();
  });
  const ends = [
    onRecord((record) => {
      if (record.job !== id) return;
      page.records.push(record);
      if (page.all || !NOISE.has(record.kind)) showEvents();
      look.ask();
      if (record.kind === "job-progressed" || ENDED.includes(record.kind.slice(4))) lookSeries.ask();
    }),
    onComeback(() => {
      look.ask();
      lookSeries.ask();
      loadEvents();
    }),
  ];
  function stop() {
    for (const end of ends) end();
    look.stop();
    lookSeries.stop();
    output.stop();
    plan.stop();
    charts.stop();
  }
  guarded(async () => {
    showJob(await get(path));
    await Promise.all([loadEvents(), lookSeries.ask()]);
  })();
  return { stop };
}

// ------------------------------------------------------------------------------------------------ facts

function factList() {
  const parts = {};
  const cell = (name, label) => {
    parts[name] = h("dd", {});
    return h("div", {}, h("dt", {}, label), parts[name]);
  };
  const bar = h("span", { class: "bar" });
  const track = h("span", { class: "track", "aria-hidden": "true" }, bar);
  const node = h(
    "dl",
    { class: "figures" },
    cell("step", "Global step"),
    cell("loss", "Loss"),
    cell("speed", "Throughput"),
    cell("held", "Devices"),
    cell("size", "Workers"),
    cell("end", "Ends"),
    cell("run", "Run for"),
    cell("who", "Team"),
  );
  const submitted = h("time", {});
  const ending = h("time", {});
  return {
    node,
    show(job) {
      fill(
        parts.step,
        number(job.step),
        job.steps && h("small", {}, ` of ${number(job.steps)} · ${percent(job.step / job.steps)}`),
        job.steps && track,
      );
      if (job.steps) bar.style.width = `${Math.min(100, (100 * job.step) / job.steps)}%`;
      write(parts.loss, number(job.loss));
      fill(
        parts.speed,
        number(job.samples_per_second),
        job.samples_per_second !== null && h("small", {}, " samples/s"),
      );
      write(parts.held, devices(job.devices));
      parts.held.title = job.held.join(", ");
      fill(
        parts.size,
        `${job.spec.min_workers}–${job.spec.max_workers ?? job.ests}`,
        h("small", {}, ` for ${number(job.ests)} ESTs, ${job.spec.determinism}`),
      );
      showEnd(job);
      const since = job.started ?? null;
      fill(
        parts.run,
        since ? duration((job.ended ?? Date.now() / 1000) - since) : "–",
        job.run > 1 && h("small", {}, ` · start ${job.run}`),
      );
      setTime(submitted, job.submitted);
      fill(parts.who, job.team, h("small", {}, ` · ${job.user} · submitted `, submitted));
    },
  };

  function showEnd(job) {
    const at = job.ended ?? job.expected_end;
    const late = job.late && h("span", { class: "tag bad" }, "late");
    if (at === null || at === undefined) return fill(parts.end, "not known", late);
    setTime(ending, at);
    return fill(
      parts.end,
      ending,
      h("small", {}, job.ended ? "" : " expected"),
      job.spec.deadline && h("small", {}, ` · deadline ${absolute(Date.parse(job.spec.deadline) / 1000)}`),
      late,
    );
  }
}

// ------------------------------------------------------------------------------------------------ metrics

function metricCharts(page) {
  const node = h("div", { class: "charts" });
  const drawn = new Map();
  const view = () => ({ points: page.points, marks: page.job?.plans || [], axis: page.axis, log: page.log });
  const redraw = () => drawn.forEach((chart) => chart.redraw());
  const log = h("input", {
    type: "checkbox",
    on: {
      change: () => {
        page.log = log.checked;
        redraw();
      },
    },
  });
  const tools = h(
    "div",
    { class: "tools" },
    choices(
      "axis",
      [
        ["step", "by step"],
        ["time", "by time"],
      ],
      "step",
      (word) => {
        page.axis = word;
        redraw();
      },
      "Along which axis",
    ),
    h("label", { class: "check" }, log, "log scale"),
  );
  function show() {
    const names = new Set(page.points.flatMap((p) => Object.keys(p.values)));
    const rest = [...names].filter((n) => !FIRST_METRICS.includes(n)).sort();
    for (const metric of [...FIRST_METRICS, ...rest]) {
      if (drawn.has(metric)) continue;
      const chart = lineChart(metric, view);
      drawn.set(metric, chart);
      node.append(chart.node);
    }
    redraw();
  }
  show(); // the two that every job has keep their place from the start
  return { node, tools, show, stop: () => drawn.forEach((chart) => chart.stop()) };
}
