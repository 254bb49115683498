// Bars for a comparison: one row a policy, the shortest bar or the longest is the best.

import { h } from "/static/dom.js";

/** `rows`: [{name, value, text, mark}]. `least`: whether less is better. The numbers stand beside the bars. */
export function bars(title, rows, { least = true } = {}) {
  const top = Math.max(...rows.map((r) => r.value), 0) || 1;
  const best = least ? Math.min(...rows.map((r) => r.value)) : Math.max(...rows.map((r) => r.value));
  return h(
    "section",
    { class: "bars card" },
    h("h3", {}, title, h("span", { class: "unit" }, least ? " less is better" : " more is better")),
    h(
      "ul",
      {},
      rows.map((row) => {
        const bar = h("span", { class: row.value === best ? "bar best" : "bar" });
        bar.style.width = `${Math.max(0.5, (100 * row.value) / top)}%`;
        return h(
          "li",
          {},
          h("span", { class: "name" }, row.name, row.mark && h("span", { class: "tag" }, row.mark)),
          h("span", { class: "track", "aria-hidden": "true" }, bar),
          h("span", { class: "value" }, row.text, row.value === best && h("span", { class: "unseen" }, ", the best")),
        );
      }),
    ),
  );
}
