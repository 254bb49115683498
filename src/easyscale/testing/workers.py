"""Time that only moves when told, and workers that are no processes."""

from __future__ import annotations

import heapq
import itertools
import signal
from collections.abc import Callable
from pathlib import Path

from easyscale.core.spec import Target, WorkerSpec


class VirtualClock:
    """`now` moves from one planned action to the next. Of two at the same time, the one planned first goes first."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._counter = itertools.count()

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._planned, (self.now + seconds, next(self._counter), action))

    def step(self) -> bool:
        """Do what is next. False: nothing is planned."""
        if not self._planned:
            return False
        self.now, _, action = heapq.heappop(self._planned)
        action()
        return True

    def run(self, until: float) -> None:
        """Do all that is planned up to a time; then it is that time."""
        while self._planned and self._planned[0][0] <= until:
            self.step()
        self.now = max(self.now, until)


class FakeProcess:
    """A worker that is no process: it ends when `end` is called, or when it is killed."""

    ended = None  # nothing to wait on: `gone` tells

    def __init__(self, pid: int, spec: WorkerSpec, on_signal: Callable[[int], None]) -> None:
        self.pid, self.spec, self.started = pid, spec, f"start of {pid}"
        self.signals: list[int] = []
        self._on_signal = on_signal
        self.code: int | None = None

    def gone(self) -> bool:
        return self.code is not None

    def end(self, code: int) -> None:
        if self.code is None:
            self.code = code

    def signal(self, number: int) -> None:
        if self.code is None:
            self.signals.append(number)
            self._on_signal(number)

    def kill(self) -> None:
        if self.code is None:
            self.signal(signal.SIGKILL)
            self.end(-signal.SIGKILL)

    def close(self) -> None:
        pass


class FakeLauncher:
    """Starts nothing and remembers it. `refuse`: the next start fails as if the machine had no room for it."""

    def __init__(self) -> None:
        self.processes: dict[int, FakeProcess] = {}  # by number of worker
        self.refuse = False
        self.on_signal: Callable[[FakeProcess, int], None] = lambda process, number: None
        self._pids = itertools.count(1000)

    def start_apart(self, spec: WorkerSpec, target: Target, out: Path, err: Path) -> FakeProcess:
        if self.refuse:
            self.refuse = False
            raise OSError(12, "Cannot allocate memory")
        pid = next(self._pids)
        process = FakeProcess(pid, spec, lambda number: self.on_signal(process, number))
        self.processes[spec.worker] = process
        return process

    def attach(self, pid: int, started: str) -> FakeProcess | None:
        living = (process for process in self.processes.values() if not process.gone())
        return next((process for process in living if (process.pid, process.started) == (pid, started)), None)


# ------------------------------------------------------------------------------------------ a fleet of masters
