"""What the workers agree on while they compute a global step: is there data, is a checkpoint or a stop wished?

One small all-reduce a round, started when the round begins and heard when it ends, so that it costs no time of its own.
A wish that comes in between (a signal, a call of `es.checkpoint()`) counts for the next round: all workers then act at
the same step.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from easyscale.core.errors import LoaderLengthError, LoopError
from easyscale.runtime.group import Group


@dataclass(frozen=True, slots=True)
class Wishes:
    checkpoint: bool
    stop: int  # the signal's number, or 0


class Agreement:
    """Wishes of this worker, and what all workers together want."""

    def __init__(self, group: Group, every_seconds: float | None) -> None:
        self._group, self._every_seconds = group, every_seconds
        self._last_save = time.monotonic()
        self._checkpoint, self._stop = False, 0
        self._flags = torch.zeros(6, dtype=torch.int64)
        self._heard: Wishes | None = None
        self._wait: Callable[[], None] | None = None

    def wish_checkpoint(self) -> None:
        self._checkpoint = True

    def wish_stop(self, number: int) -> None:
        self._stop = number

    def saved(self) -> None:
        self._last_save = time.monotonic()

    def announce(self, more: bool, trained: bool = True) -> None:
        """A round begins with data (`more`), or this worker's loaders are exhausted.

        A worker whose last round had no backward (not `trained`) waits here until its peers say the same: one that
        alone left a batch out must not run into a sum that still belongs to the step before.
        """
        if self._every_seconds and time.monotonic() - self._last_save > self._every_seconds:
            self._checkpoint = True
        flags = [more, not more, self._checkpoint, self._stop, trained, not trained]
        self._flags = torch.tensor(flags, dtype=torch.int64)
        if more:
            self._checkpoint = False
        self._heard = None
        self._wait = self._group.all_reduce(self._flags, dist.ReduceOp.MAX)
        if not trained:
            self._heard = self.hear()

    def hear(self) -> Wishes:
        if self._heard is not None:
            return self._heard
        assert self._wait is not None
        self._wait()
        self._wait = None
        more, ended, checkpoint, stop, trained, idle = self._flags.tolist()
        if trained and idle:
            raise LoopError(
                "In one round, some workers called backward() and others did not.",
                "every EST takes part in every global step; stock DDP would hang here.",
                "call backward() for each batch, or for none (multiply the loss by 0 to leave a batch out).",
            )
        if more and ended:
            raise LoaderLengthError(
                "The loaders of some ESTs are exhausted while others still have batches.",
                "every EST takes part in every global step; stock DDP would hang here.",
                "give each rank the same number of batches.",
            )
        return Wishes(bool(checkpoint), stop)

    def listen(self, signals: list[signal.Signals], stop_now: Callable[[int], bool]) -> None:
        """Turn signals into a wish to stop. `stop_now` may leave at once where no step runs."""
        if threading.current_thread() is not threading.main_thread():
            return
        pid = os.getpid()

        def heard(number: int, frame: Any) -> None:
            if os.getpid() != pid:  # a loader process that was forked from here
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            elif not stop_now(number):
                self._stop = number

        for number in signals:
            signal.signal(number, heard)
