// Asking the service. What it refuses comes back as a `Refused` with the three parts of a Problem.

const BASE = "/api/v1";
const listeners = { loggedOut: new Set(), reach: new Set() };

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.what);
    this.status = status;
    this.problem = problem;
  }
}

/** `act` is called when the service no longer knows us. Returns what ends that. */
export function onLoggedOut(act) {
  listeners.loggedOut.add(act);
  return () => listeners.loggedOut.delete(act);
}

/** `act(true or false)` after each request: whether the service answered at all. */
export function onReach(act) {
  listeners.reach.add(act);
  return () => listeners.reach.delete(act);
}

let silent = false;

/** Nobody is logged in: what a view that is being left still wants to know is not asked. */
export function silence(on) {
  silent = on;
}

function address(path, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) words.append(name, String(one));
  }
  const text = words.toString();
  return `${BASE}${path}${text ? `?${text}` : ""}`;
}

async function problemOf(answer) {
  try {
    const body = await answer.json();
    if (typeof body.what === "string") return { what: body.what, why: body.why || "", now: body.now || "" };
  } catch {
    // no JSON: something between us and the service answered
  }
  return {
    what: `The service answered ${answer.status}.`,
    why: "the answer is not one of the service's own; something between may have sent it.",
    now: "try again in a moment; if it stays so, look into the service's log.",
  };
}

async function ask(method, path, { query, body, signal, quiet } = {}) {
  if (silent && !quiet) return new Promise(() => {}); // never: who waits for it is gone
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-EasyScale"] = "1"; // a form on another site cannot send this
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(address(path, query), {
      method,
      headers,
      signal,
      credentials: "same-origin",
      cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    for (const act of listeners.reach) act(false);
    throw new Refused(0, {
      what: "The service does not answer.",
      why: "it is stopped or restarting, or the network is down.",
      now: "wait: this page tries again by itself. Running jobs go on without the service.",
    });
  }
  for (const act of listeners.reach) act(true);
  if (!answer.ok) {
    if (answer.status === 401 && !quiet) for (const act of listeners.loggedOut) act();
    throw new Refused(answer.status, await problemOf(answer));
  }
  return answer.status === 204 ? null : answer.json();
}

export const get = (path, query, more = {}) => ask("GET", path, { query, ...more });
export const post = (path, body, more = {}) => ask("POST", path, { body, ...more });
export const del = (path, more = {}) => ask("DELETE", path, more);

/** A part of a path, escaped. */
export const part = encodeURIComponent;
