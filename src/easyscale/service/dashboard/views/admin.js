// For admins: devices, teams, users, tokens, and who did what.

import { fill, h } from "/static/dom.js";
import { audit, teams, tokens, users } from "/static/views/admin-people.js";
import { deviceAdmin } from "/static/views/admin-devices.js";
import { heading } from "/static/views/parts.js";

const PAGES = {
  devices: ["Devices", deviceAdmin],
  teams: ["Teams", teams],
  users: ["Users", users],
  tokens: ["Tokens", tokens],
  audit: ["Audit", audit],
};

export function mount(root, { info }, [word = "devices"]) {
  if (info.you.role !== "admin") {
    fill(
      root,
      heading("Admin"),
      h(
        "div",
        { class: "problem" },
        h("p", { class: "what" }, "This page is for admins."),
        h("p", {}, h("span", { class: "label" }, "Why: "), `your role is ${info.you.role}.`),
        h("p", {}, h("span", { class: "label" }, "Now: "), "ask an admin."),
      ),
    );
    return { stop() {} };
  }
  const [title, page] = PAGES[word] || PAGES.devices;
  document.title = `${title} · Admin · EasyScale`;
  const body = h("div", { class: "admin" });
  fill(
    root,
    heading(`Admin: ${title.toLowerCase()}`),
    h(
      "nav",
      { class: "tabs", "aria-label": "Admin pages" },
      h(
        "ul",
        {},
        Object.entries(PAGES).map(([key, [name]]) =>
          h("li", {}, h("a", { href: `#/admin/${key}`, "aria-current": name === title ? "page" : null }, name)),
        ),
      ),
    ),
    body,
  );
  return page(body);
}
