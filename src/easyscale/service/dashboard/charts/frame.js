// What all pictures share: a figure drawn at its real width, a tooltip, and the same facts as a table.

import { fill, fresh, h, svg } from "/static/dom.js";

const bubble = h("div", { class: "bubble", hidden: true, "aria-hidden": "true" });

/** Show a tooltip at the pointer. Its lines are text. */
export function tip(event, lines) {
  if (!bubble.isConnected) document.body.append(bubble);
  fill(
    bubble,
    lines.map((line, i) => h(i ? "span" : "strong", {}, line)),
  );
  bubble.hidden = false;
  const box = bubble.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, document.documentElement.clientWidth - box.width - 6);
  const y = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18;
  bubble.style.left = `${Math.max(4, x)}px`;
  bubble.style.top = `${Math.max(4, y)}px`;
}

export function untip() {
  bubble.hidden = true;
}

addEventListener("scroll", untip, { passive: true, capture: true });

/**
 * A figure. `draw(svgElement, width)` is called again whenever the width changes; `rows()` gives the table alternative
 * as {head: [..], body: [[..]]} when somebody opens it. Returns {node, redraw, say, stop}.
 */
export function figure({ title, extra = [], height, draw, rows, tableName = "As a table", className = "" }) {
  const name = fresh("figure");
  const caption = h("figcaption", { id: name }, title, extra);
  const picture = svg("svg", { class: "picture", role: "img", height, width: "100%" });
  const holder = h("div", { class: "holder" }, picture);
  const table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, as a table` });
  const details = h("details", {}, h("summary", {}, tableName), table);
  const node = h("figure", { class: `chart ${className}`, "aria-labelledby": name }, caption, holder, details);
  let width = 0;

  function fillTable() {
    if (!details.open) return; // a table that nobody reads costs nothing
    const { head, body } = rows();
    fill(table, plainTable(head, body, title));
  }

  function redraw() {
    if (width) draw(picture, width);
    fillTable();
  }

  const watch = new ResizeObserver((entries) => {
    const next = Math.floor(entries[0].contentRect.width);
    if (next === width || !next) return;
    width = next;
    draw(picture, width);
  });
  watch.observe(holder);
  details.addEventListener("toggle", fillTable);
  holder.addEventListener("pointerleave", untip);
  return {
    node,
    redraw,
    say: (text) => picture.setAttribute("aria-label", text),
    stop: () => watch.disconnect(),
  };
}

export function plainTable(head, body, caption) {
  return h(
    "table",
    { class: "plain" },
    caption && h("caption", { class: "unseen" }, caption),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        head.map((word) => h("th", { scope: "col" }, word)),
      ),
    ),
    h(
      "tbody",
      {},
      body.map((row) =>
        h(
          "tr",
          {},
          row.map((cell) => h("td", {}, cell)),
        ),
      ),
    ),
  );
}

/** Round steps that make about `wanted` ticks between low and high. */
export function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) out.push(i * step);
  return out;
}

const STEPS = [1, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** Moments at round clock times. */
export function timeTicks(since, until, wanted) {
  const rough = (until - since) / Math.max(1, wanted);
  const step = STEPS.find((s) => s >= rough) || 86400 * Math.ceil(rough / 86400);
  const shift = new Date(since * 1000).getTimezoneOffset() * 60; // midnight is the reader's
  const out = [];
  for (let t = Math.ceil((since - shift) / step) * step + shift; t <= until; t += step) out.push(t);
  return out;
}

/** Text cut to what fits, by a rough width of a letter; "" if not even some letters do. */
export function fitting(text, width, letter = 7.4) {
  const room = Math.floor((width - 8) / letter);
  if (room >= text.length) return text;
  return room >= 4 ? `${text.slice(0, room - 1)}…` : "";
}
