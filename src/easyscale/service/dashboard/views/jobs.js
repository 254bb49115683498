// All jobs, page by page: the service filters and sorts, so ten thousand cost no more here than a hundred.

import { get } from "/static/api.js";
import { announce, fill, h, keyed, write } from "/static/dom.js";
import { count, devices, number, percent, setTime } from "/static/format.js";
import { onComeback, onRecord } from "/static/live.js";
import { paced } from "/static/pace.js";
import { problemBox } from "/static/problem.js";
import { STATES, empty, heading, jobLink, labelled, pill, setPill } from "/static/views/parts.js";

const SIZES = ["50", "100", "250", "1000"];
const TYPING = 200; // milliseconds after the last key before the service is asked
const TEAM = /^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$/; // half a name may be none
const ACTIVE = ["queued", "starting", "running", "pausing", "paused", "stopping"];
const GROUPS = [["", "All states"], ["active", "Not ended"], ...STATES.map((s) => [s, s])];
const COLUMNS = [
  ["Job", "name", "name"],
  ["State", "state", "state"],
  ["Team", null, "team"],
  ["Priority", "priority", "priority"],
  ["Devices", null, "devices"],
  ["Progress", null, "progress"],
  ["Loss", null, "loss"],
  ["Submitted", "submitted", "submitted"],
];

export function mount(root, { info }, _parts, words) {
  const wish = {
    state: words.get("state") || "",
    team: words.get("team") || "",
    text: words.get("text") || "",
    user: words.get("user") || "",
    order: words.get("order") || "-submitted",
    size: SIZES.includes(words.get("size")) ? words.get("size") : "100",
    page: Math.max(1, Number(words.get("page")) || 1),
  };
  let seen = { jobs: [], total: 0 };
  let asked = 0;

  const trouble = h("div", { role: "alert" });
  const total = h("p", { class: "total", id: "total" }, " ");
  const body = h("tbody", { role: "rowgroup" });
  const heads = COLUMNS.map(([text, order, name]) => head(text, order, name));
  const table = h(
    "table",
    { class: "jobs", role: "table", "aria-label": "Jobs" },
    h(
      "thead",
      { role: "rowgroup" },
      h(
        "tr",
        { role: "row" },
        heads.map((x) => x.node),
      ),
    ),
    body,
  );
  const none = h("div", {});
  const pages = h("nav", { class: "pages", "aria-label": "Pages of the list" });

  const text = h("input", {
    type: "search",
    value: wish.text,
    placeholder: "name or id",
    maxlength: "200",
    spellcheck: "false",
  });
  const state = h(
    "select",
    {},
    GROUPS.map(([value, name]) => h("option", { value }, name)),
  );
  state.value = wish.state;
  const team = h("input", {
    type: "text",
    value: wish.team,
    placeholder: "any",
    maxlength: "63",
    list: "teams-seen",
    spellcheck: "false",
  });
  const teams = h("datalist", { id: "teams-seen" });
  const size = h(
    "select",
    {},
    SIZES.map((n) => h("option", { value: n }, n)),
  );
  size.value = wish.size;

  fill(
    root,
    heading("Jobs"),
    trouble,
    h(
      "form",
      { class: "filters", role: "search", "aria-label": "Filter the jobs", on: { submit: (e) => e.preventDefault() } },
      labelled("Search", text),
      labelled("State", state),
      labelled("Team", team),
      teams,
      labelled("A page", size),
      h("button", { type: "button", on: { click: mine } }, "My jobs"),
      h("button", { type: "button", on: { click: clear } }, "Clear"),
    ),
    total,
    h("div", { class: "card flush" }, table, none),
    pages,
  );

  // ---------------------------------------------------------------------------------------- what is asked for

  function address() {
    const out = new URLSearchParams();
    if (wish.state) out.set("state", wish.state);
    if (wish.team) out.set("team", wish.team);
    if (wish.user) out.set("user", wish.user);
    if (wish.text) out.set("text", wish.text);
    if (wish.order !== "-submitted") out.set("order", wish.order);
    if (wish.size !== "100") out.set("size", wish.size);
    if (wish.page > 1) out.set("page", wish.page);
    const line = out.toString();
    history.replaceState(null, "", `#/jobs${line ? `?${line}` : ""}`);
  }

  async function load(spoken) {
    const turn = ++asked;
    const limit = Number(wish.size);
    try {
      const page = await get("/jobs", {
        state: wish.state === "active" ? ACTIVE : wish.state,
        team: wish.team,
        user: wish.user,
        text: wish.text,
        order: wish.order,
        limit,
        offset: (wish.page - 1) * limit,
      });
      if (turn !== asked) return; // an answer to an older question
      fill(trouble);
      seen = page;
      if (!page.jobs.length && page.total > 0) return turnTo(Math.ceil(page.total / limit));
      show();
      if (spoken) announce(`${count(page.total, "job")} found.`);
    } catch (error) {
      if (turn === asked) fill(trouble, problemBox(error));
    }
  }

  function change(part) {
    Object.assign(wish, { page: 1 }, part);
    address();
    load(true);
  }

  function turnTo(page) {
    wish.page = page;
    address();
    load(false);
    scrollTo(0, 0);
  }

  function mine() {
    change({ user: info.you.user, team: "", state: "", text: "" });
    [text.value, team.value, state.value] = ["", "", ""];
  }

  function clear() {
    change({ user: "", team: "", state: "", text: "" });
    [text.value, team.value, state.value] = ["", "", ""];
    text.focus();
  }

  let typing = null;
  const later = (part) => {
    clearTimeout(typing);
    typing = setTimeout(() => change(part()), TYPING);
  };
  text.addEventListener("input", () => later(() => ({ text: text.value.trim() })));
  team.addEventListener(
    "input",
    () => (team.value === "" || TEAM.test(team.value)) && later(() => ({ team: team.value })),
  );
  state.addEventListener("change", () => change({ state: state.value }));
  size.addEventListener("change", () => change({ size: size.value }));
  body.addEventListener("keydown", arrows);
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row && !event.target.closest("a") && !String(getSelection())) row.querySelector("a").click();
  });

  // ---------------------------------------------------------------------------------------- what is shown

  function head(label, order, name) {
    if (!order) return { node: h("th", { scope: "col", role: "columnheader", class: name }, label), order };
    const sign = h("span", { class: "sign", "aria-hidden": "true" });
    const button = h("button", { type: "button", class: "sort", on: { click: () => sortBy(order) } }, label, sign);
    return { node: h("th", { scope: "col", role: "columnheader", class: name }, button), order, sign };
  }

  function sortBy(order) {
    const back = order === "submitted" ? (wish.order === "-submitted" ? "submitted" : "-submitted") : order;
    change({ order: back });
  }

  function showHeads() {
    for (const { node, order, sign } of heads) {
      if (!order) continue;
      const on = wish.order === order || wish.order === `-${order}`;
      const down = wish.order.startsWith("-") || (on && order === "priority"); // the most urgent first
      if (on) node.setAttribute("aria-sort", down ? "descending" : "ascending");
      else node.removeAttribute("aria-sort");
      write(sign, on ? (down ? " ↓" : " ↑") : "");
    }
  }

  function show() {
    const from = (wish.page - 1) * Number(wish.size);
    const narrowed = wish.state || wish.team || wish.text || wish.user;
    write(
      total,
      seen.total
        ? `${number(from + 1)}–${number(from + seen.jobs.length)} of ${count(seen.total, "job")}` +
            (wish.user ? ` of ${wish.user}` : "")
        : "No jobs",
    );
    showHeads();
    keyed(body, seen.jobs, (job) => job.id, makeRow, setRow);
    table.hidden = !seen.jobs.length;
    fill(
      none,
      !seen.jobs.length &&
        (narrowed
          ? empty("No job matches.", "Take a part of the filter away.")
          : empty("No jobs yet.", "Submit one from a terminal:", "easyscale submit --ests 4 -- train.py")),
    );
    fill(
      teams,
      [...new Set(seen.jobs.map((j) => j.team))].sort().map((value) => h("option", { value })),
    );
    showPages();
  }

  function showPages() {
    const last = Math.max(1, Math.ceil(seen.total / Number(wish.size)));
    pages.hidden = last === 1;
    if (last === 1) return;
    const button = (name, to, off) =>
      h("button", { type: "button", disabled: off, on: { click: () => turnTo(to) } }, name);
    const focused = pages.contains(document.activeElement) ? document.activeElement.textContent : null;
    fill(
      pages,
      button("First", 1, wish.page === 1),
      button("Back", wish.page - 1, wish.page === 1),
      h("span", {}, `page ${number(wish.page)} of ${number(last)}`),
      button("Next", wish.page + 1, wish.page === last),
      button("Last", last, wish.page === last),
    );
    if (focused) [...pages.querySelectorAll("button")].find((b) => b.textContent === focused)?.focus();
  }

  const refresh = paced(() => load(false), { gap: 2500, every: 15_000 });
  const ends = [
    onRecord((record) => {
      if (record.job && record.kind !== "job-proposed") refresh.ask();
    }),
    onComeback(refresh.ask),
  ];
  load(false);
  return {
    stop() {
      asked += 1;
      clearTimeout(typing);
      for (const end of ends) end();
      refresh.stop();
    },
  };
}

// ------------------------------------------------------------------------------------------------ rows

function makeRow(job) {
  const cell = (name, ...inside) => h("td", { class: name, role: "cell" }, inside);
  const part = {
    link: h("a", { href: jobLink(job.id) }),
    id: h("span", { class: "hint mono" }, job.id),
    why: h("span", { class: "why" }),
    state: pill(job.state),
    team: h("span", {}),
    user: h("span", { class: "hint" }),
    priority: h("span", {}),
    held: h("span", {}),
    step: h("span", {}),
    bar: h("span", { class: "bar" }),
    track: null,
    loss: h("span", {}),
    at: h("time", {}),
    seen: "",
  };
  part.track = h("span", { class: "track", "aria-hidden": "true" }, part.bar);
  const row = h(
    "tr",
    { role: "row" },
    cell("name", part.link, " ", part.id, part.why),
    cell("state", part.state),
    cell("team", part.team, " ", part.user),
    cell("priority", part.priority),
    cell("devices", part.held),
    cell("progress", part.step, part.track),
    cell("loss", part.loss),
    cell("submitted", part.at),
  );
  row.pieces = part;
  return row;
}

function setRow(row, job) {
  const part = row.pieces;
  const key = JSON.stringify(job);
  if (part.seen === key) return;
  part.seen = key;
  write(part.link, job.name);
  write(part.why, job.waits || job.error || "");
  part.why.classList.toggle("bad", Boolean(job.error) && !job.waits);
  setPill(part.state, job.state);
  write(part.team, job.team);
  write(part.user, job.user);
  write(part.priority, job.priority);
  const held = devices(job.devices);
  write(part.held, held === "none" ? "–" : held);
  part.held.parentNode.classList.toggle("none", held === "none");
  part.step.parentNode.classList.toggle("none", !job.steps && !job.step);
  write(
    part.step,
    job.steps ? `${number(job.step)} of ${number(job.steps)}` : job.step ? `step ${number(job.step)}` : "–",
  );
  part.track.hidden = !job.steps;
  if (job.steps) {
    part.bar.style.width = `${Math.min(100, (100 * job.step) / job.steps)}%`;
    part.step.title = percent(job.step / job.steps);
  }
  write(part.loss, number(job.loss));
  setTime(part.at, job.submitted);
}

/** Up and down go from row to row. */
function arrows(event) {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const row = event.target.closest("tr");
  const next = row && (event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling);
  if (!next) return;
  event.preventDefault();
  next.querySelector("a").focus();
}
