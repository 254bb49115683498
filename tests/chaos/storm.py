"""Random events against a running job, from a seed. At each moment one worker, the keeper, is spared.

The seed gives the same events at the same global steps again; what they meet there is a matter of microseconds.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.chaos.job import ESTS, Pace
from tests.chaos.masters import Masters

from easyscale.client import RefusedError, UnreachableError
from easyscale.core.requests import JobStatus

MOST_WORKERS = 4
LOOK_SECONDS = 0.01
CALM_SECONDS = 90.0  # an event may need a start of new workers, a heartbeat limit and a recovery; on a busy machine
# How often an event comes, in shares. Those that take long are rare.
EVENTS = {"kill": 5, "kill several": 3, "hang": 1, "term": 2, "workers": 5, "split": 4, "leave": 2, "loader": 3,
          "master": 1}  # fmt: skip


class Storm:
    """`blow` throws `count` events at a job that has `steps` global steps."""

    def __init__(self, masters: Masters, pace: Pace, seed: int, count: int, steps: int) -> None:
        self._masters, self._pace = masters, pace
        self._chance = random.Random(seed)
        self._points = sorted(self._chance.choices(range(2, steps - 10), k=count))
        self._doomed: set[int] = set()  # workers that were told or made to go
        self.untold: set[int] = set()  # steps whose losses a worker may have taken along: there was no master to tell
        self.thrown: Counter[str] = Counter()
        self.log: list[str] = []

    def blow(self) -> None:
        self._pace.free_until(self._points[0])
        for point in self._points:
            self._pace.free_until(point)
            self._until(lambda status, point=point: status.step >= point)  # type: ignore[misc]
            if self._chance.random() < 0.6:
                self._until(self._is_calm)
            else:
                time.sleep(self._chance.random() * 0.1)
            self._event()
        self._pace.free_until(1 << 30)

    def _event(self) -> None:
        name = self._chance.choices([*EVENTS], [*EVENTS.values()])[0]
        status = self._status()
        happened = self._throw(name, status)
        self.thrown[name] += happened
        plan = "+".join(map(str, status.split))
        self.log.append(f"step {status.step} on {plan} ({status.state}): {name}{'' if happened else ', not possible'}")

    def _throw(self, name: str, status: JobStatus) -> bool:
        """False: there is nobody whom it could meet."""
        if name == "kill":
            return self._harm(status, signal.SIGKILL)
        if name == "kill several":
            return self._harm(status, signal.SIGKILL, self._chance.randint(2, MOST_WORKERS))
        if name == "hang":
            return self._harm(status, signal.SIGSTOP)
        if name == "term":
            return self._harm(status, signal.SIGTERM)
        if name == "loader":
            return self._kill_loader()
        if name == "master":
            return self._kill_master(status)
        return self._wish(name, status)

    # ------------------------------------------------------------------ whom it meets

    def _harm(self, status: JobStatus, number: int, count: int = 1) -> bool:
        victims = self._vulnerable(status)
        self._chance.shuffle(victims)
        for worker, pid in victims[:count]:
            self._doomed.add(worker)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(victims)

    def _vulnerable(self, status: JobStatus) -> list[tuple[int, int]]:
        """All living workers, also those that only start, but one of the plan.

        Where a change is under way, that one is the earliest, which stays in every plan that is not without it by
        name; else it is anyone.
        """
        healthy = [seat.worker for seat in status.seats if seat.worker not in self._doomed]
        if not healthy:
            return []
        keeper = self._chance.choice(healthy) if self._is_calm(status) else min(healthy)
        living = self._masters.folder.live_workers()
        return [(w.worker, w.pid) for w in living if w.worker != keeper and w.worker not in self._doomed]

    def _kill_loader(self) -> bool:
        loaders = [
            child
            for worker in self._masters.folder.live_workers()
            if worker.worker not in self._doomed
            for child in children(worker.pid)
        ]
        if not loaders:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._chance.choice(loaders), signal.SIGKILL)
        return True

    def _kill_master(self, status: JobStatus) -> bool:
        """Sometimes a worker goes while there is none."""
        self._masters.kill()
        time.sleep(self._chance.random() * 0.3)
        alone = self._chance.random() < 0.3 and self._harm(status, signal.SIGKILL)
        self._masters.again()
        if alone:
            self._until(self._is_calm)
            self.untold |= set(range(status.step - 1, self._status().step + 1))
        return True

    def _wish(self, name: str, status: JobStatus) -> bool:
        scale = self._masters.client.scale
        try:
            if name == "workers":
                scale(workers=self._chance.choice((1, 2, 3, 3, 4, 4)))
            elif name == "split":
                scale(split=self._split())
            else:
                healthy = [seat.worker for seat in status.seats if seat.worker not in self._doomed]
                if len(healthy) < 2 or not self._is_calm(status):
                    return False
                leaves = self._chance.choice(healthy)
                self._doomed.add(leaves)
                scale(leave=leaves)
        except RefusedError as refused:
            self.log.append(f"refused: {refused.what}")
        return True

    def _split(self) -> tuple[int, ...]:
        cuts = sorted(self._chance.sample(range(1, ESTS), self._chance.randint(1, MOST_WORKERS - 1)))
        return tuple(end - begin for begin, end in zip([0, *cuts], [*cuts, ESTS], strict=True))

    # ------------------------------------------------------------------ how the job is

    def _is_calm(self, status: JobStatus) -> bool:
        """It trains on the plan that it wants, with workers of whom nothing bad is known."""
        seats = {seat.worker for seat in status.seats}
        return status.state == "training" and status.wanted is None and not seats & self._doomed

    def _status(self) -> JobStatus:
        """A master that was just started again does not answer at once."""
        deadline = time.monotonic() + CALM_SECONDS
        while True:
            try:
                return self._masters.client.status(events=0)
            except UnreachableError:
                self._must_go_on(deadline)

    def _until(self, true: Callable[[JobStatus], bool]) -> None:
        deadline = time.monotonic() + CALM_SECONDS
        while not true(status := self._status()):
            self._must_go_on(deadline, str(status))

    def _must_go_on(self, deadline: float, status: str = "no answer") -> None:
        time.sleep(LOOK_SECONDS)
        if self._masters.ended() or time.monotonic() > deadline:
            how = "ended" if self._masters.ended() else f"stands still: {status}"
            raise AssertionError(f"The job {how}, after {sum(self.thrown.values())} events.")


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
