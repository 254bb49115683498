"""What the service knows: devices and jobs, folded from the records and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import Any, Literal

from easyscale.core.cluster import Needs, Slot
from easyscale.service.models import JobSpec, JobWord
from easyscale.service.records import Record

MOST_PLANS = 200  # of one job that are kept for its page
MOST_STARTS = 15
USUAL_START = 10.0  # seconds until a run trains, before any did
MOST_SPANS = 20_000  # of all devices that are kept for the timeline


@dataclass(slots=True)
class Device:
    """`away`: lent and called back. A device that is draining or called is not given out, though a job may hold it."""

    slot: Slot
    memory_gb: float | None = None
    lent: bool = False
    standing: Literal["in", "drained", "lost", "away"] = "in"
    back: Literal["in", "drained", "away"] = "in"  # a lost one: what it is when it is found again
    by: float | None = None  # when it must be free
    by_hand: bool = False  # someone said that it is lost: it stays so until someone says otherwise
    job: str | None = None  # that it is assigned to

    @property
    def kind(self) -> str:
        return self.slot.kind


@dataclass(slots=True)
class Span:
    device: str
    job: str
    since: float
    until: float | None = None


@dataclass(slots=True)
class Job:
    """A job from its submission on. `wish` is the user's; what it does about it is in `run` and `assigned`."""

    id: str
    spec: JobSpec
    user: str
    team: str
    submitted: float
    speed: Mapping[str, Any]  # what is known of it, plain
    wish: Literal["run", "pause", "cancel"] = "run"
    min_workers: int = 1
    max_workers: int = 1
    bound: str | None = None  # the type that it began on
    assigned: tuple[str, ...] = ()
    reach: frozenset[str] = frozenset()  # devices that its present run may have been told to use, at any time
    run: int = 0  # how often it was started
    active: bool = False  # its last run has not ended, as far as is known
    training: bool = False  # that run has completed a step
    began: float = 0.0  # its last run
    started: float | None = None
    ended: float | None = None
    end: Literal["finished", "failed", "cancelled"] | None = None
    limit: int | None = None
    step: int = 0
    best: int = 0  # the furthest step of all runs: who only repeats steps makes no progress
    total: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    switch_seconds: float | None = None
    fingerprint: str | None = None
    error: str | None = None
    exit_code: int | None = None
    retries: int = 0  # failures that were forgiven
    crashes: int = 0  # runs in a row that vanished without a new step
    late: bool = False
    told: float = 0.0  # time of the last sentence of its master that was taken over
    plans: list[Mapping[str, Any]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    @property
    def gang(self) -> bool:
        """Exactly so many devices or none. The bits of D0 are those of one plan, which is never changed."""
        return self.spec.gang or self.spec.determinism == "D0"

    @property
    def least(self) -> int:
        return self.max_workers if self.gang else self.min_workers

    @property
    def over(self) -> bool:
        return self.end is not None

    @property
    def word(self) -> JobWord:
        if self.end is not None:
            return self.end
        if self.active:
            if self.wish == "cancel":
                return "stopping"
            if self.wish == "pause":
                return "pausing"
            return "running" if self.training else "starting"
        return "paused" if self.wish == "pause" else "queued"

    def needs(self) -> Needs:
        spec = self.spec
        types = (self.bound,) if self.bound is not None else tuple(spec.types) if spec.types is not None else None
        return Needs(
            ests=spec.ests, min_workers=1 if self.gang else self.min_workers, max_workers=self.max_workers,
            level=spec.determinism, types=types, memory_gb=spec.memory_gb,
            gang=self.max_workers if self.gang else None, priority=spec.priority, tenant=self.team,
        )  # fmt: skip


def shared(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """One for all that are equal: of many jobs, as of an array, the same is known."""
    return _of_text(json.dumps(plain))


@lru_cache(4096)
def _of_text(text: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(text)
    return found


@dataclass(slots=True)
class State:
    """`apply` alone writes it."""

    devices: dict[str, Device] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)  # in the order of their submission
    living: dict[str, Job] = field(default_factory=dict)  # those that have not ended
    busy: dict[str, Job] = field(default_factory=dict)  # of these, those that run or have devices: few of many
    dated: dict[str, Job] = field(default_factory=dict)  # of these, those with a deadline that they have not missed
    teams: dict[str, tuple[int | None, bool]] = field(default_factory=dict)
    policy: str = ""
    spans: list[Span] = field(default_factory=list)
    open: dict[str, Span] = field(default_factory=dict)  # by device
    starts: list[float] = field(default_factory=list)  # seconds that the last runs needed until they trained
    seq: int = 0

    def of_kind(self, kind: str) -> list[Device]:
        return [device for device in self.devices.values() if device.kind == kind]

    def start_seconds(self) -> float:
        """What a start costs here, as the last ones went."""
        return median(self.starts) if self.starts else USUAL_START

    def counts(self, ids: tuple[str, ...]) -> dict[str, int]:
        found: dict[str, int] = {}
        for device in ids:
            kind = self.devices[device].kind
            found[kind] = found.get(kind, 0) + 1
        return found

    # ------------------------------------------------------------------------------------ folding

    def apply(self, record: Record) -> None:
        self.seq = record.seq
        body, job = record.body, self.jobs.get(record.job or "")
        kind = record.kind
        if kind.startswith("device-"):
            self._device(kind, body, record.time)
        elif kind == "job-submitted":
            self._submit(record)
        elif kind == "team-set":
            self.teams[body["name"]] = (body["quota"], body["borrow"])
        elif kind in ("policy-set", "service-started"):
            self.policy = body["policy"]
        elif job is not None:
            self._job(job, record)
            self._sort_in(job)

    def _device(self, kind: str, body: Mapping[str, Any], now: float) -> None:
        if kind == "device-added":
            slot = Slot(id=body["id"], kind=body["kind"], node=body.get("node", ""), uuid=body.get("uuid"))
            self.devices[slot.id] = Device(slot, body.get("memory_gb"), body.get("lent", False))
            return
        device = self.devices.get(body["id"])
        if device is None:
            return
        if kind == "device-drain":
            device.standing, device.by = "drained", body.get("by")
        elif kind == "device-called":
            device.standing, device.by = "away", body["by"]
        elif kind == "device-lost":
            if device.standing != "lost":
                device.back = device.standing
            device.standing, device.by, device.by_hand = "lost", None, "user" in body
            if device.job is not None:
                job = self.jobs[device.job]
                self._assign(job, tuple(other for other in job.assigned if other != device.slot.id), now)
                self._sort_in(job)
        elif kind == "device-found":
            device.standing, device.by = device.back, None
        elif kind == "device-undrain":
            device.standing, device.by = "in", None
        elif kind == "device-lent":
            device.standing, device.by, device.lent = "in", None, True
        elif kind == "device-left":
            device.by = None

    def _submit(self, record: Record) -> None:
        assert record.job is not None
        body = record.body
        spec = JobSpec.model_validate(body["spec"])
        job = Job(
            id=record.job, spec=spec, user=body["user"], team=body["team"], submitted=record.time,
            speed=shared(body["speed"]), min_workers=spec.min_workers,
            max_workers=min(spec.ests, spec.max_workers or spec.ests), total=spec.max_steps or spec.steps,
        )  # fmt: skip
        self.jobs[job.id] = self.living[job.id] = job
        if spec.deadline is not None:
            self.dated[job.id] = job

    def _sort_in(self, job: Job) -> None:
        if job.end is None and (job.active or job.assigned):
            self.busy[job.id] = job
        else:
            self.busy.pop(job.id, None)
        if job.end is not None or job.late:
            self.dated.pop(job.id, None)

    def _job(self, job: Job, record: Record) -> None:
        body = record.body
        match record.kind.removeprefix("job-"):
            case "allocated":
                self._assign(job, tuple(body["devices"]), record.time)
            case "limits":
                job.min_workers, job.max_workers = body["min_workers"], body["max_workers"]
            case "pause":
                job.wish = "pause"
                self._assign(job, (), record.time)
            case "resume":
                job.wish = "run"
            case "cancel":
                job.wish = "cancel"
                self._assign(job, (), record.time)
            case "starting":
                job.run, job.active, job.training, job.told = body["run"], True, False, record.time
                job.began, job.reach = record.time, frozenset(job.assigned)
                job.started = job.started or record.time
            case "running":
                job.training = True
                self.starts = [*self.starts[1 - MOST_STARTS :], record.time - job.began]
            case "stopped":
                job.active = job.training = False
                job.step = max(job.step, body["step"])
                self._assign(job, (), record.time)
            case "retried":
                job.active = job.training = False
                job.retries += bool(body.get("counted", True))
                job.crashes += not body.get("counted", True)
                self._assign(job, (), record.time)
            case "progressed":
                self._progress(job, body)
            case "proposed":
                job.speed, job.limit = shared(body["speed"]), body.get("limit")
            case "planned":
                job.plans = [*job.plans[1 - MOST_PLANS :], {"time": record.time, **body}]
            case "told":
                job.told = max(job.told, body["time"])
            case "late":
                job.late = True
            case "finished" | "failed" | "cancelled" as end:
                self._end(job, end, record)

    def _progress(self, job: Job, body: Mapping[str, Any]) -> None:
        job.step = body["step"]
        if job.step > job.best:
            job.best, job.crashes = job.step, 0
        job.total = body.get("total") or job.total
        job.loss, job.samples_per_second = body.get("loss"), body.get("samples_per_second")
        job.switch_seconds = body.get("switch_seconds", job.switch_seconds)
        if body.get("pauses") is not None:
            job.pauses = list(body["pauses"])

    def _end(self, job: Job, end: Literal["finished", "failed", "cancelled"], record: Record) -> None:
        body = record.body
        job.end, job.ended, job.active = end, record.time, False
        job.step = body.get("step", job.step)
        job.fingerprint, job.error = body.get("fingerprint"), body.get("error")
        job.exit_code = body.get("exit_code", 0 if end == "finished" else None)
        job.samples_per_second = None
        self._assign(job, (), record.time)
        self.living.pop(job.id, None)

    def _assign(self, job: Job, devices: tuple[str, ...], now: float) -> None:
        for gone in set(job.assigned) - set(devices):
            device = self.devices.get(gone)
            if device is not None and device.job == job.id:
                device.job = None
                span = self.open.pop(gone, None)
                if span is not None:
                    span.until = now
        for new in devices:
            if new not in job.assigned:
                self.devices[new].job = job.id
                self.open[new] = Span(new, job.id, now)
                self.spans.append(self.open[new])
        job.assigned = devices
        if job.active:
            job.reach |= frozenset(devices)
        if devices and job.bound is None and job.spec.determinism != "D2":
            job.bound = self.devices[devices[0]].kind
        if len(self.spans) > MOST_SPANS:
            self.spans = self.spans[-MOST_SPANS // 2 :]
