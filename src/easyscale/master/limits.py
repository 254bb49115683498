"""What the master of an elastic job may do, and how long it waits for what: no wait is without a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds, where nothing else is said."""

    # A worker beats twice a second, and answers a halt from the thread that beats. Ten beats in a row are lost only
    # where it hangs or is cut off, not where the machine is busy; a shorter limit would blame workers that hold
    # Python's lock in a long call.
    heartbeat: float = 5.0
    # Import, model and warm-up of a worker that joins. Two minutes cover a large model from a cold disk.
    start: float = 120.0
    # From a broken group to the search for the guilty: a process that was killed is reported by the kernel within
    # milliseconds, and this pause is part of each recovery that has no such report.
    blame: float = 0.3
    # A plan that is ordered and gets no nearer: as long as the workers themselves wait for a silent peer.
    join: float = 300.0
    # From a dismissal, or from the end of the script, until a worker must be gone: it may still write a checkpoint.
    grace: float = 30.0
    # From a job's failure until the other workers must be gone. They have nothing to save: the step is lost.
    failure: float = 5.0
    # From a stop wish until the workers must be gone: they agree on a step, finish it and write a checkpoint, and may
    # wait as long for a silent peer.
    stop: float = 300.0
    # From SIGKILL to the end of a process. It runs no line of its own any more; a dead disk may hold it in the kernel.
    kill: float = 10.0
    # Without a master for so long, workers leave: whoever restarts a master has a minute for it.
    orphan: float = 60.0
    # Regroupings in a row (a number) without a completed global step. One is a hiccup; three are a network that does
    # not work.
    regroupings: int = 3
    # Workers replaced and jobs started anew, together. None by default: what fails once mostly fails again.
    max_restarts: int = 0
    # `--workers LO:HI`: wishes outside are refused, and below LO lost workers are replaced. None: a plain number.
    workers: tuple[int, int] | None = None
    # ESTs move away from workers that turn out slower, without being asked.
    rebalance: bool = False
    # Bytes of each of a worker's two logs: of a longer one the oldest part is dropped, so that a flood does not fill
    # the disk. None: all is kept.
    log_bytes: int | None = None
    # Processes of all workers together, with those that they start: more end the job. None: nobody counts.
    processes: int | None = None
    # The address of the control channel. Loopback: nobody outside this machine can reach it.
    listen: str = "127.0.0.1"
    # Where the workers of a plan find each other: a file in the job's folder, or a board that the master keeps and that
    # is reached on the control channel, from any machine.
    meeting: Literal["file", "master"] = "file"
