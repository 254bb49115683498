// Numbers with units, times relative with the absolute one in the title.

import { h, write } from "/static/dom.js";

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

/** 12,345 or 0.02134: four digits that mean something. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return plain.format(value);
  if (size > 0 && size < 1e-4) return value.toExponential(2);
  return short.format(value);
}

export function percent(part) {
  return `${Math.round(100 * part)}\u00a0%`;
}

/** Seconds for people: 250 ms, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${short.format(Math.round(seconds * 10) / 10)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  const parts = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const at = parts.findIndex(([size]) => s >= size);
  const [big, bigName] = parts[at];
  const [small, smallName] = parts[at + 1];
  const rest = Math.floor((s % big) / small);
  return `${Math.floor(s / big)} ${bigName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

export function bytes(size) {
  for (const [unit, word] of [
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
  ]) {
    if (size >= unit) return `${(size / unit).toFixed(1)} ${word}`;
  }
  return `${size} B`;
}

/** "1 job", "3 jobs", "2 policies". */
export function count(n, word, several = `${word}s`) {
  return `${number(n)} ${n === 1 ? word : several}`;
}

/** {v100: 2, p100: 1} as "2 × v100, 1 × p100". */
export function devices(held) {
  const kinds = Object.entries(held || {}).filter(([, n]) => n > 0);
  return kinds.length ? kinds.map(([kind, n]) => `${n} × ${kind}`).join(", ") : "none";
}

/** ESTs 0–3, or EST 2. */
export function ests(first, many) {
  return many === 1 ? `EST ${first}` : `ESTs ${first}–${first + many - 1}`;
}

// Made once: to make one costs more than a row of a table.
const whole = new Intl.DateTimeFormat("en-GB", {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  timeZoneName: "short",
});
const minutes = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const exact = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export function absolute(at) {
  return whole.format(at * 1000);
}

export function clock(at, seconds = false) {
  return (seconds ? exact : minutes).format(at * 1000);
}

export function relative(at, now = Date.now() / 1000) {
  const gap = now - at;
  if (Math.abs(gap) < 5) return "just now";
  const rough = duration(Math.abs(gap) < 60 ? Math.round(Math.abs(gap) / 5) * 5 : Math.abs(gap)).replace(/ \d+ s$/, "");
  return gap >= 0 ? `${rough} ago` : `in ${rough}`;
}

/** A <time> that stays right by itself: see `tick`. */
export function when(at) {
  const node = h("time", {});
  setTime(node, at);
  return node;
}

/** Point such a <time> at another moment. */
export function setTime(node, at) {
  if (at === null || at === undefined) {
    node.removeAttribute("data-at");
    node.removeAttribute("title");
    write(node, "–");
    return;
  }
  if (node.dataset.at !== String(at)) {
    node.dataset.at = String(at);
    node.setAttribute("datetime", new Date(at * 1000).toISOString());
    node.setAttribute("title", absolute(at));
  }
  write(node, relative(at));
}

/** Bring all relative times up to date. */
export function tick(root = document) {
  for (const node of root.querySelectorAll("time[data-at]")) write(node, relative(Number(node.dataset.at)));
}

const COLOURS = 12;

/** Gives each name a colour class; those that come one after the other get different ones, and a name keeps its own. */
export function palette() {
  const given = new Map();
  return (name) => {
    if (!given.has(name)) given.set(name, given.size % COLOURS);
    return `c${given.get(name)}`;
  };
}

/** Of jobs, all over the page. */
export const colour = palette();
