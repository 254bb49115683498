// Parts of a job's page that only show: proposals, pauses, what was submitted.

import { plainTable } from "/static/charts/frame.js";
import { h } from "/static/dom.js";
import { count, devices, duration, number, percent } from "/static/format.js";
import { ENDED, empty } from "/static/views/parts.js";

function proposalTable(title, list) {
  if (!list.length) return null;
  return [
    h("h3", {}, title),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
      plainTable(
        ["With", "Speed-up", "Steps/s", "Answer"],
        list.map((p) => [
          devices(p.devices),
          [
            `× ${number(p.speedup)}`,
            !p.sure &&
              h(
                "span",
                { class: "tag", title: "From the performance model; not measured on these devices yet." },
                "estimate",
              ),
          ],
          number(p.rate),
          p.answer || "–",
        ]),
        title,
      ),
    ),
  ];
}

/** What the job would gain from more devices, what it would lose with fewer, and what the scheduler said. */
export function proposals(job) {
  if (!job.grow.length && !job.shrink.length) {
    const ended = ENDED.includes(job.state);
    return empty("None.", ended ? "The job has ended." : "A running job makes them once it knows its own speed.");
  }
  return [proposalTable("To grow", job.grow), proposalTable("To shrink", job.shrink)];
}

/** How long the job stood still at each switch. */
export function pauses(job) {
  const all = job.pauses;
  if (!all.length) return empty("None.", "The plan has not changed under way.");
  const sorted = [...all].sort((a, b) => a - b);
  const sum = all.reduce((a, b) => a + b, 0);
  const life = job.started ? (job.ended ?? Date.now() / 1000) - job.started : 0;
  const share = life > 0 ? `, ${sum / life < 0.001 ? "less than 0.1 %" : percent(sum / life)} of its time` : "";
  return [
    h(
      "p",
      {},
      `${count(all.length, "switch", "switches")}: ${duration(sum)} in all${share}. `,
      `Median ${duration(sorted[Math.floor(sorted.length / 2)])}, longest ${duration(sorted.at(-1))}.`,
    ),
    spark(all),
  ];
}

function spark(values) {
  const top = Math.max(...values);
  return h(
    "div",
    { class: "spark", "aria-hidden": "true" },
    values.slice(-80).map((v) => {
      const bar = h("span", { title: duration(v) });
      bar.style.height = `${Math.max(4, (100 * v) / top)}%`;
      return bar;
    }),
  );
}

/** The submission, as it would stand in job.yaml; what was left out is left out. */
export function spec(job) {
  const told = Object.entries(job.spec).filter(
    ([, v]) =>
      v !== null &&
      v !== "" &&
      !(Array.isArray(v) && !v.length) &&
      !(typeof v === "object" && !Array.isArray(v) && !Object.keys(v).length),
  );
  return h(
    "details",
    {},
    h("summary", {}, "job.yaml"),
    h(
      "pre",
      { tabindex: "0" },
      told.map(([k, v]) => `${k}: ${typeof v === "object" ? JSON.stringify(v) : v}`).join("\n"),
    ),
  );
}
