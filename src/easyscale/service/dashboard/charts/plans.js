// A job's plans: ESTs from top to bottom, time from left to right, one colour a device.
// The ESTs never change; where they run does.

import { figure, fitting, timeTicks, tip, untip } from "/static/charts/frame.js";
import { fill, svg } from "/static/dom.js";
import { absolute, clock, count, duration, ests, number, palette } from "/static/format.js";

const HEIGHT = 220;
const AXIS = 22;
const LEFT = 44;

const home = (seat) => seat.device || `worker ${seat.worker}`;

/** When the job held this device, as [from, to]; all the time where nothing is known. */
function holdings(allocations, device, end) {
  if (!device || !allocations.length) return [[-Infinity, Infinity]];
  return allocations.filter((a) => a.devices.includes(device)).map((a) => [a.since, a.until ?? end]);
}

/** Bricks: which ESTs ran on which device from when to when. */
export function bricks(plans, allocations, end) {
  const out = [];
  plans.forEach((plan, i) => {
    const until = i + 1 < plans.length ? plans[i + 1].time : end;
    for (const seat of plan.seats) {
      for (const [from, to] of joined(holdings(allocations, seat.device, end))) {
        const a = Math.max(plan.time, from);
        const b = Math.min(until, to);
        if (b > a) out.push({ ...seat, home: home(seat), since: a, until: b, step: plan.step });
      }
    }
  });
  return out;
}

/** A device kept from one allocation to the next was held without a break. */
function joined(spans) {
  const out = [];
  for (const [from, to] of [...spans].sort((a, b) => a[0] - b[0])) {
    if (out.length && from - out.at(-1)[1] < 1) out.at(-1)[1] = Math.max(out.at(-1)[1], to);
    else out.push([from, to]);
  }
  return out;
}

/** `view()` gives {plans, allocations, ests, end}. */
export function planChart(view) {
  const colour = palette();
  const chart = figure({
    title: "Plan history: which ESTs ran on which device",
    height: HEIGHT,
    draw,
    rows: table,
    className: "plans",
  });

  function draw(picture, width) {
    const { plans, allocations, ests: all, end } = view();
    if (!plans.length) {
      chart.say("No plan yet: the job has not started.");
      fill(
        picture,
        svg(
          "text",
          { x: width / 2, y: HEIGHT / 2, class: "hint", "text-anchor": "middle" },
          "no plan yet: the job has not started",
        ),
      );
      return;
    }
    const since = plans[0].time;
    const until = Math.max(end, since + 1);
    const x = (t) => LEFT + ((t - since) / (until - since)) * (width - LEFT - 4);
    const tall = (HEIGHT - AXIS) / all;
    const last = plans.at(-1);
    chart.say(
      `${count(all, "EST")}, ${count(plans.length, "plan")}. The last one, from step ${number(last.step)}: ` +
        last.seats.map((s) => `${ests(s.first, s.count)} on ${home(s)}`).join(", ") +
        ".",
    );
    fill(
      picture,
      svg("rect", { class: "lane", x: LEFT, y: 0, width: Math.max(0, width - LEFT - 4), height: HEIGHT - AXIS }),
      labels(all, tall),
      bricks(plans, allocations, end).map((b) => brick(b, x, tall, colour)),
      timeTicks(since, until, Math.floor((width - LEFT) / 90)).map((t) =>
        svg("text", { class: "tick", x: x(t), y: HEIGHT - 6, "text-anchor": "middle" }, clock(t, until - since < 300)),
      ),
    );
  }

  function table() {
    const { plans } = view();
    return {
      head: ["From", "Step", "ESTs and devices"],
      body: [...plans]
        .reverse()
        .map((p) => [
          absolute(p.time),
          number(p.step),
          p.seats.map((s) => `${ests(s.first, s.count)} on ${home(s)}`).join("; "),
        ]),
    };
  }

  return chart;
}

function labels(all, tall) {
  const gap = Math.max(1, Math.ceil(14 / tall));
  const out = [];
  for (let v = 0; v < all; v += gap) {
    out.push(svg("text", { class: "tick", x: LEFT - 6, y: (v + 0.5) * tall + 4, "text-anchor": "end" }, String(v)));
  }
  return out;
}

function brick(b, x, tall, colour) {
  const from = x(b.since);
  const wide = Math.max(1, x(b.until) - from);
  const high = b.count * tall;
  const top = b.first * tall;
  const tellIt = (event) =>
    tip(event, [
      `${ests(b.first, b.count)} on ${b.home}`,
      `worker ${b.worker}, from step ${number(b.step)}`,
      `${clock(b.since, true)} – ${clock(b.until, true)}, ${duration(b.until - b.since)}`,
    ]);
  const both = `${b.home} · ${ests(b.first, b.count)}`;
  const label = high >= 13 ? fitting(fitting(both, wide) === both ? both : b.home, wide) : "";
  return svg(
    "g",
    { class: `span ${colour(b.home)}`, on: { pointermove: tellIt, pointerleave: untip } },
    svg("rect", {
      x: from + 0.5,
      y: top + 0.75,
      width: Math.max(0.5, wide - 1),
      height: Math.max(1, high - 1.5),
      rx: Math.min(4, high / 4),
    }),
    label && svg("text", { x: from + 5, y: top + high / 2 + 4 }, label),
  );
}
