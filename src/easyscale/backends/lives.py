"""Whether a worker or master lives, by what is written down of it: the pid and the word of its start.

The word tells the back end. The pid of a process elsewhere means nothing here: it is never looked up or signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal

from easyscale.backends.apart import process_start

RAY = "ray:"
# In a master's environment: where it is kept, for a master that is not looked for on this machine alone.
KEPT_VARIABLE = "EASYSCALE_KEPT"


def is_alive(pid: int, started: str) -> bool:
    """The process lives and is the same one, not a later one with its pid. In a cluster out of reach it does not."""
    if started.startswith(RAY):
        with contextlib.suppress(Exception):  # no Ray, no cluster: whatever the reason, nobody can tell of its life
            from easyscale.backends.ray import launcher

            return launcher.is_alive(started)
        return False
    return pid > 0 and process_start(pid) == started


def own_start() -> str:
    """The word by which others find out whether this process lives."""
    return os.environ.get(KEPT_VARIABLE) or process_start(os.getpid()) or ""


def kill(pid: int, started: str) -> None:
    """For a worker that was just alive."""
    if started.startswith(RAY):
        from easyscale.backends.ray import launcher

        launcher.kill(started)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
