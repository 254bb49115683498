"""A fleet of masters that are numbers, for whoever drives a service without processes."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easyscale.core.cluster import Devices, Slot
from easyscale.core.plan import Plan
from easyscale.core.requests import Happening, JobState, JobStatus, Seat
from easyscale.planner.model import EstSpeed
from easyscale.planner.wire import speed_to_plain

if TYPE_CHECKING:  # the service's own needs are not those of the other fakes
    from easyscale.service.devices import Found
    from easyscale.service.models import JobSpec
    from easyscale.service.ports import Launch, Sight


@dataclass(slots=True)
class FakeRun:
    """A master and its workers, as numbers: steps are made at a rate since a time."""

    launch: Launch
    speed: EstSpeed
    slots: tuple[Slot, ...]
    total: int
    begun: float
    trains: float  # from then on it makes steps
    done: float = 0.0  # steps until then
    kept: int = 0  # steps of its last checkpoint
    epoch: int = 0  # number of its plan
    missing: frozenset[str] = frozenset()  # devices whose worker was lost
    leaving: dict[str, float] = field(default_factory=dict)  # devices that it sits on until then
    stops: float | None = None  # it was told to stop, and has by then
    masterless: bool = False
    pauses: tuple[float, ...] = ()
    events: tuple[Happening, ...] = ()
    end: Sight | None = None

    @property
    def here(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.id not in self.missing)

    def rate(self) -> float:
        """Global steps a second."""
        devices: dict[str, int] = {}
        for slot in self.here:
            devices[slot.kind] = devices.get(slot.kind, 0) + 1
        return self.speed.rate(devices) if devices and self.stops is None else 0.0

    def steps(self, now: float) -> float:
        return min(self.total, self.done + self.rate() * max(0.0, now - self.trains))

    def ends(self) -> float:
        """When it has made all its steps, as things are."""
        rate = self.rate()
        return self.trains + (self.total - self.done) / rate if rate > 0 else float("inf")

    def settle(self, now: float) -> None:
        """What was made until now is made, whatever comes."""
        self.done, self.trains = self.steps(now), max(self.trains, now)

    def holds(self, now: float) -> set[str]:
        """Devices on which a process of it lives."""
        if self.end is not None:
            return set()
        return {slot.id for slot in self.here} | {device for device, until in self.leaving.items() if until > now}

    def tell(self, what: str, text: str, now: float) -> None:
        self.events = (*self.events[-49:], Happening(step=int(self.done), what=what, text=text, time=now))


class FakeFleet:
    """A `Fleet` whose runs are numbers: they start, make steps by their devices, switch, stop and end on a given clock.

    `seconds`: of a local step on each type of device (`usual` on others). A job that names no steps makes `steps`. A
    run goes on where the job's last checkpoint is: a stop leaves one, a death does not. `slow` devices are left after
    seconds of their own. `twice` tells of devices that were given to a run while another one sat on them: none may be.
    `refuse`: so many calls that change something fail. `silent` jobs do not answer. Any thread may call all methods.
    """

    name = "fake"

    def __init__(
        self,
        clock: Callable[[], float],
        folder: Path = Path("fake-runs"),
        *,
        seconds: Mapping[str, float] | None = None,
        usual: float = 0.1,
        steps: int = 100,
        start: float = 2.0,
        switch: float = 0.5,
        leave: float = 0.5,
        stop: float = 1.0,
    ) -> None:
        self.clock = clock
        self.seconds, self.usual, self.total = dict(seconds or {}), usual, steps
        self.start_seconds, self.switch_seconds, self.leave_seconds, self.stop_seconds = start, switch, leave, stop
        self.slow: dict[str, float] = {}
        self.silent: set[str] = set()
        self.refuse = 0
        self.runs: dict[tuple[str, int], FakeRun] = {}
        self.kept: dict[str, int] = {}  # steps in the checkpoint of each job that has not finished
        self.twice: list[tuple[str, str, str]] = []  # device, who sat there, who came
        self.calls: dict[str, int] = {}
        self.found: list[Found] | None = None
        self.wanted: list[tuple[dict[str, int], dict[str, int]]] = []
        self.closed = False
        self._folder = folder
        self._users: dict[str, FakeRun] = {}  # of a device, the last one
        self._over: dict[tuple[str, int], Sight] = {}  # all that is remembered of runs that ended
        self._lock = threading.RLock()

    # ------------------------------------------------------------------------------------ the port

    def launch(self, launch: Launch) -> None:
        with self._lock:
            self._called("launch")
            at = (launch.job, launch.run)
            if at in self.runs or at in self._over:
                return
            now, spec, kept = self.clock(), launch.spec, self.kept.get(launch.job, 0)
            self.runs[at] = FakeRun(
                launch, EstSpeed(spec.ests, self.seconds, None, spec.determinism), (), spec.max_steps or spec.steps or
                self.total, begun=now, trains=now + self.start_seconds, done=float(kept), kept=kept,
            )  # fmt: skip
            self._seat(self.runs[at], launch.slots, now)

    def place(self, job: str, run: int, slots: Sequence[Slot]) -> None:
        with self._lock:
            self._called("place")
            found, now = self._living(job, run), self.clock()
            found.settle(now)
            for slot in found.here:
                if slot not in slots:
                    found.leaving[slot.id] = now + self.slow.get(slot.id, self.leave_seconds)
            found.missing = frozenset()
            self._seat(found, tuple(slots), now)
            found.epoch += 1
            found.trains += self.switch_seconds
            found.pauses = (*found.pauses[-9:], self.switch_seconds)
            found.tell("switched", f"Switched to {len(slots)} workers.", now)

    def stop(self, job: str, run: int, *, now: bool = False) -> None:
        with self._lock:
            self._called("stop")
            if (job, run) in self._over:
                return
            if (job, run) not in self.runs:  # it has not begun, and never will
                self._over[job, run] = _sight(state="ended", exit_code=128 + signal.SIGTERM)
                return
            if now and job in self.silent:
                self._end(self.runs[job, run], _sight(state="gone"))
                return
            found, time = self._living(job, run), self.clock()
            if found.stops is not None:
                return
            found.settle(time)
            if not now:
                found.kept = self.kept[job] = int(found.done)
            slowest = max((self.slow.get(slot.id, 0.0) for slot in found.slots), default=0.0)
            found.stops = time + (0.0 if now else max(self.stop_seconds, slowest))

    def look(self, job: str, run: int, events: int = 50) -> Sight:
        with self._lock:
            self.calls["look"] = self.calls.get("look", 0) + 1
            now, found = self.clock(), self.runs.get((job, run))
            if found is not None:
                self._pass(found, now)
            if (job, run) in self._over:
                return self._over[job, run]
            if found is None:
                return _sight(state="absent")
            if found.masterless:
                return _sight(state="masterless")
            if job in self.silent:
                return _sight(state="starting")
            return _sight(state="running", status=_status(found, now, events))

    def adopt(self, job: str, run: int) -> None:
        with self._lock:
            self._called("adopt")
            found = self.runs.get((job, run))
            if found is not None:
                found.masterless = False

    def folder(self, job: str, run: int) -> Path:
        return self._folder / (f"{job}.{run}" if run else job)

    def stock(self) -> list[Found] | None:
        """`found` where a test sets it: devices that come and go."""
        return self.found

    def want(self, held: Devices, more: Devices) -> None:
        self.wanted.append((dict(held), dict(more)))

    def close(self) -> None:
        self.closed = True

    # ------------------------------------------------------------------------------------ what befalls it

    def fail(self, job: str, code: int = 1, error: str = "It was told to fail.") -> None:
        """The script of its present run ends with this code."""
        with self._lock:
            run = self._present(job)
            self._end(run, _sight(state="ended", exit_code=code, steps=int(run.steps(self.clock())), error=error))

    def vanish(self, job: str) -> None:
        """Master and workers are gone without a word."""
        with self._lock:
            self._end(self._present(job), _sight(state="gone"))

    def lose_worker(self, job: str, device: str | None = None) -> None:
        """The others go on with its ESTs; without others the run is gone."""
        with self._lock:
            run, now = self._present(job), self.clock()
            run.settle(now)
            lost = device if device is not None else run.here[-1].id
            run.missing |= {lost}
            run.epoch += 1
            run.tell("worker-lost", f"The worker on {lost} was lost.", now)
            if not run.here:
                self._end(run, _sight(state="ended", exit_code=128 + signal.SIGKILL, steps=int(run.done)))

    def lose_master(self, job: str) -> None:
        """The workers go on; somebody has to adopt them."""
        with self._lock:
            self._present(job).masterless = True

    def users(self) -> dict[str, str]:
        """Which job sits on which device."""
        with self._lock:
            now = self.clock()
            for run in list(self.runs.values()):
                self._pass(run, now)
            return {device: run.launch.job for run in self.runs.values() for device in run.holds(now)}

    def _called(self, what: str) -> None:
        self.calls[what] = self.calls.get(what, 0) + 1
        if self.refuse > 0:
            self.refuse -= 1
            raise OSError(111, "Connection refused")

    def _living(self, job: str, run: int) -> FakeRun:
        found = self.runs.get((job, run))
        if found is not None:
            self._pass(found, self.clock())
        if found is None or found.end is not None or found.masterless or job in self.silent:
            raise OSError(111, "Connection refused")
        return found

    def _present(self, job: str) -> FakeRun:
        return next(run for (name, _), run in reversed(self.runs.items()) if name == job)

    def _seat(self, run: FakeRun, slots: tuple[Slot, ...], now: float) -> None:
        for slot in slots:
            if slot.kind not in run.speed.batch_seconds:
                run.speed = replace(run.speed, batch_seconds={**run.speed.batch_seconds, slot.kind: self.usual})
            other = self._users.get(slot.id)
            if other is not None and other is not run:
                self._pass(other, now)
                if slot.id in other.holds(now):
                    self.twice.append((slot.id, other.launch.job, run.launch.job))
            self._users[slot.id] = run
            run.leaving.pop(slot.id, None)
        run.slots = slots

    def _pass(self, run: FakeRun, now: float) -> None:
        """Bring it to the present: it may have ended since the last look."""
        if run.end is not None:
            return
        if run.stops is not None and run.stops <= now:
            self._end(run, _sight(state="ended", exit_code=128 + signal.SIGTERM, steps=run.kept))
        elif run.ends() <= now:
            self.kept.pop(run.launch.job, None)
            print_of = fake_fingerprint(run.launch.spec)
            self._end(run, _sight(state="ended", exit_code=0, steps=run.total, fingerprint=print_of))

    def _end(self, run: FakeRun, sight: Sight) -> None:
        run.end = sight
        at = (run.launch.job, run.launch.run)
        self._over[at] = sight
        self.runs.pop(at, None)
        for slot in run.slots:
            if self._users.get(slot.id) is run:
                del self._users[slot.id]


def fake_fingerprint(spec: JobSpec) -> str:
    """The same for the same job, however it ran."""
    return hashlib.sha256(repr((spec.name, spec.script, spec.module, spec.args)).encode()).hexdigest()


def _sight(**facts: Any) -> Sight:
    from easyscale.service.ports import Sight

    return Sight(**facts)


def _status(run: FakeRun, now: float, events: int) -> JobStatus:
    training, ests = now >= run.trains, run.launch.spec.ests
    here = run.here[:ests]
    ranges = Plan.even(ests, len(here)).ranges() if run.epoch or training else []
    seats = (
        Seat(worker=worker, pid=None, first=part.start, count=len(part), slot=here[worker].id)
        for worker, part in enumerate(ranges)
    )
    before: JobState = "switching" if run.epoch else "starting"
    return JobStatus(
        job=f"{run.launch.job}.{run.launch.run}", name=run.launch.spec.name, ests=ests, started=run.begun,
        state="stopping" if run.stops is not None else "training" if training else before, seats=tuple(seats),
        plan_epoch=run.epoch if ranges else -1, held=tuple(sorted(run.holds(now))), step=int(run.steps(now)),
        total=run.total, samples_per_second=run.rate() * ests if training else None,
        loss=1.0 / (1.0 + run.steps(now)) if training else None, pauses=run.pauses,
        model={"speed": speed_to_plain(run.speed), "limit": None, "switch_seconds": None} if training else None,
        events=run.events[-events:],
    )  # fmt: skip
