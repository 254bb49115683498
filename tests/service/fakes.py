"""A service without processes: a desk with jobs in every state on devices of two types."""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from easyscale.service.errors import ConflictError, NotFoundError
from easyscale.service.models import (
    ENDED,
    ClusterView,
    Comparison,
    DeviceView,
    JobPage,
    JobSpec,
    JobView,
    JobWord,
    Lend,
    LogFile,
    LogPart,
    Point,
    PolicyFigures,
    RecordPage,
    RecordView,
    ScaleWish,
    SeatView,
    Series,
    Span,
    Submitted,
    Timeline,
)
from easyscale.service.ports import JobQuery, Person
from service.fake_figures import ORDERS, fits, history, loss, of_type, row, speed_at

STATES: tuple[JobWord, ...] = (
    "queued", "starting", "running", "pausing", "paused", "stopping", "finished", "failed", "cancelled",
)  # fmt: skip
POLICIES = ("easyscale-heter", "easyscale-homo", "fifo", "gavel")


class FakeDesk:
    """`tick()` lets running jobs go on by a step and writes it down; nothing else moves by itself."""

    policy = "easyscale-heter"
    backend = "local"

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self.started = now() - 7200.0
        self.wrong: str | None = None
        self.teams: dict[str, tuple[int | None, bool]] = {}
        self.snapshots: dict[str, bytes] = {}
        self.calls: list[tuple[str, ...]] = []  # what was asked to change, by whom
        self._lock = threading.RLock()
        self._jobs: dict[str, JobView] = {}
        self._records: list[RecordView] = []
        self._keys: dict[tuple[str, str], list[str]] = {}
        self._wakes: list[Callable[[], None]] = []
        self._numbers = itertools.count(1)
        self._devices = {
            device.id: device
            for device in (
                *(DeviceView(id=f"v100-{n}", kind="v100", node="a", memory_gb=32.0, state="free") for n in range(4)),
                *(DeviceView(id=f"t4-{n}", kind="t4", node="b", memory_gb=16.0, state="free") for n in range(4)),
            )
        }
        self.write("service-started", None, "The service started.", version="0.1.0")
        for device in self._devices.values():
            self.write("device-added", None, f"{device.id} was added.", id=device.id, kind=device.kind)

    # ------------------------------------------------------------------------------ records

    def write(self, kind: str, job: str | None, text: str, /, **body: object) -> RecordView:
        with self._lock:
            seq = len(self._records) + 1
            record = RecordView(seq=seq, time=self.now(), kind=kind, job=job, text=text, body=body)
            self._records.append(record)
            wakes = list(self._wakes)
        for wake in wakes:
            wake()
        return record

    def records(self, after: int, limit: int, job: str | None = None, newest: bool = False) -> RecordPage:
        with self._lock:
            last = len(self._records)
            if job is None:
                found = self._records[-limit:] if newest else self._records[after : after + limit]
            else:
                self._job(job)
                mine = [record for record in self._records if record.job == job]
                found = mine[-limit:] if newest else [record for record in mine if record.seq > after][:limit]
            return RecordPage(records=list(found), last=last)

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._wakes.append(wake)
        return lambda: self._wakes.remove(wake)

    # ------------------------------------------------------------------------------ jobs

    def ready(self) -> str | None:
        return self.wrong

    def submit(self, spec: JobSpec, who: Person, key: str | None = None) -> Submitted:
        with self._lock:
            if key is not None and (who.user, key) in self._keys:
                return Submitted(jobs=self._keys[who.user, key], new=False)
            ids = [self._add(spec, who.user, spec.team or who.team) for _ in range(spec.array or 1)]
            if key is not None:
                self._keys[who.user, key] = ids
            return Submitted(jobs=ids)

    def _add(self, spec: JobSpec, user: str, team: str) -> str:
        job = f"job-{next(self._numbers)}"
        self._jobs[job] = JobView(
            id=job,
            name=spec.name,
            team=team,
            user=user,
            state="queued",
            priority=spec.priority,
            ests=spec.ests,
            submitted=self.now(),
            steps=spec.steps,
            waits="All devices that it may use are held by jobs that came before it.",
            spec=spec,
        )
        self.write("job-submitted", job, f"{user} submitted {spec.name}.", user=user, team=team)
        return job

    def jobs(self, query: JobQuery) -> JobPage:
        with self._lock:
            found = [job for job in self._jobs.values() if fits(job, query)]
        sort_key, backwards = ORDERS[query.order]
        found.sort(key=sort_key, reverse=backwards)
        page = found[query.offset : query.offset + query.limit]
        return JobPage(jobs=[row(job) for job in page], total=len(found))

    def job(self, job: str) -> JobView:
        return self._job(job)

    def scale(self, job: str, wish: ScaleWish, who: Person) -> JobView:
        self._not_ended(job, "scale")
        spec = self._jobs[job].spec.model_copy(update=wish.model_dump(exclude_none=True))
        return self._change(job, who, "job-limits", f"{who.user} set its limits.", spec=spec)

    def pause(self, job: str, who: Person) -> JobView:
        self._not_ended(job, "pause")
        new: JobWord = "paused" if self._jobs[job].state == "queued" else "pausing"
        return self._change(job, who, "job-pause", f"{who.user} paused it.", state=new, waits=None)

    def resume(self, job: str, who: Person) -> JobView:
        if self._job(job).state not in ("paused", "pausing"):
            raise ConflictError(f"{job} cannot be resumed.", "it is not paused.", "nothing is to be done.")
        told = f"{who.user} resumed it."
        return self._change(job, who, "job-resume", told, state="queued", waits="It waits its turn.")

    def cancel(self, job: str, who: Person) -> JobView:
        self._not_ended(job, "cancel")
        self._release(job)
        return self._change(
            job, who, "job-cancelled", f"{who.user} cancelled it.", state="cancelled", waits=None, ended=self.now()
        )

    def _change(self, job: str, who: Person, kind: str, text: str, **update: object) -> JobView:
        with self._lock:
            self.calls.append((kind, job, who.user))
            self._jobs[job] = self._jobs[job].model_copy(update=update)
        self.write(kind, job, text, user=who.user)
        return self._jobs[job]

    def _job(self, job: str) -> JobView:
        found = self._jobs.get(job)
        if found is None:
            raise NotFoundError(f"There is no job {job}.", "no job has this id.", "see the list of jobs.")
        return found

    def _not_ended(self, job: str, verb: str) -> None:
        if self._job(job).state in ENDED:
            raise ConflictError(f"{job} cannot {verb}.", f"it has {self._jobs[job].state}.", "submit it again.")

    # ------------------------------------------------------------------------------ what a job wrote

    def logs(self, job: str) -> list[LogFile]:
        if not self._job(job).run:
            return []
        size = len(self._output(job))
        files = [LogFile(run=1, worker=n, stream="out", size=size) for n in range(len(self._job(job).held) or 1)]
        return [*files, LogFile(run=1, worker=0, stream="err", size=0)]

    def log(self, job: str, run: int, worker: int, stream: Literal["out", "err"], start: int, most: int) -> LogPart:
        if all((file.run, file.worker, file.stream) != (run, worker, stream) for file in self.logs(job)):
            raise NotFoundError(f"{job} has no such output.", "that worker did not run.", "see the list of logs.")
        text = self._output(job) if stream == "out" else b""
        part = text[start : start + most]
        end = self._job(job).state in ENDED and start + len(part) >= len(text)
        return LogPart(worker=worker, stream=stream, text=part.decode(), start=start, next=start + len(part), end=end)

    def _output(self, job: str) -> bytes:
        return "".join(f"step {n}: loss {loss(n):.4f}\n" for n in range(self._job(job).step)).encode()

    def series(self, job: str, most: int) -> Series:
        view = self._job(job)
        steps = range(0, view.step, max(1, math.ceil(view.step / most)))
        began = view.started or view.submitted
        return Series(
            points=[
                Point(step=n, time=began + 0.5 * n, values={"loss": loss(n), "steps_per_second": speed_at(n)})
                for n in steps
            ]
        )

    # ------------------------------------------------------------------------------ devices

    def cluster(self) -> ClusterView:
        with self._lock:
            devices = list(self._devices.values())
            states = [job.state for job in self._jobs.values()]
        types = [
            of_type(kind, [d for d in devices if d.kind == kind]) for kind in dict.fromkeys(d.kind for d in devices)
        ]
        return ClusterView(
            policy=self.policy,
            backend=self.backend,
            types=types,
            devices=devices,
            queued=states.count("queued"),
            running=states.count("running"),
        )

    def timeline(self, since: float, until: float) -> Timeline:
        spans = [
            Span(device=device, job=job.id, since=held.since, until=held.until)
            for job in list(self._jobs.values())
            for held in job.allocations
            if held.since <= until and (held.until is None or held.until >= since)
            for device in held.devices
        ]
        return Timeline(since=since, until=until, spans=spans)

    def drain(self, device: str, who: Person) -> ClusterView:
        held = self._device(device).job is not None
        return self._set(device, who, "device-drain", f"{device} is drained.", state="draining" if held else "drained")

    def undrain(self, device: str, who: Person) -> ClusterView:
        held = self._device(device).job is not None
        return self._set(device, who, "device-undrain", f"{device} is used again.", state="held" if held else "free")

    def lose(self, device: str, why: str, who: Person) -> ClusterView:
        return self._set(device, who, "device-lost", f"{device} is lost: {why}.", state="lost", job=None)

    def lend(self, wish: Lend, who: Person) -> ClusterView:
        for device in wish.devices:
            self._set(device, who, "device-lent", f"{device} is lent.", state="free", lent=True, by=None)
        return self.cluster()

    def call_back(self, wish: Lend, who: Person) -> ClusterView:
        for device in wish.devices:
            by = self.now() + wish.within
            self._set(device, who, "device-called", f"{device} is called back.", state="leaving", lent=True, by=by)
        return self.cluster()

    def _device(self, device: str) -> DeviceView:
        found = self._devices.get(device)
        if found is None:
            raise NotFoundError(f"There is no device {device}.", "no device has this id.", "see the cluster.")
        return found

    def _set(self, device: str, who: Person, kind: str, text: str, **update: object) -> ClusterView:
        with self._lock:
            self._devices[device] = self._device(device).model_copy(update=update)
            self.calls.append((kind, device, who.user))
        self.write(kind, None, text, id=device)
        return self.cluster()

    def set_team(self, name: str, quota: int | None, borrow: bool, who: Person) -> None:
        self.teams[name] = (quota, borrow)
        self.write("team-set", None, f"The team {name} has another quota.", name=name, quota=quota, borrow=borrow)

    def snapshot(self, archive: Path, who: Person) -> str:
        data = archive.read_bytes()
        name = hashlib.sha256(data).hexdigest()
        self.snapshots[name] = data
        return name

    def what_if(self, policies: Sequence[str]) -> Comparison:
        unknown = [policy for policy in policies if policy not in POLICIES]
        if unknown:
            raise NotFoundError(f"There is no policy {unknown[0]}.", "", f"choose of {', '.join(POLICIES)}.")
        figures = [
            PolicyFigures(
                policy=policy,
                jct=4000.0 + 900.0 * n,
                median_jct=3000.0 + 800.0 * n,
                makespan=9000.0 + 500.0 * n,
                utilization=0.93 - 0.07 * n,
                switches=40.0 - 10.0 * n,
            )
            for n, policy in enumerate(policies)
        ]
        return Comparison(jobs=len(self._jobs), figures=figures, note="Times are in seconds.")

    # ------------------------------------------------------------------------------ things happen

    def put(self, job: str, state: JobWord, devices: Sequence[str] = (), step: int = 0) -> JobView:
        """The job is in this state, holding these devices, after so many steps."""
        with self._lock:
            view = self._job(job)
            began = self.now() - 0.5 * step - 60.0
            ran = bool(step or devices)
            seats = [SeatView(worker=n, device=d, first=n, count=1) for n, d in enumerate(devices)]
            ended = self.now() if state in ENDED else None
            left = None if devices else self.now()
            update: dict[str, object] = {
                "state": state,
                "step": step,
                "held": list(devices),
                "devices": dict(Counter(device.rsplit("-", 1)[0] for device in devices)),
                "run": int(ran),
                "started": began if ran else None,
                "ended": ended,
                "loss": loss(step) if ran else None,
                "samples_per_second": 900.0 if state == "running" else None,
                "waits": view.waits if state == "queued" else None,
                "error": "ValueError: the data has no column 'label'" if state == "failed" else None,
                "exit_code": {"finished": 0, "failed": 1}.get(state),
                "fingerprint": hashlib.sha256(job.encode()).hexdigest() if state == "finished" else None,
                "submitted": began - 120.0,
            }
            if ran:
                update |= history(began, left, list(devices) or ["v100-0"], seats, step)
            self._jobs[job] = view.model_copy(update=update)
            for device in devices:
                self._devices[device] = self._device(device).model_copy(update={"state": "held", "job": job})
        self.write(f"job-{state}", job, f"{view.name} is {state}.", step=step)
        return self._jobs[job]

    def _release(self, job: str) -> None:
        for device in self._job(job).held:
            self._devices[device] = self._devices[device].model_copy(update={"state": "free", "job": None})
        self._jobs[job] = self._jobs[job].model_copy(update={"held": [], "devices": {}})

    def tick(self) -> None:
        """Each running job makes a step."""
        for job in [job for job in list(self._jobs.values()) if job.state == "running"]:
            step = job.step + 1
            speed = speed_at(step)
            with self._lock:
                self._jobs[job.id] = self._jobs[job.id].model_copy(
                    update={"step": step, "loss": loss(step), "samples_per_second": speed}
                )
            self.write(
                "job-progressed", job.id, f"{job.name} is at step {step}.", step=step, loss=loss(step),
                samples_per_second=speed,
            )  # fmt: skip


def spec(name: str = "digits", **fields: Any) -> JobSpec:
    return JobSpec(**{"name": name, "script": "train.py", "workdir": "/srv/work", "ests": 4, "steps": 2000, **fields})


def busy_desk(more: int = 0, now: Callable[[], float] = time.time) -> FakeDesk:
    """A job in each state for two teams, and so many more in the queue."""
    desk = FakeDesk(now)
    devices = {"running": ["v100-0", "v100-1"], "starting": ["t4-0"], "pausing": ["t4-1"], "stopping": ["v100-2"]}
    steps = {"queued": 0, "starting": 0}
    for n, state in enumerate(STATES):
        who = Person("ann", "vision", "user") if n % 2 == 0 else Person("bob", "speech", "user")
        (job,) = desk.submit(spec(f"{who.team}-{state}", priority=n % 3), who).jobs
        if state != "queued":
            desk.put(job, state, devices.get(state, ()), steps.get(state, 100 + 150 * n))
    (job,) = desk.submit(spec("speech-big", ests=8, determinism="D2"), Person("bob", "speech", "user")).jobs
    desk.put(job, "running", ["v100-3", "t4-2"], 640)
    for n in range(more):
        who = Person("ann", "vision", "user") if n % 2 else Person("bob", "speech", "user")
        desk.submit(spec(f"sweep-{n}"), who)
    desk.write("decided", None, "easyscale-heter gave v100-3 to speech-big.", at=desk.now(), changes=[])
    return desk
