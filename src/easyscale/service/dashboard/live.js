// The stream of records. One connection for the whole page; it is taken up again where it broke off.

import { get, onReach } from "/static/api.js";

const FIRST_WAIT = 500; // milliseconds; doubled at each failure
const LONGEST_WAIT = 10_000;
const HIDDEN = 60_000; // a page hidden for so long gives its connection back; browsers allow few to a host

let source = null;
let last = 0; // the newest seq that we have seen
let state = "off"; // off, connecting, live, reconnecting, resting
let wait = FIRST_WAIT;
let timer = null;
let hiding = null;

const records = new Set();
const states = new Set();
const comebacks = new Set();

function become(word) {
  if (state === word) return;
  const before = state;
  state = word;
  for (const act of states) act(word);
  if (word === "live" && (before === "reconnecting" || before === "resting")) for (const act of comebacks) act();
}

function open() {
  timer = null;
  source = new EventSource(`/api/v1/stream?after=${last}`);
  source.addEventListener("open", () => {
    wait = FIRST_WAIT;
    become("live");
  });
  source.addEventListener("record", (event) => {
    const record = JSON.parse(event.data);
    if (record.seq <= last) return;
    last = record.seq;
    for (const act of records) act(record);
  });
  source.addEventListener("error", broken);
}

function broken() {
  if (source) source.close(); // the browser's own retry forgets what we know, and gives up on some answers
  source = null;
  if (state === "off" || state === "resting" || timer !== null) return;
  become("reconnecting");
  timer = setTimeout(again, wait * (0.75 + Math.random() / 2)); // not all pages at the same moment
  wait = Math.min(2 * wait, LONGEST_WAIT);
}

async function again() {
  timer = null;
  if (state !== "reconnecting") return;
  try {
    // says whether the service is there, whether it still knows us, and whether it is the one that we knew
    last = Math.min(last, (await get("/records", { limit: 1, newest: true })).last);
  } catch {
    broken();
    return;
  }
  if (state === "reconnecting" && source === null) open();
}

function seen() {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => {
      if (state === "off") return;
      become("resting");
      if (source) source.close();
      source = null;
    }, HIDDEN);
  } else if (state === "resting") {
    become("reconnecting");
    open();
  }
}

/** Connect, from the newest record on. */
export async function start() {
  stop();
  become("connecting");
  try {
    last = (await get("/records", { limit: 1, newest: true })).last;
  } catch {
    if (state === "connecting") broken(); // it is tried again
    return;
  }
  if (state === "connecting") open();
}

export function stop() {
  clearTimeout(timer);
  timer = null;
  if (source) source.close();
  source = null;
  wait = FIRST_WAIT;
  become("off");
}

document.addEventListener("visibilitychange", seen);
onReach((reached) => {
  // A dead connection can look open for minutes; a request that found nobody knows better.
  if (!reached && state === "live") broken();
});

const joined = (set) => (act) => {
  set.add(act);
  return () => set.delete(act);
};

/** Each returns what ends it. */
export const onRecord = joined(records);
export const onState = joined(states);
/** The stream is back after a break: what it did not carry may have changed too. */
export const onComeback = joined(comebacks);
export const now = () => state;
