"""What happens to the job while it trains. All of it goes through the command, as from another terminal.

`easyscale ps --json` says which job this process belongs to; run by `--engine ddp` or alone it belongs to none, and
nothing happens.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

EVENTS = {4: ("--workers", "3"), 12: "kill", 18: ("--split", "1,3"), 24: ("--workers", "1")}  # by global step
LONGEST = 100.0  # seconds until new workers are there


def drill(step: int) -> None:
    """Call it in a local step of EST 0. Returns when what is planned for `step` is on its way."""
    if step not in EVENTS:
        return
    status = my_job()
    if status is None:
        return
    event = EVENTS[step]
    if event == "kill":
        last = status["seats"][-1]
        if last["pid"] != os.getpid():
            os.kill(last["pid"], signal.SIGKILL)
        return
    easyscale("scale", status["job"], *event)
    # New workers start beside the job, which could go on training; it waits for them so that it is not over before.
    until = time.monotonic() + LONGEST
    while (status := my_job()) is not None and status["waiting"] and time.monotonic() < until:
        time.sleep(0.5)


def my_job() -> dict[str, Any] | None:
    """The status of the job that has this process as a worker."""
    for job in json.loads(easyscale("ps", "--json")):
        status: dict[str, Any] | None = job["status"]
        if status is not None and any(seat["pid"] == os.getpid() for seat in status["seats"]):
            return status
    return None


def easyscale(*words: str) -> str:
    command = [sys.executable, "-m", "easyscale", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
