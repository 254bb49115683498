// Dialogs: the browser's own <dialog> keeps the focus inside, closes on Escape and gives the focus back.

import { problemBox } from "/static/problem.js";
import { fill, fresh, h } from "/static/dom.js";

/**
 * Ask a person. `body` are elements (may hold fields); `act()` does the work and may throw a Refused, which is shown in
 * the dialog. Resolves to what `act` gave, or to null when the person left it.
 */
export function ask({ title, body = [], yes, no = "Back", danger = false, act }) {
  const name = fresh("dialog");
  const trouble = h("div", { role: "alert" });
  const sure = h("button", { type: "submit", class: danger ? "danger" : "primary" }, yes);
  const leave = h("button", { type: "button" }, no);
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: name }, title),
    body,
    trouble,
    h("div", { class: "actions" }, leave, sure),
  );
  const box = h("dialog", { "aria-labelledby": name }, form);
  document.body.append(box);
  return new Promise((resolve) => {
    let result = null;
    box.addEventListener("close", () => {
      box.remove();
      resolve(result);
    });
    leave.addEventListener("click", () => box.close());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      sure.disabled = true;
      fill(trouble);
      try {
        result = (await act()) ?? true;
        box.close();
      } catch (error) {
        fill(trouble, problemBox(error));
        sure.disabled = false;
        sure.focus();
      }
    });
    box.showModal();
    const first = form.querySelector("input, select, textarea");
    (first || leave).focus(); // where something is lost, Enter alone does not do it
  });
}

/** Show something that is seen this once, e.g. a new token. */
export function show({ title, body, done = "Done" }) {
  const name = fresh("dialog");
  const close = h("button", { type: "button", class: "primary" }, done);
  const box = h(
    "dialog",
    { "aria-labelledby": name },
    h("h2", { id: name }, title),
    body,
    h("div", { class: "actions" }, close),
  );
  document.body.append(box);
  return new Promise((resolve) => {
    box.addEventListener("close", () => {
      box.remove();
      resolve();
    });
    close.addEventListener("click", () => box.close());
    box.showModal();
  });
}
