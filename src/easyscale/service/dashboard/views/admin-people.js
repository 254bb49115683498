// Teams, users, tokens, audit: a list, and a form to add to it.

import { del, get, part, post } from "/static/api.js";
import { plainTable } from "/static/charts/frame.js";
import { ask, show } from "/static/dialog.js";
import { announce, fill, h } from "/static/dom.js";
import { absolute, when } from "/static/format.js";
import { problemBox } from "/static/problem.js";
import { copyable, empty, labelled } from "/static/views/parts.js";

const NAME = "[A-Za-z0-9]([A-Za-z0-9._\\-]*[A-Za-z0-9])?";
const nameField = (more = {}) =>
  h("input", {
    type: "text",
    required: true,
    maxlength: "63",
    pattern: NAME,
    title: "letters, digits, dots, dashes",
    spellcheck: "false",
    autocomplete: "off",
    ...more,
  });
const select = (...words) =>
  h(
    "select",
    {},
    words.map((w) => h("option", { value: w }, w)),
  );

/** `load()` gives the rows; `row(item, again)` its cells; `fields` and `send()` make the form, where there is one. */
function page(root, { title, head, load, row, none, form }) {
  const trouble = h("div", { role: "alert" });
  const table = h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": title });
  async function again() {
    try {
      const items = await load();
      fill(
        table,
        items.length
          ? plainTable(
              head,
              items.map((item) => row(item, again)),
              title,
            )
          : empty(none, null),
      );
      fill(trouble);
    } catch (error) {
      fill(trouble, problemBox(error));
    }
  }
  fill(root, trouble, table, form && adding(form, again));
  again();
  return { stop() {} };
}

function adding({ title, fields, button, send }, again) {
  const trouble = h("div", { role: "alert" });
  const node = h(
    "form",
    { class: "card" },
    h("h2", {}, title),
    h("div", { class: "row" }, fields),
    trouble,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, button)),
  );
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    fill(trouble);
    try {
      await send();
      announce("Done.");
      await again();
    } catch (error) {
      fill(trouble, problemBox(error));
    }
  });
  return node;
}

const small = (text, label, act, look = "small danger") =>
  h("button", { type: "button", class: look, "aria-label": label, on: { click: act } }, text);

export function teams(root) {
  const name = nameField();
  const quota = h("input", { type: "number", min: "0", max: "1000000", placeholder: "no limit" });
  const borrow = h("input", { type: "checkbox", checked: true });
  return page(root, {
    title: "Teams",
    head: ["Team", "Quota", "Borrows idle devices"],
    none: "No teams.",
    load: () => get("/teams"),
    row: (t) => [t.name, t.quota === null ? "no limit" : `${t.quota} devices`, t.borrow ? "yes" : "no"],
    form: {
      title: "Add or change a team",
      button: "Save",
      fields: [
        labelled("Name", name),
        labelled("Quota, devices", quota),
        h("label", { class: "check" }, borrow, "may borrow idle devices above it"),
      ],
      send: async () => {
        await post("/teams", {
          name: name.value,
          quota: quota.value === "" ? null : Number(quota.value),
          borrow: borrow.checked,
        });
        name.value = quota.value = "";
      },
    },
  });
}

export function users(root) {
  const name = nameField();
  const team = nameField();
  const role = select("user", "viewer", "admin");
  const remove = async (user, again) => {
    const gone = await ask({
      title: `Remove ${user.name}?`,
      yes: "Remove",
      danger: true,
      body: [h("p", {}, "The user's tokens stop working at once. Jobs stay.")],
      act: () => del(`/users/${part(user.name)}`),
    });
    if (gone) again();
  };
  return page(root, {
    title: "Users",
    head: ["User", "Team", "Role", "Actions"],
    none: "No users.",
    load: () => get("/users"),
    row: (u, again) => [u.name, u.team, u.role, small("Remove", `Remove ${u.name}`, () => remove(u, again))],
    form: {
      title: "Add a user",
      button: "Add",
      fields: [labelled("Name", name), labelled("Team", team), labelled("Role", role)],
      send: async () => {
        await post("/users", { name: name.value, team: team.value, role: role.value });
        name.value = "";
      },
    },
  });
}

export function tokens(root) {
  const user = nameField();
  const note = h("input", { type: "text", maxlength: "200", placeholder: "what it is for" });
  const days = h("input", { type: "number", min: "0.01", max: "3650", step: "any", placeholder: "no end" });
  const revoke = async (token, again) => {
    const gone = await ask({
      title: `Revoke token ${token.id}?`,
      yes: "Revoke",
      danger: true,
      body: [h("p", {}, `It belongs to ${token.user}. It stops working at once.`)],
      act: () => del(`/tokens/${part(token.id)}`),
    });
    if (gone) again();
  };
  const state = (t) => {
    if (t.revoked) return ["revoked ", when(t.revoked)];
    if (t.expires && t.expires < Date.now() / 1000) return ["expired ", when(t.expires)];
    return t.expires ? ["until ", when(t.expires)] : "no end";
  };
  return page(root, {
    title: "Tokens",
    head: ["Token", "User", "Note", "Made", "Last used", "Valid", "Actions"],
    none: "No tokens.",
    load: () => get("/tokens"),
    row: (t, again) => [
      h("span", { class: "mono" }, t.id),
      t.user,
      t.note || "–",
      when(t.made),
      t.used ? when(t.used) : "never",
      state(t),
      !t.revoked && small("Revoke", `Revoke token ${t.id}`, () => revoke(t, again)),
    ],
    form: {
      title: "Make a token",
      button: "Make",
      fields: [labelled("User", user), labelled("Note", note), labelled("Valid for, days", days)],
      send: async () => {
        const made = await post("/tokens", {
          user: user.value,
          note: note.value,
          days: days.value === "" ? null : Number(days.value),
        });
        await show({
          title: `Token of ${made.user}`,
          body: [
            h("p", {}, "This is the only time that it is shown. The service keeps no copy that could be read."),
            copyable(made.token),
          ],
          done: "I have kept it",
        });
        user.value = note.value = days.value = "";
      },
    },
  });
}

export function audit(root) {
  return page(root, {
    title: "Audit",
    head: ["When", "Who", "Did", "To", "Result", "From"],
    none: "Nothing yet.",
    load: () => get("/audit", { limit: 200 }),
    row: (a) => [
      h("span", { title: absolute(a.time) }, when(a.time)),
      a.user,
      a.action,
      a.target || "–",
      [a.ok ? "done" : h("b", { class: "bad" }, "refused"), a.detail && `: ${a.detail}`],
      a.address,
    ],
  });
}
