"""The service at work: wishes come in, masters are watched, the scheduler decides, and what it decided is carried out.

One thread does the rounds; wishes are written down on the threads that bring them, and wake it. All that it knows is in
the log; what it does next follows from a look at the log and at the masters, so it may be killed at any moment.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from easyscale.core.cluster import Slot
from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.scheduler.rules import RuleBroken
from easyscale.service.bridge import first_speed
from easyscale.service.carrier import Carrier
from easyscale.service.chronicle import Chronicle
from easyscale.service.devices import Found
from easyscale.service.errors import ConflictError, KeyUsedError, NotFoundError
from easyscale.service.metrics import Metrics
from easyscale.service.models import ClusterView, JobSpec, JobView, Lend, ScaleWish, Submitted
from easyscale.service.ports import Fleet, Launch, Log, Person
from easyscale.service.reading import Reading
from easyscale.service.records import News
from easyscale.service.snapshots import Snapshots
from easyscale.service.state import Device, Job
from easyscale.service.watch import Watch

logger = logging.getLogger(__name__)

TICK = 0.25  # seconds between two rounds, if nothing wakes the loop
DRAIN_SECONDS = 60.0  # for a job to leave a device that is drained
STUCK = 15.0  # seconds without a round after which the service is not ready
AFTER_A_BROKEN_RULE = 5.0
KEEP_SECONDS = 10.0


class Live(Reading):
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
    ) -> None:
        """`keep`: called now and then, to hold the right to be the one service of this log."""
        self.policy, self.backend, self.started = policy, fleet.name, clock()
        self.metrics = metrics or Metrics()
        self.book = Chronicle(log, policy, clock)
        self.book.appended = self.metrics.appended
        self.snapshots = Snapshots(folder / "snapshots")
        self.fleet, self._folder, self._clock, self._version = fleet, folder, clock, version
        self._watch = Watch(self.book.news, clock)
        self._carrier = Carrier(fleet, self._launch, self._begin_runs)
        self._thread: threading.Thread | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._rounded = time.monotonic()
        self._trouble: str | None = None
        self._not_before = 0.0
        self._keep, self._kept = keep, time.monotonic()

    # ------------------------------------------------------------------------------------ life

    def start(self, devices: Sequence[Found]) -> None:
        """Say what devices there are now, and begin the rounds."""
        self.book.begin(self.policy, self._version)
        self._take_stock(devices)
        self._rounded = time.monotonic()
        self._thread = threading.Thread(target=self._rounds, name="live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The jobs and their masters stay."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(30.0)
            self.book.write([self.book.news("service-stopped", version=self._version)])
        self._carrier.close()

    def ready(self) -> str | None:
        silent = time.monotonic() - self._rounded
        if self._thread is not None and silent > STUCK:
            return f"The loop has not made a round for {silent:.0f} seconds."
        return self._trouble

    def _take_stock(self, devices: Sequence[Found]) -> None:
        known, here = self.book.state.devices, {found.slot.id: found for found in devices}
        news = [
            self.book.news(
                "device-added", id=name, kind=found.slot.kind, node=found.slot.node, memory_gb=found.memory_gb,
                uuid=found.slot.uuid,
            )
            for name, found in here.items()
            if name not in known
        ]  # fmt: skip
        for name, device in known.items():
            if name not in here and device.standing != "lost":
                news.append(self.book.news("device-lost", id=name, why="it is not there after a start of the service"))
            elif name in here and device.standing == "lost":
                news.append(self.book.news("device-found", id=name, why="it is there again"))
        if news:
            self.book.write(news)

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
            self._rounded = time.monotonic()
            self._wake.wait(TICK)
            self._wake.clear()

    def round(self) -> None:
        """See, decide, carry out."""
        book = self.book
        if time.monotonic() - self._kept > KEEP_SECONDS:
            self._keep()
            self._kept = time.monotonic()
        with book.lock:
            news: list[News] = []
            for job, sight in self._carrier.look(book.state):
                found = self._watch.see(job, sight)
                news += found
                self._count(found)
            self._write(news)
            self._write(self._due())
        self._decide()
        with book.lock:
            self._carrier.carry(book.state)
            self._write(self._left())

    def _write(self, news: Sequence[News]) -> None:
        if not news:
            return
        self.book.write(news)
        for one in news:
            job = self.book.state.jobs.get(one.job or "")
            if job is not None and not job.active and one.kind != "job-starting":
                self._carrier.forget(job)
                self._watch.forget(job)

    def _decide(self) -> None:
        if time.monotonic() < self._not_before:
            return
        began = time.perf_counter()
        try:
            changes = self.book.decide()
        except RuleBroken as problem:  # a bug of a policy must not take devices twice: nothing changes
            logger.error("the policy %s broke a rule, and nothing is changed: %s", self.policy, problem)
            self._not_before = time.monotonic() + AFTER_A_BROKEN_RULE
            return
        if changes is not None:
            self.metrics.decided(time.perf_counter() - began, len(changes))

    def _count(self, news: Sequence[News]) -> None:
        for one in news:
            if one.kind == "job-told" and one.body.get("what") == "worker-lost":
                self.metrics.lost_worker()
            if one.kind == "job-told" and one.body.get("what") == "switched":
                self.metrics.switched(float(str(one.body.get("seconds") or 0.0)))

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
        workdir = Path(spec.workdir) if spec.workdir is not None else self.snapshots.folder(spec.snapshot or "")
        own = self._folder / "checkpoints" / job.id
        return Launch(
            job=job.id, run=job.run, spec=spec, workdir=workdir, slots=slots,
            checkpoint_dir=(workdir / spec.checkpoint_dir) if spec.checkpoint_dir is not None else own,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ wishes: jobs

    def submit(self, spec: JobSpec, who: Person, key: str | None = None) -> Submitted:
        team = spec.team or who.team
        if key is not None and (jobs := self.book.log.used_key(who.user, key)) is not None:
            return Submitted(jobs=jobs, new=False)
        self._check_place(spec)
        with self.book.lock:
            news = [self._submission(one, who, team) for one in _array(spec)]
            names = [one.job for one in news if one.job is not None]
            try:
                self.book.write(news, (who.user, key, names) if key is not None else None)
            except KeyUsedError as used:
                return Submitted(jobs=used.jobs, new=False)
        self._wake.set()
        return Submitted(jobs=names)

    def _submission(self, spec: JobSpec, who: Person, team: str) -> News:
        while (name := f"{spec.name}-{secrets.token_hex(3)}") in self.book.state.jobs:
            pass
        plain = spec.model_dump(mode="json", exclude_defaults=True)
        job = Job(
            id=name, spec=spec, user=who.user, team=team, submitted=self._clock(), speed={},
            min_workers=spec.min_workers, max_workers=min(spec.ests, spec.max_workers or spec.ests),
        )  # fmt: skip
        speed = first_speed(job.needs(), self.book.scheduler.cluster.kinds)
        return self.book.news("job-submitted", name, spec=plain, user=who.user, team=team, speed=speed)

    def _check_place(self, spec: JobSpec) -> None:
        if spec.snapshot is not None:
            folder = self.snapshots.folder(spec.snapshot)
        else:
            folder = Path(spec.workdir or "")
            if not folder.is_absolute() or not folder.is_dir():
                raise UsageError(
                    f"The working directory {folder} is not there.",
                    "it has to be a whole path to a folder on the service's machine.",
                    "name one, or send a copy of yours with `easyscale submit --snapshot`.",
                )
        if spec.script is None:
            return
        script = folder / spec.script
        inside = script.resolve().is_relative_to(folder.resolve())
        if not inside or not script.is_file():
            raise UsageError(
                f"The script {spec.script} is not there.",
                "it leads out of the working directory." if not inside else f"there is no such file in {folder}.",
                "name a file in the working directory.",
            )

    def scale(self, job: str, wish: ScaleWish, who: Person) -> JobView:
        with self.book.lock:
            found = self._living(job)
            ests = found.spec.ests
            least = wish.min_workers or found.min_workers
            most = min(ests, wish.max_workers or found.max_workers)
            if found.spec.gang:
                least = most
            if least > most:
                raise UsageError(
                    f"{least} to {most} workers are no range for {job}.",
                    f"it has {ests} ESTs, and its minimum cannot be above its maximum.",
                    "name a minimum that is not above the maximum.",
                )
            self.book.write([self.book.news(
                "job-limits", job, min_workers=1 if found.spec.gang else least, max_workers=most, user=who.user
            )])  # fmt: skip
        return self._view_after(job)

    def pause(self, job: str, who: Person) -> JobView:
        return self._wish(job, who, "job-pause", {"run"}, "is paused already")

    def resume(self, job: str, who: Person) -> JobView:
        return self._wish(job, who, "job-resume", {"pause"}, "is not paused")

    def cancel(self, job: str, who: Person) -> JobView:
        with self.book.lock:
            found = self._living(job)
            news = [] if found.wish == "cancel" else [self.book.news("job-cancel", job, user=who.user)]
            if not found.active:
                news.append(self.book.news("job-cancelled", job, step=found.step))
            self.book.write(news)
        return self._view_after(job)

    def _wish(self, job: str, who: Person, kind: str, when: set[str], otherwise: str) -> JobView:
        with self.book.lock:
            found = self._living(job)
            if found.wish not in when:
                raise ConflictError(
                    f"The job {job} {otherwise if found.wish != 'cancel' else 'is being cancelled'}.",
                    f"it is {found.word}.",
                    f"`easyscale describe {job}` shows it.",
                )
            self.book.write([self.book.news(kind, job, user=who.user)])
        return self._view_after(job)

    def _view_after(self, job: str) -> JobView:
        self._wake.set()
        return self.job(job)

    def _living(self, job: str) -> Job:
        found = self._find(job)
        if found.over:
            raise ConflictError(
                f"The job {job} has ended.", f"it is {found.word}.", "submit it again if it should run again."
            )
        return found

    # ------------------------------------------------------------------------------------ wishes: devices, teams

    def drain(self, device: str, who: Person) -> ClusterView:
        with self.book.lock:
            self._device(device, {"in"}, "is not in use for training")
            by = self._clock() + DRAIN_SECONDS
            self.book.write([self.book.news("device-drain", id=device, user=who.user, by=by)])
        self._wake.set()
        return self.cluster()

    def undrain(self, device: str, who: Person) -> ClusterView:
        with self.book.lock:
            found = self._device(device, {"drained", "lost"}, "is not drained")
            kind = "device-undrain" if found.standing == "drained" else "device-found"
            self.book.write([self.book.news(kind, id=device, user=who.user, why="someone said so")])
        self._wake.set()
        return self.cluster()

    def lose(self, device: str, why: str, who: Person) -> ClusterView:
        with self.book.lock:
            self._device(device, {"in", "drained", "away"}, "is lost already")
            self.book.write([self.book.news("device-lost", id=device, why=why, user=who.user)])
        self._wake.set()
        return self.cluster()

    def lend(self, wish: Lend, who: Person) -> ClusterView:
        """Devices that were called back are there again; devices of a serving system that are new are added."""
        with self.book.lock:
            away = [d for d in self.book.state.devices.values() if d.standing == "away" and d.by is None]
            chosen = self._chosen(wish, away, "is not with the serving system, or has not been given back yet")
            self.book.write([self.book.news("device-lent", id=device, user=who.user) for device in chosen])
        self._wake.set()
        return self.cluster()

    def call_back(self, wish: Lend, who: Person) -> ClusterView:
        """The serving system needs them: idle ones first, then those whose job has the lowest priority."""
        with self.book.lock:
            state = self.book.state
            here = [device for device in state.devices.values() if device.standing == "in"]
            here.sort(key=lambda d: (d.job is not None, state.jobs[d.job].spec.priority if d.job else 0, not d.lent))
            chosen = self._chosen(wish, here, "is not in use for training")
            by = self._clock() + wish.within
            self.book.write([self.book.news("device-called", id=device, by=by, user=who.user) for device in chosen])
        self._wake.set()
        return self.cluster()

    def set_team(self, name: str, quota: int | None, borrow: bool, who: Person) -> None:
        self.book.write([self.book.news("team-set", name=name, quota=quota, borrow=borrow, user=who.user)])
        self._wake.set()

    def snapshot(self, archive: Path, who: Person) -> str:
        return self.snapshots.take(archive)

    def _device(self, name: str, standings: set[str], otherwise: str) -> Device:
        found = self.book.state.devices.get(name)
        if found is None:
            raise NotFoundError(
                f"There is no device {name}.", "the cluster never had it.", "`easyscale devices` lists them."
            )
        if found.standing not in standings:
            raise ConflictError(
                f"The device {name} {otherwise}.", f"it is {found.standing}.", "`easyscale devices` shows them."
            )
        return found

    def _chosen(self, wish: Lend, among: Sequence[Device], otherwise: str) -> list[str]:
        left = {device.slot.id: device for device in among}
        chosen: list[str] = []
        for name in wish.devices:
            if name not in left:
                self._device(name, set(), otherwise)
            chosen.append(left.pop(name).slot.id)
        for kind, count in wish.types.items():
            of_kind = [name for name, device in left.items() if device.kind == kind]
            if len(of_kind) < count:
                raise ConflictError(
                    f"There are not {count} {kind} to choose from.",
                    f"{len(of_kind)} of that type are where they would have to be.",
                    "`easyscale devices` shows them; ask for fewer.",
                )
            chosen += of_kind[:count]
        if not chosen:
            raise UsageError("No device was named.", "neither types nor devices say which.", "name some.")
        return chosen


def _array(spec: JobSpec) -> list[JobSpec]:
    if spec.array is None:
        return [spec]
    return [
        spec.model_copy(update={
            "name": f"{spec.name[:56]}-{index}", "array": None,
            "env": {**spec.env, "EASYSCALE_ARRAY_INDEX": str(index)},
        })
        for index in range(spec.array)
    ]  # fmt: skip
