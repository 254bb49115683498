// Polite refreshing: however many records arrive, the service is asked once in a while, and never twice at once.

/**
 * `work` is an async function. Returns {ask, stop}: `ask()` runs it now or when `gap` milliseconds have passed since
 * the last time; with `every`, it also runs by itself that often. A page that nobody looks at waits.
 */
export function paced(work, { gap = 2000, every = 0 } = {}) {
  let last = -Infinity;
  let timer = null;
  let busy = false;
  let wanted = false;
  let ended = false;

  async function run() {
    timer = null;
    if (ended) return;
    if (busy || document.hidden) {
      wanted = true;
      return;
    }
    busy = true;
    wanted = false;
    last = performance.now();
    try {
      await work();
    } finally {
      busy = false;
      if (wanted) ask();
    }
  }

  function ask() {
    if (ended || timer !== null) return;
    timer = setTimeout(run, Math.max(0, last + gap - performance.now()));
  }

  function seen() {
    if (!document.hidden && wanted) ask();
  }

  document.addEventListener("visibilitychange", seen);
  const beat = every ? setInterval(ask, every) : null;
  return {
    ask,
    stop() {
      ended = true;
      clearTimeout(timer);
      clearInterval(beat);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
