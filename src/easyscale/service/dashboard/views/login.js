// A token once; from then on the browser holds a cookie that no script can read.

import { Refused, post } from "/static/api.js";
import { fill, h } from "/static/dom.js";
import { problemBox } from "/static/problem.js";

export function login(done, problem, theme) {
  const field = h("input", {
    type: "password",
    id: "token",
    name: "token",
    required: true,
    autocomplete: "current-password",
    spellcheck: "false",
    "aria-describedby": "token-hint",
    placeholder: "est_…",
  });
  const trouble = h("div", { role: "alert" });
  const button = h("button", { type: "submit", class: "primary" }, "Log in");
  const form = h(
    "form",
    { class: "card login" },
    h("h1", {}, h("img", { src: "/static/icon.svg", alt: "", width: 34, height: 34 }), "EasyScale"),
    h("label", { for: "token" }, "Token"),
    field,
    h(
      "p",
      { class: "hint", id: "token-hint" },
      "The first token is printed by ",
      h("code", {}, "easyscale up"),
      ". An admin makes more.",
    ),
    trouble,
    h("div", { class: "actions" }, theme, button),
  );
  if (problem) fill(trouble, problemBox(new Refused(401, problem)));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    fill(trouble);
    try {
      await post("/login", { token: field.value.trim() }, { quiet: true });
      await done();
    } catch (error) {
      fill(trouble, problemBox(error));
      field.select();
      field.focus();
    } finally {
      button.disabled = false;
    }
  });
  return h("main", { id: "main", class: "center", tabindex: "-1" }, form);
}
