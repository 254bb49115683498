// What if another policy shared the cluster? The service runs its simulator on the present queue.

import { post } from "/static/api.js";
import { bars } from "/static/charts/bars.js";
import { plainTable } from "/static/charts/frame.js";
import { announce, fill, h } from "/static/dom.js";
import { count, duration, number, percent } from "/static/format.js";
import { problemBox } from "/static/problem.js";
import { empty, heading } from "/static/views/parts.js";

const MOST = 8;

/** Every policy that there is, and what it is after. */
export const POLICIES = [
  ["easyscale", "average completion time, with a floor of fairness"],
  ["easyscale-heter", "speed-up of each next device, of any type"],
  ["easyscale-homo", "the same, one type a job"],
  ["fifo", "first come, first served"],
  ["backfill", "fifo, but small jobs fill the gaps"],
  ["srtf", "the shortest rest first; knows the work"],
  ["tiresias", "little served first; lengths unknown"],
  ["optimus", "sum of remaining times"],
  ["gavel", "the largest least share, over types"],
  ["sia", "goodput with fairness"],
  ["afs", "average completion time, by pairs"],
  ["sidecar", "few restarts"],
  ["elastic-batch", "sum of speed-ups"],
];
const FIRST = ["easyscale", "fifo", "backfill"];

export function mount(root, { info }) {
  const trouble = h("div", { role: "alert" });
  const result = h(
    "div",
    { class: "result" },
    empty(
      "Nothing compared yet.",
      "Choose policies and run them on the present queue. Nothing changes in the cluster.",
    ),
  );
  const boxes = POLICIES.map(([name, about]) => {
    const box = h("input", {
      type: "checkbox",
      name: "policy",
      value: name,
      checked: FIRST.includes(name) || name === info.policy,
    });
    return {
      box,
      node: h(
        "label",
        { class: "policy" },
        box,
        h(
          "span",
          {},
          h("b", {}, name),
          name === info.policy && h("span", { class: "tag" }, "in use"),
          h("span", { class: "hint" }, about),
        ),
      ),
    };
  });
  const run = h("button", { type: "submit", class: "primary" }, "Run the comparison");
  const form = h(
    "form",
    { class: "card", "aria-label": "Choose policies" },
    h(
      "fieldset",
      { class: "policies" },
      h("legend", {}, `Policies, up to ${MOST}`),
      boxes.map((b) => b.node),
    ),
    trouble,
    h("div", { class: "actions" }, run),
  );
  fill(
    root,
    heading("What if?"),
    h(
      "p",
      { class: "lead" },
      "The simulator runs the jobs that wait and run now, once under each policy, in virtual time.",
    ),
    form,
    result,
  );

  let left = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const chosen = boxes.filter(({ box }) => box.checked).map(({ box }) => box.value);
    fill(trouble);
    if (!chosen.length || chosen.length > MOST) {
      fill(
        trouble,
        h(
          "div",
          { class: "problem" },
          h("p", { class: "what" }, chosen.length ? `${chosen.length} policies are too many.` : "No policy is chosen."),
          h("p", {}, `Choose 1 to ${MOST}.`),
        ),
      );
      return;
    }
    run.disabled = true;
    run.textContent = "Simulating …";
    result.setAttribute("aria-busy", "true");
    try {
      const comparison = await post("/what-if", { policies: chosen });
      if (left) return;
      fill(result, show(comparison, info.policy));
      announce(`The comparison of ${count(chosen.length, "policy", "policies")} is there.`);
    } catch (error) {
      fill(trouble, problemBox(error));
    } finally {
      run.disabled = false;
      run.textContent = "Run the comparison";
      result.removeAttribute("aria-busy");
    }
  });
  return { stop: () => (left = true) };
}

function show({ jobs, figures, note }, inUse) {
  if (!jobs || !figures.length)
    return empty(
      "Nothing to compare.",
      note || "There are no jobs that wait or run.",
      "easyscale submit --ests 4 -- train.py",
    );
  const rows = (pick, text) =>
    figures.map((f) => ({ name: f.policy, value: f[pick], text: text(f[pick]), mark: f.policy === inUse && "in use" }));
  return [
    h("h2", {}, `${count(jobs, "job")} under ${count(figures.length, "policy", "policies")}`),
    note && h("p", { class: "hint" }, note),
    h(
      "div",
      { class: "bar-row" },
      bars("Average completion time", rows("jct", duration)),
      bars("Time until all are done", rows("makespan", duration)),
      bars("Devices used", rows("utilization", percent), { least: false }),
    ),
    h(
      "div",
      { class: "card scroll", tabindex: "0", role: "region", "aria-label": "The comparison as a table" },
      plainTable(
        ["Policy", "Average completion", "Median completion", "All done after", "Devices used", "Switches a job"],
        figures.map((f) => [
          [h("b", {}, f.policy), f.policy === inUse && h("span", { class: "tag" }, "in use")],
          duration(f.jct),
          duration(f.median_jct),
          duration(f.makespan),
          percent(f.utilization),
          number(f.switches),
        ]),
        "The comparison",
      ),
    ),
  ];
}
