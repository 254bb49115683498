// Pieces that several views show.

import { announce, h, write } from "/static/dom.js";

export const ENDED = ["finished", "failed", "cancelled"];
export const STATES = [
  "queued",
  "starting",
  "running",
  "pausing",
  "paused",
  "stopping",
  "finished",
  "failed",
  "cancelled",
];

/** The state as a word in a coloured pill; the word alone says it all. */
export function pill(state) {
  const node = h("span", { class: "pill" });
  setPill(node, state);
  return node;
}

export function setPill(node, state) {
  write(node, state);
  if (node.dataset.state !== state) node.dataset.state = state;
}

export function jobLink(id) {
  return `#/jobs/${encodeURIComponent(id)}`;
}

/** Nothing there: say so, and what to do. */
export function empty(what, now, command = null) {
  return h(
    "div",
    { class: "empty" },
    h("p", {}, what),
    now && h("p", { class: "hint" }, now),
    command && copyable(command),
  );
}

/** A piece of code with a button that copies it. */
export function copyable(text, name = "Copy") {
  const button = h("button", { type: "button", class: "small" }, name);
  button.addEventListener("click", async () => {
    const done = await copy(text);
    write(button, done ? "Copied" : "Copy by hand");
    announce(done ? "Copied." : "The browser does not allow copying; select the text by hand.");
    setTimeout(() => write(button, name), 2000);
  });
  return h("span", { class: "copyable" }, h("code", {}, text), button);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return oldCopy(text); // without TLS, on another host, there is no clipboard
  }
}

function oldCopy(text) {
  const field = h("textarea", { class: "unseen", value: text, "aria-hidden": "true" });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

export function heading(text) {
  return h("h1", { tabindex: "-1" }, text);
}

/** A field with its label. */
export function labelled(text, field, hint = null) {
  return h("label", { class: "field" }, h("span", {}, text), field, hint && h("span", { class: "hint" }, hint));
}

/** Choices of which one is taken: real radio buttons, drawn as a row. */
export function choices(name, options, chosen, act, legend) {
  return h(
    "fieldset",
    { class: "choices" },
    h("legend", { class: "unseen" }, legend),
    options.map(([value, text]) =>
      h(
        "label",
        {},
        h("input", { type: "radio", name, value, checked: value === chosen, on: { change: () => act(value) } }),
        h("span", {}, text),
      ),
    ),
  );
}

/** May this person change jobs of this team? */
export function mayChange(you, team) {
  if (you.role === "admin") return null;
  if (you.role === "viewer") return "Your role, viewer, may look but not change.";
  return you.team === team ? null : `Only team ${team} and admins may change this job.`;
}
