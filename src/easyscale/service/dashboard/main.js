// The page: who is logged in, which view the address asks for, and the bar that is on all of them.

import { Refused, get, onLoggedOut, post, silence } from "/static/api.js";
import { announce, fill, h, write } from "/static/dom.js";
import { tick } from "/static/format.js";
import * as live from "/static/live.js";
import { problemBox } from "/static/problem.js";
import * as admin from "/static/views/admin.js";
import * as cluster from "/static/views/cluster.js";
import * as job from "/static/views/job.js";
import * as jobs from "/static/views/jobs.js";
import { login } from "/static/views/login.js";
import * as whatIf from "/static/views/what-if.js";

const ROUTES = [
  [/^\/?$/, cluster, "Cluster"],
  [/^\/jobs$/, jobs, "Jobs"],
  [/^\/jobs\/([^/]+)$/, job, "Job"],
  [/^\/what-if$/, whatIf, "What if"],
  [/^\/admin(?:\/([a-z]+))?$/, admin, "Admin"],
];
const LINKS = [
  ["#/", "Cluster"],
  ["#/jobs", "Jobs"],
  ["#/what-if", "What if"],
  ["#/admin", "Admin"],
];
const STATES = {
  live: "live",
  connecting: "connecting",
  reconnecting: "reconnecting",
  resting: "resting",
  off: "off",
};

const KNOWN = "easyscale-known";
const QUIET = 3000; // milliseconds; a break that is over by then is not spoken of

const app = document.getElementById("app");
let context = null; // {info, go}: who asks, for the views
let current = null; // what the present view gave: {stop}
let main = null;
let unwatch = null;

// ------------------------------------------------------------------------------------------------ the frame

function themeButton() {
  const button = h("button", { type: "button", class: "quiet" });
  const name = () => {
    const dark = window.easyscaleTheme.dark();
    button.setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
    button.title = button.getAttribute("aria-label");
    write(button, dark ? "☀" : "☾");
  };
  button.addEventListener("click", () => {
    window.easyscaleTheme.choose(window.easyscaleTheme.dark() ? "light" : "dark");
    name();
  });
  name();
  return button;
}

function connection() {
  const word = h("span", { class: "word" });
  const node = h(
    "span",
    { class: "link-state", id: "connection" },
    h("span", { class: "dot", "aria-hidden": "true" }),
    word,
  );
  const hints = {
    live: "News arrives as it happens.",
    reconnecting: "The stream of news broke off. This page tries again by itself.",
    resting: "Nobody looked at this page for a while.",
    connecting: "",
    off: "",
  };
  let told = "live"; // what a screen reader knows
  let timer = null;
  const tell = (word, text) => {
    clearTimeout(timer);
    if (word === told) return;
    timer = setTimeout(
      () => {
        told = word;
        announce(text);
      },
      word === "live" ? 0 : QUIET,
    );
  };
  const show = (state) => {
    node.dataset.state = state;
    node.title = hints[state];
    write(word, STATES[state] + (state === "reconnecting" ? " …" : ""));
    if (state === "reconnecting") tell("reconnecting", "The connection to the service broke off. Reconnecting.");
    if (state === "live") tell("live", "The connection to the service is back.");
  };
  if (unwatch) unwatch(); // of an earlier login
  unwatch = live.onState(show);
  show(live.now());
  return node;
}

function frame(info) {
  const { user, team, role } = info.you;
  const links = LINKS.filter(([, name]) => name !== "Admin" || role === "admin");
  const nav = h(
    "nav",
    { "aria-label": "Main" },
    h(
      "ul",
      {},
      links.map(([to, name]) => h("li", {}, h("a", { href: to }, name))),
    ),
  );
  const out = h("button", { type: "button", class: "quiet", on: { click: logOut } }, "Log out");
  main = h("main", { id: "main", tabindex: "-1" });
  fill(
    app,
    h(
      "header",
      { class: "top" },
      h(
        "a",
        { class: "brand", href: "#/" },
        h("img", { src: "/static/icon.svg", alt: "", width: 26, height: 26 }),
        "EasyScale",
      ),
      nav,
      h(
        "div",
        { class: "tools" },
        connection(),
        h(
          "span",
          { class: "who", title: `team ${team}, role ${role}` },
          user,
          h("span", { class: "role" }, ` ${team} · ${role}`),
        ),
        themeButton(),
        out,
      ),
    ),
    main,
    h(
      "footer",
      {},
      `EasyScale ${info.version} · policy ${info.policy} · back end ${info.backend} · `,
      h("a", { href: "/api/v1/docs" }, "API"),
    ),
  );
}

async function logOut() {
  leave();
  silence(true);
  try {
    await post("/logout", undefined, { quiet: true });
  } catch (error) {
    if (!(error instanceof Refused)) throw error; // then the cookie is worth nothing already
  }
  showLogin();
}

// ------------------------------------------------------------------------------------------------ login and start

function leave() {
  if (current) current.stop();
  current = null;
  live.stop();
}

function showLogin(problem = null) {
  leave();
  silence(true);
  known("no");
  context = null;
  document.title = "Log in · EasyScale";
  fill(app, login(begin, problem, themeButton()));
  const field = app.querySelector("input");
  if (field) field.focus();
}

async function begin() {
  const info = await get("/info", {}, { quiet: true });
  known("yes");
  silence(false);
  context = { info, go: (to) => (location.hash = to) };
  frame(info);
  live.start();
  route(false);
}

/** Whether a login is worth a try: asking without a cookie would only put a refusal into the browser's console. */
function known(word) {
  try {
    if (word !== undefined) localStorage.setItem(KNOWN, word);
    return localStorage.getItem(KNOWN) !== "no" && localStorage.getItem(KNOWN) !== null;
  } catch {
    return true; // storage is forbidden: ask
  }
}

async function first() {
  if (!known()) return showLogin();
  try {
    await begin();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) showLogin();
    else fill(app, h("main", { id: "main" }, h("h1", {}, "EasyScale"), problemBox(error)));
    if (error instanceof Refused && error.status === 0) setTimeout(first, 3000);
  }
}

// ------------------------------------------------------------------------------------------------ the address

function route(moved = true) {
  if (!context) return;
  const [path, words = ""] = location.hash.replace(/^#/, "").split("?");
  const found = ROUTES.map(([pattern, view, name]) => [pattern.exec(path), view, name]).find(([match]) => match);
  if (current) current.stop();
  current = null;
  fill(main);
  if (!found) {
    notHere(path);
    return;
  }
  const [match, view, name] = found;
  document.title = `${name} · EasyScale`;
  for (const link of app.querySelectorAll("nav[aria-label=Main] a")) {
    const to = link.getAttribute("href").slice(1);
    const here = to === "/" ? path === "/" || path === "" : path === to || path.startsWith(`${to}/`);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const parts = match.slice(1).map((word) => (word === undefined ? undefined : decodeURIComponent(word)));
  current = view.mount(main, context, parts, new URLSearchParams(words));
  if (moved) {
    const heading = main.querySelector("h1");
    if (heading) heading.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function notHere(path) {
  document.title = "Not found · EasyScale";
  fill(
    main,
    h("h1", { tabindex: "-1" }, "There is no such page"),
    h("p", {}, `Nothing is at ${path}. `, h("a", { href: "#/" }, "To the cluster")),
  );
}

addEventListener("hashchange", () => route());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is that of the view
  document.getElementById("main")?.focus();
});
onLoggedOut(() => {
  if (!context) return;
  showLogin({
    what: "You are logged out.",
    why: "the token has expired or was revoked, or the login has ended.",
    now: "log in again.",
  });
});
setInterval(tick, 5000);
first();
