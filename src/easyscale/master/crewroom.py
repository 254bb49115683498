"""The processes of an elastic job: started, watched and ended as the master's brain decides, their lines followed."""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import replace

from easyscale.core.ports import ApartProcess, ElasticLauncher
from easyscale.core.spec import Control, Target, WorkerSpec
from easyscale.master.census import end_all, processes_of
from easyscale.master.decisions import Start
from easyscale.master.inputs import Ended, Fact, NotStarted, Started, TooMany
from easyscale.master.limits import Limits
from easyscale.master.registry import JobFolder
from easyscale.master.tails import LogLine, Tails

COUNT_SECONDS = 1.0  # a look at all processes of a machine costs some milliseconds


class Crewroom:
    """Tells what it finds out through `tell`; `on_end` is called before the end of a worker is told."""

    def __init__(
        self,
        folder: JobFolder,
        launcher: ElasticLauncher,
        selector: selectors.BaseSelector,
        tell: Callable[[Fact], None],
        on_end: Callable[[int], None],
        limits: Limits,
    ) -> None:
        self._folder, self._launcher, self._selector = folder, launcher, selector
        self._tell, self._on_end = tell, on_end
        self._processes: dict[int, ApartProcess] = {}
        self._tails = Tails(folder.path / "tails.json", limits.log_bytes)
        self._most, self._counted = limits.processes, 0.0
        self._last_lines: list[LogLine] = []

    def start(self, start: Start, template: WorkerSpec, target: Target, control: Control) -> None:
        spec = replace(
            template, worker=start.worker, split=start.split, rank=start.rank, resume=start.resume, control=control,
            slot=start.slot,
        )  # fmt: skip
        out, err = self._folder.log(start.worker, "out"), self._folder.log(start.worker, "err")
        try:
            process = self._launcher.start_apart(spec, target, out, err)
        except OSError as problem:
            self._tell(NotStarted(worker=start.worker, why=problem.strerror or str(problem)))
            return
        self._folder.write_worker(start.worker, process.pid, process.started)
        self._watch(start.worker, process)
        self._tails.follow(start.worker, out, err)
        self._tell(Started(worker=start.worker, pid=process.pid, started=process.started))

    def find(self, worker: int, pid: int | None, started: str) -> None:
        """A worker of an earlier master; one whose process was never told is found in the folder, or not at all."""
        if pid is None:
            record = next((one for one in self._folder.workers() if one.worker == worker), None)
            pid, started = (record.pid, record.started) if record is not None else (0, "")
        process = self._launcher.attach(pid, started) if started else None
        self._tails.follow(
            worker, self._folder.log(worker, "out"), self._folder.log(worker, "err"), from_end=True
        )  # fmt: skip
        if process is None:
            self._part_with(worker)
            self._tell(Ended(worker=worker, code=None))
        else:
            self._watch(worker, process)

    def look(self) -> None:
        """Notice those who have ended. The last words of one come before its end."""
        for worker, process in list(self._processes.items()):
            if process.gone():
                self._on_end(worker)
                if process.ended is not None:
                    self._selector.unregister(process.ended)
                process.close()
                del self._processes[worker]
                self._part_with(worker)
                self._tell(Ended(worker=worker, code=process.code))
        self._count()

    def lines(self) -> list[LogLine]:
        last, self._last_lines = self._last_lines, []
        return last + self._tails.take()

    def kill(self, worker: int, *, hard: bool, tree: bool = False) -> None:
        process = self._processes.get(worker)
        if process is not None:
            if tree and not process.gone():
                end_all({process.pid})
            if hard:
                process.kill()
            else:
                process.signal(signal.SIGTERM)

    def close(self) -> None:
        """Nobody is left behind by a master that fails; one that is killed leaves its workers to the next."""
        for process in self._processes.values():
            process.kill()
            if process.ended is not None:
                self._selector.unregister(process.ended)
            process.close()
        self._tails.close()

    def _count(self) -> None:
        """Now and then, where there is a limit."""
        if self._most is None or not self._processes or time.monotonic() - self._counted < COUNT_SECONDS:
            return
        found = len(processes_of({process.pid for process in self._processes.values()}))
        self._counted = time.monotonic()
        if found > self._most:
            self._most = None  # told once
            self._tell(TooMany(processes=found))

    def _watch(self, worker: int, process: ApartProcess) -> None:
        self._processes[worker] = process
        if process.ended is not None:
            self._selector.register(process.ended, selectors.EVENT_READ, lambda mask: None)

    def _part_with(self, worker: int) -> None:
        self._last_lines += self._tails.end(worker)
        with contextlib.suppress(OSError):
            self._folder.forget_worker(worker)
