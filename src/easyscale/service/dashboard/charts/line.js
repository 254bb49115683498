// One metric against the step or the time. Thin verticals mark where the plan changed.

import { figure, ticks, timeTicks, tip, untip } from "/static/charts/frame.js";
import { fill, h, svg } from "/static/dom.js";
import { absolute, clock, number } from "/static/format.js";

const HEIGHT = 190;
const PAD = { left: 58, right: 12, top: 10, bottom: 24 };
const MOST_ROWS = 60;

const UNITS = { samples_per_second: "samples/s", steps_per_second: "steps/s", seconds: "s" };
const TITLES = { steps_per_second: "Throughput", loss: "Loss", lr: "Learning rate" };

export const unit = (name) => UNITS[name] || "";
export const titleOf = (name) => TITLES[name] || (name.charAt(0).toUpperCase() + name.slice(1)).replaceAll("_", " ");

function range(values) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    low -= room;
    high += room;
  }
  return [low, high];
}

/** Points with a number for this metric, as [x, y, point]. */
function known(points, metric, axis) {
  return points
    .filter((p) => Number.isFinite(p.values[metric]))
    .map((p) => [axis === "time" ? p.time : p.step, p.values[metric], p]);
}

export function summary(points, metric) {
  const all = known(points, metric, "step");
  if (!all.length) return `${titleOf(metric)}: nothing logged yet.`;
  const values = all.map(([, y]) => y);
  const last = all.at(-1);
  const [low, high] = [Math.min(...values), Math.max(...values)].map(number);
  const where = `${all.length} points from step ${number(all[0][0])} to ${number(last[0])}`;
  const figures = `first ${number(values[0])}, last ${number(last[1])}, least ${low}, greatest ${high} ${unit(metric)}`;
  return `${titleOf(metric)} over ${where}: ${figures.trimEnd()}.`;
}

/** `view()` gives {points, marks, axis, log}: marks are plans, axis "step" or "time". */
export function lineChart(metric, view) {
  let scale = null;
  const last = h("span", { class: "latest" });
  const chart = figure({
    title: titleOf(metric),
    extra: [unit(metric) && h("span", { class: "unit" }, ` ${unit(metric)}`), last],
    height: HEIGHT,
    draw,
    rows: table,
    className: "curves",
  });

  function draw(picture, width) {
    const { points, marks, axis, log } = view();
    const all = known(points, metric, axis).filter(([, y]) => !log || y > 0);
    chart.say(summary(points, metric));
    last.textContent = all.length ? number(all.at(-1)[1]) : "";
    if (!all.length) {
      scale = null;
      fill(
        picture,
        svg("text", { x: width / 2, y: HEIGHT / 2, class: "hint", "text-anchor": "middle" }, "nothing logged yet"),
      );
      return;
    }
    scale = scales(all, width, log);
    fill(
      picture,
      axes(scale, width, axis, log),
      verticals(marks, scale, axis),
      curve(all, scale),
      dot(all.at(-1), scale),
      cursor(),
    );
  }

  function table() {
    const { points } = view();
    const all = known(points, metric, "step");
    const gap = Math.max(1, Math.ceil(all.length / MOST_ROWS));
    const some = all.filter((_, i) => i % gap === 0 || i === all.length - 1);
    return {
      head: ["Step", "Time", titleOf(metric)],
      body: some.map(([x, y, p]) => [number(x), absolute(p.time), number(y)]),
    };
  }

  function cursor() {
    return [svg("line", { class: "cursor", y1: PAD.top, y2: HEIGHT - PAD.bottom, x1: -9, x2: -9 })];
  }

  chart.node.querySelector("svg").addEventListener("pointermove", (event) => {
    if (!scale) return;
    const box = event.currentTarget.getBoundingClientRect();
    const want = event.clientX - box.left;
    const near = scale.all.reduce((a, b) => (Math.abs(scale.x(b[0]) - want) < Math.abs(scale.x(a[0]) - want) ? b : a));
    const line = event.currentTarget.querySelector(".cursor");
    line.setAttribute("x1", scale.x(near[0]));
    line.setAttribute("x2", scale.x(near[0]));
    tip(event, [`${number(near[1])} ${unit(metric)}`, `step ${number(near[2].step)}`, absolute(near[2].time)]);
  });
  chart.node.querySelector("svg").addEventListener("pointerleave", untip);
  return chart;
}

function scales(all, width, log) {
  const [x0, x1] = range(all.map(([x]) => x));
  const [y0, y1] = range(all.map(([, y]) => (log ? Math.log10(y) : y)));
  const room = (y1 - y0) * 0.06;
  const [low, high] = [y0 >= 0 && y0 - room < 0 && !log ? 0 : y0 - room, y1 + room];
  const inner = width - PAD.left - PAD.right;
  const tall = HEIGHT - PAD.top - PAD.bottom;
  return {
    all,
    x0,
    x1,
    low,
    high,
    x: (v) => PAD.left + ((v - x0) / (x1 - x0)) * inner,
    y: (v) => PAD.top + (1 - ((log ? Math.log10(v) : v) - low) / (high - low)) * tall,
  };
}

function axes(scale, width, axis, log) {
  const out = [];
  const marks = ticks(scale.low, scale.high, 5);
  for (const value of marks) {
    const real = log ? 10 ** value : value;
    const y = scale.y(real);
    out.push(svg("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y, y2: y }));
    out.push(
      svg(
        "text",
        { class: "tick", x: PAD.left - 6, y: y + 4, "text-anchor": "end" },
        number(Number(real.toPrecision(4))),
      ),
    );
  }
  const wanted = Math.max(2, Math.floor(width / 110));
  const along = axis === "time" ? timeTicks(scale.x0, scale.x1, wanted) : ticks(scale.x0, scale.x1, wanted);
  const seconds = axis === "time" && scale.x1 - scale.x0 < 300;
  for (const value of along) {
    if (axis !== "time" && !Number.isInteger(value)) continue;
    const text = axis === "time" ? clock(value, seconds) : number(value);
    out.push(svg("text", { class: "tick", x: scale.x(value), y: HEIGHT - 6, "text-anchor": "middle" }, text));
  }
  return out;
}

function verticals(marks, scale, axis) {
  return marks
    .map((plan) => (axis === "time" ? plan.time : plan.step))
    .filter((at) => at > scale.x0 && at < scale.x1)
    .map((at) =>
      svg("line", { class: "switch", x1: scale.x(at), x2: scale.x(at), y1: PAD.top, y2: HEIGHT - PAD.bottom }),
    );
}

function curve(all, scale) {
  const path = all.map(([x, y], i) => `${i ? "L" : "M"}${scale.x(x).toFixed(1)} ${scale.y(y).toFixed(1)}`).join("");
  return svg("path", { class: "curve", d: path });
}

function dot([x, y], scale) {
  return svg("circle", { class: "end", cx: scale.x(x), cy: scale.y(y), r: 3 });
}
