// What the workers printed: by run, worker and stream, from the end on, followed. It is shown as text and nothing else.

import { get } from "/static/api.js";
import { fill, h, write } from "/static/dom.js";
import { bytes } from "/static/format.js";
import { paced } from "/static/pace.js";
import { problemBox } from "/static/problem.js";
import { ENDED, empty, labelled } from "/static/views/parts.js";

const CHUNK = 64 * 1024; // bytes asked for at once
const MOST = 1_000_000; // letters kept on the page; older ones can be loaded again
const TURNS = 20; // chunks in a row before the page may breathe

/** Colours and cursor moves of terminals mean nothing here. */
const bare = (text) =>
  text.replace(/\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b[@-_]|[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g, "");

const name = (f) => `${f.run}/${f.worker}/${f.stream}`;

export function logs(path, jobNow) {
  const trouble = h("div", { role: "alert" });
  const which = h("select", { "aria-label": "Which output" });
  const follow = h("input", { type: "checkbox", checked: true });
  const wrap = h("input", { type: "checkbox", checked: true });
  const size = h("span", { class: "hint" });
  const earlier = h("button", { type: "button", class: "small", hidden: true }, "Earlier output");
  const pre = h("pre", { class: "log wrap", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Output" });
  const none = h("div", {});
  const body = h("div", { class: "log-box", hidden: true }, earlier, pre);
  const tools = h(
    "div",
    { class: "tools", hidden: true },
    labelled("Output of", which),
    h("label", { class: "check" }, follow, "follow"),
    h("label", { class: "check" }, wrap, "wrap lines"),
    size,
  );
  const node = h(
    "section",
    { class: "card logs", "aria-labelledby": "logs-h" },
    h("div", { class: "head" }, h("h2", { id: "logs-h" }, "Logs"), tools),
    trouble,
    none,
    body,
  );
  fill(none, empty("No output yet.", "A job prints when it runs."));

  let files = [];
  let chosen = null; // {file, first, next}: the bytes that are on the page
  let turn = 0;

  async function list() {
    files = await get(`${path}/logs`);
    const has = files.length > 0;
    tools.hidden = body.hidden = !has;
    none.hidden = has;
    if (!has) return;
    const words = files.map(name).join();
    if (which.dataset.words !== words) {
      which.dataset.words = words;
      const runs = new Set(files.map((f) => f.run)).size > 1;
      const keep = which.value;
      fill(
        which,
        files.map((f) =>
          h(
            "option",
            { value: name(f) },
            `${runs ? `start ${f.run}, ` : ""}worker ${f.worker}, ${f.stream === "err" ? "stderr" : "stdout"}`,
          ),
        ),
      );
      const newest = Math.max(...files.map((f) => f.run));
      const best = files.find((f) => f.run === newest && f.size > 0) || files.find((f) => f.run === newest);
      which.value = files.some((f) => name(f) === keep) ? keep : name(best);
    }
    if (!chosen || name(chosen.file) !== which.value) choose();
  }

  function choose() {
    const file = files.find((f) => name(f) === which.value);
    if (!file) return;
    turn += 1;
    const start = Math.max(0, file.size - CHUNK);
    chosen = { file, first: start, next: start, end: false };
    fill(pre);
  }

  const part = (start, most = CHUNK) =>
    get(`${path}/log`, { run: chosen.file.run, worker: chosen.file.worker, stream: chosen.file.stream, start, most });

  async function read() {
    const mine = turn;
    for (let i = 0; i < TURNS && chosen && !chosen.end; i += 1) {
      const got = await part(chosen.next);
      if (mine !== turn) return;
      if (got.start > chosen.next && chosen.next > chosen.first)
        append("\n[an older part of the output is gone]\n", chosen.next);
      if (!pre.firstChild) chosen.first = got.start;
      append(bare(got.text), got.start);
      chosen.end = got.end;
      if (got.next <= chosen.next) break;
      chosen.next = got.next;
    }
    earlier.hidden = !chosen || chosen.first <= 0;
    if (chosen) write(size, bytes(chosen.next));
  }

  /** A piece of text that begins at this byte. */
  function piece(text, from) {
    const node = document.createTextNode(text);
    node.fromByte = from;
    return node;
  }

  function append(text, from) {
    if (!text) return;
    const down = follow.checked || pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
    pre.append(piece(text, from));
    while (pre.textContent.length > MOST && pre.childNodes.length > 1) {
      pre.firstChild.remove();
      chosen.first = pre.firstChild.fromByte;
    }
    if (down) pre.scrollTop = pre.scrollHeight;
  }

  async function before() {
    follow.checked = false;
    const start = Math.max(0, chosen.first - CHUNK);
    const got = await part(start, chosen.first - start);
    const height = pre.scrollHeight;
    if (got.text && got.start < chosen.first) pre.prepend(piece(bare(got.text), got.start));
    chosen.first = got.start >= chosen.first ? 0 : got.start; // the oldest part may be gone
    earlier.hidden = chosen.first <= 0;
    pre.scrollTop += pre.scrollHeight - height; // what was read stays under the eyes
  }

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
      if (ENDED.includes(jobNow()?.state) && chosen?.end) return;
      await list();
      if (follow.checked || !pre.firstChild) await read();
    }),
    { gap: 1500, every: 3000 },
  );

  which.addEventListener("change", () => {
    choose();
    guarded(read)();
  });
  follow.addEventListener("change", () => {
    if (!follow.checked) return;
    pre.scrollTop = pre.scrollHeight;
    look.ask();
  });
  wrap.addEventListener("change", () => pre.classList.toggle("wrap", wrap.checked));
  earlier.addEventListener("click", guarded(before));
  pre.addEventListener(
    "wheel",
    (event) => {
      if (event.deltaY < 0) follow.checked = false;
    },
    { passive: true },
  );
  return { node, show: () => look.ask(), stop: look.stop };
}
