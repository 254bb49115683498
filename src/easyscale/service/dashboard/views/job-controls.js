// Scale, pause, resume, cancel. A button is there for all, and works for who may, when it makes sense.

import { part, post } from "/static/api.js";
import { ask } from "/static/dialog.js";
import { announce, h } from "/static/dom.js";
import { count } from "/static/format.js";
import { ENDED, labelled, mayChange } from "/static/views/parts.js";

const NEVER = { pausing: "It is pausing already.", paused: "It is paused.", stopping: "It is stopping." };

/** Why this cannot be done to a job in this state; null where it can. */
function notNow(action, state) {
  if (ENDED.includes(state)) return `The job is ${state}.`;
  if (action === "pause") return NEVER[state] || null;
  if (action === "resume") return ["paused", "pausing"].includes(state) ? null : "The job is not paused.";
  return state === "stopping" ? "The job is stopping." : null;
}

export function controls(you, jobNow, done) {
  const buttons = {};
  const make = (action, text, act, look = "") => {
    buttons[action] = h("button", { type: "button", class: look, disabled: true, on: { click: act } }, text);
    return buttons[action];
  };
  const send = (action, body) => post(`/jobs/${part(jobNow().id)}/${action}`, body);

  async function confirmed(options) {
    const job = await ask(options);
    if (!job) return;
    done(job);
    announce(options.told);
  }

  const scale = () => {
    const job = jobNow();
    const field = (value) =>
      h("input", { type: "number", min: "1", max: String(job.ests), step: "1", required: true, value });
    const least = field(job.spec.min_workers);
    const most = field(job.spec.max_workers ?? job.ests);
    return confirmed({
      title: `Scale ${job.name}`,
      yes: "Scale",
      told: "The new limits hold.",
      body: [
        h(
          "p",
          {},
          `The scheduler gives the job between so many workers. It has ${count(job.ests, "EST")}, so more than `,
          `${job.ests} cannot help. The bits of the model stay the same.`,
        ),
        h("div", { class: "row" }, labelled("At least", least), labelled("At most", most)),
      ],
      act: () => send("scale", { min_workers: Number(least.value), max_workers: Number(most.value) }),
    });
  };
  const pause = () =>
    confirmed({
      title: `Pause ${jobNow().name}?`,
      yes: "Pause",
      told: "The job pauses.",
      body: [
        h(
          "p",
          {},
          "It writes a checkpoint, gives its devices back and waits until somebody resumes it. Nothing is lost.",
        ),
      ],
      act: () => send("pause"),
    });
  const resume = () =>
    confirmed({
      title: `Resume ${jobNow().name}?`,
      yes: "Resume",
      told: "The job is in the queue again.",
      body: [h("p", {}, "It waits for devices again and goes on where it stopped.")],
      act: () => send("resume"),
    });
  const cancel = () =>
    confirmed({
      title: `Cancel ${jobNow().name}?`,
      yes: "Cancel the job",
      no: "Keep it",
      danger: true,
      told: "The job is being cancelled.",
      body: [h("p", {}, "The job ends and does not come back. Checkpoints that it has written stay.")],
      act: () => send("cancel"),
    });

  const note = h("p", { class: "hint", id: "controls-note" });
  const node = h(
    "div",
    { class: "controls", role: "group", "aria-label": "Change the job", hidden: true },
    make("scale", "Scale", scale),
    make("pause", "Pause", pause),
    make("resume", "Resume", resume),
    make("cancel", "Cancel", cancel, "danger"),
    note,
  );
  return {
    node,
    show(job) {
      const barred = mayChange(you, job.team);
      node.hidden = false;
      note.textContent = barred || "";
      for (const [action, button] of Object.entries(buttons)) {
        const reason = barred || notNow(action, job.state);
        button.disabled = Boolean(reason);
        button.title = reason || "";
        if (barred) button.setAttribute("aria-describedby", "controls-note");
      }
      buttons.resume.hidden = !["paused", "pausing"].includes(job.state);
      buttons.pause.hidden = !buttons.resume.hidden;
    },
  };
}
