// What went wrong, always in three parts: what happened, why, what to do now.

import { Refused } from "/static/api.js";
import { h } from "/static/dom.js";

export function problemOf(error) {
  if (error instanceof Refused) return error.problem;
  console.error(error); // a mistake of this page's own
  return {
    what: "This page made a mistake.",
    why: String(error && error.message ? error.message : error),
    now: "reload the page; if it comes again, report it with this text.",
  };
}

export function problemBox(error) {
  const { what, why, now } = problemOf(error);
  return h(
    "div",
    { class: "problem" },
    h("p", { class: "what" }, what),
    why && h("p", {}, h("span", { class: "label" }, "Why: "), why),
    now && h("p", {}, h("span", { class: "label" }, "Now: "), now),
  );
}
