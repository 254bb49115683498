// Who held which device when: one lane a device, one colour a job.

import { figure, fitting, timeTicks, tip, untip } from "/static/charts/frame.js";
import { fill, h, svg } from "/static/dom.js";
import { absolute, clock, colour, count, duration, percent } from "/static/format.js";

const AXIS = 22;
const MOST_ROWS = 500;

/** The part of all device time in the window that was used. */
export function used(spans, devices, since, until) {
  const whole = devices.length * (until - since);
  const held = spans.reduce(
    (sum, s) => sum + Math.max(0, Math.min(s.until ?? until, until) - Math.max(s.since, since)),
    0,
  );
  return whole > 0 ? Math.min(1, held / whole) : 0;
}

/** A device that a job kept while it got or lost others was held without a break. */
export function merged(spans) {
  const out = [];
  const open = new Map();
  for (const span of [...spans].sort((a, b) => a.since - b.since)) {
    const key = `${span.device} ${span.job}`;
    const last = open.get(key);
    if (last && last.until !== null && span.since - last.until < 1) last.until = span.until;
    else {
      open.set(key, { ...span });
      out.push(open.get(key));
    }
  }
  return out;
}

function laneHeight(lanes) {
  if (lanes <= 24) return 24;
  return lanes <= 100 ? 16 : 7;
}

/** `view()` gives {since, until, spans, devices, nameOf(job)}. */
export function timeline(view, open) {
  const chart = figure({ title: "Allocations over time", height: 60, draw, rows: table, className: "timeline" });

  function draw(picture, width) {
    const { since, until, devices, nameOf, ...rest } = view();
    const spans = merged(rest.spans);
    const tall = laneHeight(devices.length);
    const height = devices.length * tall + AXIS;
    const longest = Math.max(0, ...devices.map((d) => d.id.length));
    const left = tall < 12 ? 8 : Math.min(width * 0.25, longest * 7.4 + 14);
    picture.setAttribute("height", height);
    const x = (t) => left + ((t - since) / (until - since)) * (width - left - 4);
    const at = new Map(devices.map((d, i) => [d.id, i]));
    const jobs = new Set(spans.map((s) => s.job));
    chart.say(
      `${count(devices.length, "device")} from ${clock(since)} to ${clock(until)}, ` +
        `${percent(used(spans, devices, since, until))} of the device time held, by ${count(jobs.size, "job")}. ` +
        "The table below has each span.",
    );
    fill(
      picture,
      devices.map((d, i) => lane(d, i, tall, left, width)),
      timeTicks(since, until, Math.floor((width - left) / 90)).map((t) => [
        svg("line", { class: "grid", x1: x(t), x2: x(t), y1: 0, y2: height - AXIS }),
        svg("text", { class: "tick", x: x(t), y: height - 6, "text-anchor": "middle" }, clock(t)),
      ]),
      spans
        .filter((s) => at.has(s.device))
        .map((s) => bar(s, at.get(s.device) * tall, tall, x, since, until, nameOf(s.job))),
    );
  }

  function bar(span, y, tall, x, since, until, name) {
    const from = x(Math.max(span.since, since));
    const wide = Math.max(1.5, x(Math.min(span.until ?? until, until)) - from);
    const label = tall >= 16 ? fitting(name, wide) : "";
    const tellIt = (event) =>
      tip(event, [
        name,
        span.device,
        `${clock(span.since, true)} – ${span.until ? clock(span.until, true) : "now"}`,
        duration((span.until ?? until) - span.since),
      ]);
    const node = svg(
      "g",
      {
        class: `span ${colour(span.job)}${span.until ? "" : " now"}`,
        on: { pointermove: tellIt, pointerleave: untip, click: () => open(span.job) },
      },
      svg("rect", { x: from, y: y + 1.5, width: wide, height: tall - 3, rx: tall > 12 ? 4 : 1 }),
      label && svg("text", { x: from + 5, y: y + tall / 2 + 4 }, label),
    );
    return node;
  }

  function table() {
    const { spans, nameOf } = view();
    const rows = merged(spans)
      .sort((a, b) => b.since - a.since)
      .slice(0, MOST_ROWS);
    return {
      head: ["Device", "Job", "From", "Until"],
      body: rows.map((s) => [
        s.device,
        h("a", { href: `#/jobs/${encodeURIComponent(s.job)}` }, nameOf(s.job)),
        absolute(s.since),
        s.until ? absolute(s.until) : "now",
      ]),
    };
  }

  return chart;
}

function lane(device, i, tall, left, width) {
  const y = i * tall;
  return [
    svg("rect", { class: i % 2 ? "lane odd" : "lane", x: left, y, width: Math.max(0, width - left - 4), height: tall }),
    tall >= 12 &&
      svg(
        "text",
        { class: "tick", x: left - 6, y: y + tall / 2 + 4, "text-anchor": "end" },
        fitting(device.id, left, 7),
      ),
  ];
}
