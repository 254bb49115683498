"""The service at work: wishes come in, masters are watched, the scheduler decides, and what it decided is carried out.

One thread does the rounds; wishes are written down on the threads that bring them, and wake it. All that it knows is in
the log; what it does next follows from a look at the log and at the masters, so it may be killed at any moment.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from easyscale.core.cluster import Slot
from easyscale.core.errors import EasyScaleError
from easyscale.service.bridge import first_speed
from easyscale.service.carrier import Carrier
from easyscale.service.chronicle import Chronicle
from easyscale.service.devices import Found
from easyscale.service.errors import StoreError
from easyscale.service.metrics import Metrics
from easyscale.service.ports import Fleet, Launch, Log
from easyscale.service.records import News
from easyscale.service.snapshots import Snapshots
from easyscale.service.state import Job
from easyscale.service.stock import Stock, compare
from easyscale.service.watch import Watch
from easyscale.service.wishes import Wishes

logger = logging.getLogger(__name__)

TICK = 0.25  # seconds between two rounds, if nothing wakes the loop
TOGETHER = 0.05  # wishes that come within so many seconds wake it once
STUCK = 15.0  # seconds without a round after which the service is not ready
AFTER_A_BROKEN_RULE = 5.0  # seconds; twice as long each time
LONGEST_AFTER_A_BROKEN_RULE = 300.0
KEEP_SECONDS = 10.0


class Live(Wishes):
    """A `Desk`. `start` the loop, `close` it; the jobs go on without it."""

    def __init__(
        self,
        log: Log,
        fleet: Fleet,
        folder: Path,
        *,
        policy: str = "easyscale",
        version: str = "",
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.time,
        keep: Callable[[], None] = lambda: None,
        ticks: Callable[[], float] = time.monotonic,
        pool: Executor | None = None,
    ) -> None:
        """`keep`: called now and then, to hold the right to be the one service of this log. `clock` is the time of day,
        `ticks` never goes back; `pool` makes the calls to masters."""
        self.policy, self.backend, self.started = policy, fleet.name, clock()
        self.metrics = metrics or Metrics()
        self.book = Chronicle(log, policy, clock)
        self.book.appended = self.metrics.appended
        self.snapshots = Snapshots(folder / "snapshots")
        self.fleet, self._folder, self._clock, self._version = fleet, folder, clock, version
        self._watch = Watch(self.book.news, clock)
        self._stock = Stock(fleet)
        self._carrier = Carrier(
            fleet, self._launch, self._begin_runs, ticks, pool=pool or ThreadPoolExecutor(16, "carry")
        )  # fmt: skip
        self._thread: threading.Thread | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._ticks = ticks
        self._rounded = ticks()
        self._trouble: str | None = None
        self._broken: str | None = None  # what the policy does wrong
        self._not_before, self._breaks = 0.0, 0
        self._keep, self._kept = keep, ticks()

    # ------------------------------------------------------------------------------------ life

    def start(self, devices: Sequence[Found]) -> None:
        """Say what devices there are now, and begin the rounds."""
        self.begin(devices)
        self._thread = threading.Thread(target=self._rounds, name="live", daemon=True)
        self._thread.start()

    def begin(self, devices: Sequence[Found]) -> None:
        """All of `start` but the thread."""
        self.book.begin(self.policy, self._version)
        self._take_stock(devices, "it is not there after a start of the service")
        self._rounded = self._ticks()

    def close(self) -> None:
        """The jobs and their masters stay."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(30.0)
            with contextlib.suppress(StoreError):
                self.book.write([self.book.news("service-stopped", version=self._version)])
        self._stock.close()
        self._carrier.close()

    def ready(self) -> str | None:
        silent = self._ticks() - self._rounded
        if self._thread is not None and silent > STUCK:
            return f"The loop has not made a round for {silent:.0f} seconds."
        return self.book.trouble[1] if self.book.trouble is not None else self._trouble or self._broken

    def _take_stock(self, devices: Sequence[Found], why: str) -> None:
        """What of these is news, and what jobs that have not run yet may think of new types."""
        news = compare(self.book.state, devices, self.book.news, why)
        if not news:
            return
        self.book.write(news)
        kinds = self.book.scheduler.cluster.kinds
        guesses = [(job, first_speed(job.needs(), kinds)) for job in self.book.state.living.values() if not job.run]
        new = [  # types that were not known when the job came
            self.book.news("job-proposed", job.id, speed=guess, limit=None)
            for job, guess in guesses
            if guess != job.speed
        ]
        if new:
            self.book.write(new)

    # ------------------------------------------------------------------------------------ the rounds

    def _rounds(self) -> None:
        while not self._stop.is_set():
            try:
                self.round()
                self._trouble = None
            except EasyScaleError as problem:  # a full disk, a database that is away: nothing accepted is lost
                self._trouble = problem.what
                logger.error("the round was given up: %s", problem)
                self._stop.wait(1.0)
            except Exception:
                self._trouble = "A round of the service failed; its log says how."
                logger.exception("a round failed")
                self._stop.wait(1.0)
            self._rounded = self._ticks()
            self._wake.wait(TICK)
            self._stop.wait(TOGETHER)
            self._wake.clear()

    def round(self) -> None:
        """See, decide, carry out."""
        book = self.book
        book.recover()
        if self._ticks() - self._kept > KEEP_SECONDS:
            self._keep()
            self._kept = self._ticks()
        with book.writing:
            with book.lock:
                sights = self._carrier.look(book.state)
            news: list[News] = []
            for job, sight in sights:
                found = self._watch.see(job, sight)
                news += found
                self._count(job, found)
            self._write(news)
            self._write(self._due())
            with book.lock:
                devices = self._stock.look(book.scheduler.cluster)
            if devices is not None:
                self._take_stock(devices, "its node has left the cluster")
        with book.writing:  # what is decided is carried out before anybody wishes something else
            self._decide()
            with book.lock:
                ready = self._carrier.carry(book.state)
            self._carrier.start(book.state, ready)
            self._write(self._left())

    def _write(self, news: Sequence[News]) -> None:
        if not news:
            return
        try:
            self.book.write(news)
        except EasyScaleError:  # it is seen again, and told again
            for one in news:
                if one.job is not None:
                    self._watch.forget(self.book.state.jobs[one.job])
            raise
        with self.book.lock:
            for one in news:
                job = self.book.state.jobs.get(one.job or "")
                if job is not None and not job.active and one.kind != "job-starting":
                    self._carrier.forget(job)
                    self._watch.forget(job)

    def _decide(self) -> None:
        if self._ticks() < self._not_before:
            return
        began = time.perf_counter()
        try:
            changes = self.book.decide()
        except StoreError:
            raise
        except Exception as problem:  # a bug of a policy must not take devices twice: nothing changes
            logger.exception("the policy %s failed, and nothing is changed", self.policy)
            self._broken = f"The policy {self.policy} fails, and nothing is changed: {str(problem) or repr(problem)}"
            self._not_before = self._ticks() + min(AFTER_A_BROKEN_RULE * 2**self._breaks, LONGEST_AFTER_A_BROKEN_RULE)
            self._breaks = min(self._breaks + 1, 10)
            return
        if changes is not None:
            self._broken, self._breaks = None, 0
            self.metrics.decided(time.perf_counter() - began, len(changes))

    def _count(self, job: Job, news: Sequence[News]) -> None:
        for one in news:
            if one.kind == "job-told" and one.body.get("what") == "worker-lost":
                self.metrics.lost_worker()
            if one.kind == "job-progressed":
                for seconds in newer(job.pauses, one.body["pauses"]):
                    self.metrics.switched(seconds)

    def _due(self) -> list[News]:
        now = self._clock()
        return [
            self.book.news("job-late", job.id)
            for job in self.book.state.dated.values()
            if job.spec.deadline is not None and job.spec.deadline.timestamp() < now
        ]

    def _left(self) -> list[News]:
        """Devices that were wanted back and that nobody sits on any more."""
        wanted = [d for d in self.book.state.devices.values() if d.standing != "in" and d.by is not None]
        if not wanted:
            return []
        used, now = self._carrier.in_use(), self._clock()
        return [
            self.book.news("device-left", id=device.slot.id, late=now > (device.by or now))
            for device in wanted
            if device.slot.id not in used and device.job is None
        ]

    def _begin_runs(self, runs: Sequence[tuple[Job, int]]) -> None:
        self.book.write([
            self.book.news("job-starting", job.id, run=run, folder=str(self.fleet.folder(job.id, run)))
            for job, run in runs
        ])  # fmt: skip

    def _launch(self, job: Job, slots: tuple[Slot, ...]) -> Launch:
        spec = job.spec
        own = self._folder / "checkpoints" / job.id
        if spec.workdir is not None:
            workdir = Path(spec.workdir)
            checkpoints = workdir / spec.checkpoint_dir if spec.checkpoint_dir is not None else own
        else:  # many jobs may share it
            workdir = self.snapshots.path(spec.snapshot or "")
            checkpoints = own / spec.checkpoint_dir if spec.checkpoint_dir is not None else own
        return Launch(
            job=job.id, run=job.run, spec=spec, workdir=workdir, checkpoint_dir=checkpoints, slots=slots,
            kinds=tuple(self.book.scheduler.cluster.kinds),
        )  # fmt: skip


def newer(known: Sequence[float], now: Sequence[float]) -> Sequence[float]:
    """Of a list that grows at its end and loses its beginning, what has come."""
    for start in range(len(known) + 1):
        if list(now[: len(known) - start]) == list(known[start:]):
            return now[len(known) - start :]
    return now
