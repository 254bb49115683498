"""Once a round, every worker tells every other: is there data, what is wished, and the contexts of its ESTs.

Started when a round begins and heard before its global step counts, so that it costs no time of its own. From then on
every worker could go on with every EST from the boundary at which the round began. A wish that comes in between (a
signal, a call of `es.checkpoint()`, an order of the master) counts for the next round: all workers act at one step.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from easyscale.core.errors import LoaderLengthError, LoopError, WorkerLostError
from easyscale.runtime.context import EstContext
from easyscale.runtime.group import Group
from easyscale.runtime.loop import PreparedLoader
from easyscale.runtime.replicas import Replicas, Sender

_FLAGS = struct.Struct("<7q")


@dataclass(frozen=True, slots=True)
class Wishes:
    checkpoint: bool
    stop: int  # the signal's number, or 0
    switch: int  # the epoch of the plan that all workers have in hand, or 0


class Exchange:
    """Wishes of this worker, what all workers together want, and the contexts of all ESTs."""

    def __init__(self, every_seconds: float | None) -> None:
        self._group, self._every_seconds = Group(None, 0, 1), every_seconds
        self._last_save = time.monotonic()
        self._checkpoint, self._stop = False, 0
        self.newest_order: Callable[[], int] = lambda: 0
        self.replicas = Replicas()
        self._sender = Sender()
        self._fresh = True  # peers have nothing of this worker's ESTs yet
        self._noted = False  # the sender has the contexts of this boundary
        self._flags = b""
        self._boundary = -1
        self._heard: Wishes | None = None
        self.last = Wishes(False, 0, 0)  # heard, or told by one who had heard
        self._wait: Callable[[], list[bytes]] | None = None
        self._is_overtaken = self.is_held_back = False

    @property
    def _replicates(self) -> bool:
        """Alone, there is nobody to keep a copy."""
        return self._group.workers > 1

    def wish_checkpoint(self) -> None:
        self._checkpoint = True

    def wish_stop(self, number: int) -> None:
        self._stop = number

    def is_stopping(self) -> bool:
        return self._stop != 0

    def saved(self) -> None:
        self._last_save = time.monotonic()

    @property
    def announced(self) -> bool:
        """The exchange of the round that runs was begun by this worker."""
        return self._wait is not None or self._heard is not None

    @property
    def inside(self) -> bool:
        """It was heard, and what it decides about is not over: with other peers, it would be heard anew."""
        return self._heard is not None and not self._is_overtaken

    def note(
        self, contexts: Mapping[int, EstContext], loaders: list[PreparedLoader], *, whole: bool = False
    ) -> None:
        """A round begins: the contexts of this worker's ESTs, before any moves. `whole`: also where it is alone."""
        self._noted = self._replicates or whole
        if self._noted:
            self._sender.note(contexts, loaders)

    def announce(self, boundary: int, *, more: bool, trained: bool = True) -> None:
        """The round has data (`more`), or this worker's loaders are exhausted.

        A worker whose last round had no backward (not `trained`) waits here until its peers say the same: one that
        alone left a batch out must not run into a sum that still belongs to the step before.
        """
        if self._every_seconds and time.monotonic() - self._last_save > self._every_seconds:
            self._checkpoint = True
        self._flags = _FLAGS.pack(
            more, self._checkpoint, self._stop, trained, self.newest_order(), boundary, self.replicas.serial
        )
        if more:
            self._checkpoint = False
        self._boundary = boundary
        self._start()
        if not trained:
            self.hear()

    def _start(self) -> None:
        leaves = self._sender.changes(all_of_them=self._fresh) if self._replicates else b""
        self._heard, self._fresh = None, False
        try:
            self._wait = self._group.start_gathering(self._flags + leaves)
        except WorkerLostError as problem:  # announced all the same; whoever waits for it hears of the loss
            self._wait = _broken(problem)

    def hear(self) -> Wishes:
        if self._heard is not None:
            return self._heard
        assert self._wait is not None
        payloads = self._wait()
        self._wait = None
        flags = [_FLAGS.unpack_from(payload) for payload in payloads]
        more, checkpoint, stop, trained, order, _, serials = zip(*flags, strict=True)
        if len(set(trained)) > 1:
            raise LoopError(
                "In one round, some workers called backward() and others did not.",
                "every EST takes part in every global step; stock DDP would hang here.",
                "call backward() for each batch, or for none (multiply the loss by 0 to leave a batch out).",
            )
        if len(set(more)) > 1:
            raise LoaderLengthError(
                "The loaders of some ESTs are exhausted while others still have batches.",
                "every EST takes part in every global step; stock DDP would hang here.",
                "give each rank the same number of batches.",
            )
        if self._replicates:
            self.replicas.take(self._boundary, max(serials) + 1, [payload[_FLAGS.size :] for payload in payloads])
        elif self._noted:  # those who join next may be gone before they have said anything: their ESTs come back
            self.replicas.hold(self._boundary, max(serials) + 1, self._sender.leaves)
        self._heard = self.last = Wishes(any(checkpoint), max(stop), order[0] if len(set(order)) == 1 else 0)
        return self._heard

    def regrouped(self, group: Group) -> None:
        """Other peers: what was announced in this round is announced to them again, whole, and heard anew."""
        self._group, self._fresh = group, True
        if self.announced and not self._is_overtaken:
            self._heard = None
            if self.is_held_back:
                self._wait = _broken(AssertionError("held back"))
            else:
                self._start()

    def hold_back(self) -> None:
        """Contexts of adopted ESTs are not known yet: announce nothing before `go_on`."""
        self.is_held_back = True

    def go_on(self) -> None:
        if self.is_held_back:
            self.is_held_back = False
            if self._wait is not None:
                self._start()

    def note_one(self, est: int, contexts: Mapping[int, EstContext], loaders: list[PreparedLoader]) -> None:
        """An adopted EST has come to the boundary at which the round began."""
        if self._replicates:
            self._sender.take(est, contexts[est], loaders)

    def overtaken(self, wishes: Wishes) -> None:
        """Others have completed this exchange, with these wishes, and will not take part in it again."""
        self._wait, self._heard, self._is_overtaken = None, wishes, True
        self.last = wishes

    def adopt(self, ests: Iterable[int]) -> None:
        """From now on this worker speaks for these ESTs, from the boundary that the replicas have."""
        for est in ests:
            self._sender.leaves[est] = dict(self.replicas.leaves[est])

    def round_over(self) -> None:
        """The next round has not announced itself."""
        self._heard, self._is_overtaken = None, False

    def listen(self, signals: list[signal.Signals], heard: Callable[[int], bool]) -> None:
        """Turn signals into a wish to stop, unless `heard` deals with one at once."""
        if threading.current_thread() is not threading.main_thread():
            return
        pid = os.getpid()

        def noted(number: int, frame: Any) -> None:
            if os.getpid() != pid:  # a loader process that was forked from here
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            elif not heard(number):
                self._stop = number

        for number in signals:
            signal.signal(number, noted)


def _broken(problem: Exception) -> Callable[[], list[bytes]]:
    def wait() -> list[bytes]:
        raise problem

    return wait
