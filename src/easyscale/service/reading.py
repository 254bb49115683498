"""What the service tells: views of what it knows, made when somebody asks."""

from __future__ import annotations

import codecs
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from easyscale.core.cluster import Devices, Slot
from easyscale.master.trimming import end_of, read_part
from easyscale.planner.proposals import Asker, Proposal, grow, shrink
from easyscale.planner.wire import speed_of_plain
from easyscale.scheduler.waiting import waiting_by_priority, why_waits
from easyscale.service.carrier import Carrier
from easyscale.service.chronicle import Chronicle
from easyscale.service.errors import NotFoundError
from easyscale.service.models import (
    ENDED,
    Allocation,
    ClusterView,
    Comparison,
    DeviceView,
    DeviceWord,
    JobPage,
    JobRow,
    JobView,
    JobWord,
    LogFile,
    LogPart,
    PlanView,
    Point,
    ProposalView,
    RecordPage,
    RecordView,
    SeatView,
    Series,
    Span,
    Timeline,
    TypeView,
)
from easyscale.service.ports import Fleet, JobQuery
from easyscale.service.records import Record
from easyscale.service.sentences import sentence
from easyscale.service.state import Device, Job, State
from easyscale.service.what_if import compare

RANK = {"running": 0, "starting": 1, "stopping": 2, "pausing": 3, "queued": 4, "paused": 5}
MOST_RECORDS = 1000
LONGEST_LETTER = 4  # bytes of UTF-8


@dataclass(frozen=True, slots=True)
class Census:
    """Of all jobs that have not ended, as of a record."""

    seq: int
    words: Counter[JobWord]
    waiting: Mapping[int, int]  # by priority


class Reading:
    """The half of the desk that changes nothing."""

    book: Chronicle
    fleet: Fleet
    policy: str
    backend: str
    _carrier: Carrier
    _counted = Census(-1, Counter(), {})

    # ------------------------------------------------------------------------------------ jobs

    def jobs(self, query: JobQuery) -> JobPage:
        with self.book.lock:
            found = _found(self.book.state, query)
            if query.order in _ORDERS:
                found.sort(key=_ORDERS[query.order])
            elif query.order == "-submitted":
                found.reverse()
            page = found[query.offset : query.offset + query.limit]
            rows = [self._row(job) for job in page]
        return JobPage(jobs=[JobRow(**row) for row in rows], total=len(found))

    def job(self, job: str) -> JobView:
        with self.book.lock:
            found = self._find(job)
            more, fewer = self._proposals(found)
            return JobView(
                **self._row(found), spec=found.spec, run=found.run, held=list(found.assigned),
                fingerprint=found.fingerprint, exit_code=found.exit_code, late=found.late,
                checkpoint_dir=found.spec.checkpoint_dir, expected_end=self._expected_end(found),
                allocations=self._allocations(found), plans=[_plan(plan) for plan in found.plans],
                grow=more, shrink=fewer, pauses=found.pauses,
            )  # fmt: skip

    def _find(self, job: str) -> Job:
        found = self.book.state.jobs.get(job)
        if found is None:
            raise NotFoundError(
                f"There is no job {job[:80]}.", "it was never submitted here.", "`easyscale ps` lists the jobs."
            )
        return found

    def _row(self, job: Job) -> dict[str, Any]:
        status = self._status(job)
        return {
            "id": job.id, "name": job.spec.name, "team": job.team, "user": job.user, "state": job.word,
            "priority": job.spec.priority, "ests": job.spec.ests, "submitted": job.submitted, "started": job.started,
            "ended": job.ended, "devices": self.book.state.counts(job.assigned),
            "step": max(job.step, status.step) if status is not None else job.step, "steps": job.total,
            "loss": job.loss if status is None or status.loss is None else _finite(status.loss),
            "samples_per_second": _finite(status.samples_per_second) if status is not None else None,
            "waits": self._waits(job), "error": job.error,
        }  # fmt: skip

    def _status(self, job: Job) -> Any:
        care = self._carrier.cares.get(job.id) if job.active else None
        return care.sight.status if care is not None and care.run == job.run and care.sight is not None else None

    def _waits(self, job: Job) -> str | None:
        if job.word == "starting":
            return None if self._carrier.cares.get(job.id) else "Its master is being started."
        if job.word != "queued":
            return None
        if job.assigned:
            return "Its devices are being freed by the jobs that held them."
        cluster = self.book.scheduler.cluster
        inside = cluster.jobs.get(job.id)
        return why_waits(cluster, inside, self.policy, self._census().waiting) if inside is not None else None

    def _census(self) -> Census:
        """Counted again only after something was written: many ask, and there may be very many jobs."""
        state = self.book.state
        if self._counted.seq != state.seq:
            words = Counter(job.word for job in state.living.values())
            self._counted = Census(state.seq, words, waiting_by_priority(self.book.scheduler.cluster))
        return self._counted

    def _expected_end(self, job: Job) -> float | None:
        inside = self.book.scheduler.cluster.jobs.get(job.id)
        if inside is None or not inside.devices or inside.work is None:
            return None
        now, rate = self.book.clock(), inside.rate()
        left = inside.remaining(now)
        return now + left / rate if left is not None and rate > 0 else None

    def _allocations(self, job: Job) -> list[Allocation]:
        spans = [span for span in self.book.state.spans if span.job == job.id]
        times = sorted({span.since for span in spans} | {span.until for span in spans if span.until is not None})
        found = []
        for since, until in zip(times, [*times[1:], None], strict=False):
            here = [s.device for s in spans if s.since <= since and (s.until is None or s.until > since)]
            if here:
                found.append(Allocation(since=since, until=until, devices=here))
        return found[-200:]

    def _proposals(self, job: Job) -> tuple[list[ProposalView], list[ProposalView]]:
        if job.over:
            return [], []
        cluster, held = self.book.scheduler.cluster, self.book.state.counts(job.assigned)
        speed: Any = speed_of_plain(job.speed)
        seconds: Mapping[str, float] = getattr(getattr(speed, "model", speed), "batch_seconds", {})
        asker = Asker(needs=job.needs(), speed=speed, batch_seconds=seconds, bound=job.bound, limit=job.limit)
        others = {kind: count for kind, count in cluster.capacity.items() if count}
        room = {kind: count - held.get(kind, 0) for kind, count in others.items() if count > held.get(kind, 0)}
        more, fewer = grow(asker, held, room, cluster.kinds), shrink(asker, held) if held else []
        free = cluster.free()
        return [_proposal(one, self._answer(one.change, free)) for one in more], [_proposal(one, "") for one in fewer]

    def _answer(self, change: Devices, free: Devices) -> str:
        if all(count <= free.get(kind, 0) for kind, count in change.items()):
            return "Free, and not given: the switch would not pay, or others come first."
        return "Not now: others hold these devices."

    # ------------------------------------------------------------------------------------ what happened

    def records(self, after: int, limit: int, job: str | None = None, newest: bool = False) -> RecordPage:
        log, last = self.book.log, self.book.state.seq
        if newest:
            found = [record for record in log.records(0, 4 * limit, job, True) if tells(record)][-limit:]
            return RecordPage(records=[view(record) for record in found], last=last)
        found, size = [], min(MOST_RECORDS, limit + 50)
        while len(found) < limit:
            page = list(log.records(after, size, job))
            found += [record for record in page if tells(record)]
            if len(page) < size:
                break
            after = page[-1].seq
        return RecordPage(records=[view(record) for record in found[:limit]], last=last)

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self.book.subscribe(wake)

    def logs(self, job: str) -> list[LogFile]:
        with self.book.lock:
            found = self._find(job)
        files = []
        for run in range(1, found.run + 1):
            for path in sorted((self.fleet.folder(job, run) / "logs").glob("worker-*.*")):
                worker, _, stream = path.name.removeprefix("worker-").partition(".")
                if worker.isdigit() and stream in ("out", "err"):
                    files.append(_log_file(run, int(worker), stream, path))
        return sorted(files, key=lambda file: (file.run, file.worker, file.stream))

    def log(self, job: str, run: int, worker: int, stream: Literal["out", "err"], start: int, most: int) -> LogPart:
        with self.book.lock:
            found = self._find(job)
            more = found.active and run == found.run
        path = self.fleet.folder(job, run) / "logs" / f"worker-{worker}.{stream}"
        if not path.is_file():
            raise NotFoundError(
                f"Worker {worker} of run {run} of {job} has no such log.",
                "that worker never ran, or printed nothing.",
                f"`easyscale logs {job}` shows what there is.",
            )
        size = end_of(path)
        part = read_part(path, min(start, size) if start >= 0 else max(0, size + start), most)
        end = not more and part.next >= size
        text, used = part.data.decode("utf-8", errors="replace"), len(part.data)
        if not end and used > LONGEST_LETTER:  # a letter whose end is not there yet comes with the next part
            text, used = codecs.utf_8_decode(part.data, "replace", False)
        return LogPart(worker=worker, stream=stream, text=text, start=part.start, next=part.start + used, end=end)

    def series(self, job: str, most: int) -> Series:
        with self.book.lock:
            self._find(job)
        return Series(points=thinned(self.fleet.folder(job, 0) / "metrics" / "metrics.jsonl", most))

    # ------------------------------------------------------------------------------------ the cluster

    def cluster(self) -> ClusterView:
        with self.book.lock:
            state, used = self.book.state, self._carrier.in_use()
            devices = [_device(device, device.slot.id in used) for device in state.devices.values()]
            words = self._census().words
        return ClusterView(
            policy=self.policy, backend=self.backend, types=_types(devices), devices=devices,
            queued=words["queued"], running=words["running"] + words["starting"],
        )  # fmt: skip

    def timeline(self, since: float, until: float) -> Timeline:
        with self.book.lock:
            spans = [
                Span(device=span.device, job=span.job, since=span.since, until=span.until)
                for span in self.book.state.spans
                if span.since < until and (span.until is None or span.until > since)
            ]
        return Timeline(since=since, until=until, spans=spans)

    def what_if(self, policies: Sequence[str]) -> Comparison:
        with self.book.lock:
            cluster, now = self.book.scheduler.cluster, self.book.clock()
            jobs = [(job, job.remaining(now)) for job in cluster.jobs.values()]
            capacity = {kind: count for kind, count in cluster.capacity.items() if count}
        return compare(jobs, capacity, cluster.kinds, policies)


# Jobs are kept in the order of their submission, and sorting keeps it among those that are equal.
_ORDERS: dict[str, Callable[[Job], Any]] = {
    "name": lambda job: job.spec.name,
    "state": lambda job: (RANK.get(job.word, 9), -job.submitted),
    "priority": lambda job: -job.spec.priority,
}
AT_WORK = {"running", "starting", "stopping", "pausing"}


def _found(state: State, query: JobQuery) -> list[Job]:
    """In the order of their submission. There may be very many: those that cannot match are not looked at."""
    words, among = set(query.states), list(state.jobs.values())
    if words and words <= AT_WORK:
        among = sorted(state.busy.values(), key=lambda job: job.submitted)
    elif words and words.isdisjoint(ENDED):
        among = list(state.living.values())
    if not words and query.team is query.user is query.text is None:
        return among
    return [job for job in among if _matches(job, query)]


def _matches(job: Job, query: JobQuery) -> bool:
    if query.states and job.word not in query.states:
        return False
    if query.team is not None and job.team != query.team:
        return False
    if query.user is not None and job.user != query.user:
        return False
    return query.text is None or query.text.lower() in job.id.lower() or query.text.lower() in job.spec.name.lower()


def _plan(plan: Mapping[str, Any]) -> PlanView:
    return PlanView(time=plan["time"], step=plan["step"], seats=[SeatView(**seat) for seat in plan["seats"]])


def _proposal(one: Proposal, answer: str) -> ProposalView:
    return ProposalView(
        devices=dict(one.devices), rate=one.rate, speedup=one.speedup, per_device=one.per_device, waste=one.waste,
        sure=one.sure > 0.5, answer=answer,
    )  # fmt: skip


def _device(device: Device, used: bool) -> DeviceView:
    slot = device.slot
    word: DeviceWord
    if device.standing == "in":
        word = "held" if device.job is not None else "leaving" if used else "free"
    elif device.standing == "drained":
        word = "draining" if used else "drained"
    elif device.standing == "away":
        word = "leaving" if used else "away"
    else:
        word = "lost"
    return _device_view(slot, device.memory_gb, word, device.lent, device.by, device.job)


@lru_cache(8192)
def _device_view(
    slot: Slot, memory_gb: float | None, word: DeviceWord, lent: bool, by: float | None, job: str | None
) -> DeviceView:
    """Few of them change from one question to the next."""
    return DeviceView(
        id=slot.id, kind=slot.kind, node=slot.node, memory_gb=memory_gb, uuid=slot.uuid, state=word, lent=lent, by=by,
        job=job,
    )  # fmt: skip


def _types(devices: Sequence[DeviceView]) -> list[TypeView]:
    kinds: dict[str, list[DeviceView]] = {}
    for device in devices:
        kinds.setdefault(device.kind, []).append(device)
    found = []
    for kind, here in kinds.items():
        words = [device.state for device in here]
        gone = sum(words.count(word) for word in ("lost", "drained", "draining", "away"))
        found.append(TypeView(
            kind=kind, total=len(here) - gone, held=words.count("held"), free=words.count("free"),
            lent=sum(device.lent for device in here), lost=words.count("lost"),
            drained=words.count("drained") + words.count("draining"), away=words.count("away"),
        ))  # fmt: skip
    return found


def tells(record: Record) -> bool:
    """A decision that changed nothing is written down for the replay alone."""
    return record.kind != "decided" or bool(record.body["changes"])


def view(record: Record) -> RecordView:
    return RecordView(
        seq=record.seq, time=record.time, kind=record.kind, job=record.job, text=sentence(record),
        body=dict(record.body),
    )  # fmt: skip


def _log_file(run: int, worker: int, stream: str, path: Path) -> LogFile:
    return LogFile(run=run, worker=worker, stream="out" if stream == "out" else "err", size=end_of(path))


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None


def thinned(path: Path, most: int) -> list[Point]:
    """At most so many lines of a metrics file, evenly, the last one among them."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    every = max(1, -(-len(lines) // most))
    points = []
    for line in lines[len(lines) - 1 :: -every][::-1] if lines else []:
        try:
            raw = json.loads(line)
        except ValueError:  # the last one is being written
            continue
        points.append(Point(step=raw["step"], time=raw.get("time", time.time()), values=_values(raw)))
    return [points[0], *map(_with_pace, points, points[1:])] if points else []


def _with_pace(before: Point, point: Point) -> Point:
    """How fast it was from one to the next, pauses included."""
    seconds = point.time - before.time
    pace = {"steps_per_second": (point.step - before.step) / seconds} if seconds > 0 else {}
    return Point(step=point.step, time=point.time, values={**pace, **point.values})


def _values(raw: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line: what was logged, by name, as the mean over the ESTs."""
    found = {}
    for name, value in raw.get("metrics", raw).items():
        numbers = value if isinstance(value, list) else [value]
        numbers = [n for n in numbers if isinstance(n, int | float) and not isinstance(n, bool) and n == n]
        if numbers and name not in ("step", "time", "epoch") and all(abs(n) < float("inf") for n in numbers):
            found[name] = sum(numbers) / len(numbers)
    return found
