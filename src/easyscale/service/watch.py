"""From a look at a run to what is written down about it."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from easyscale.core.requests import Happening, JobStatus
from easyscale.service.ports import Sight
from easyscale.service.records import News
from easyscale.service.state import Job

PROGRESS_SECONDS = 10.0  # between two records of a job's progress
CRASHES = 3  # runs in a row that may vanish without a step; then the job has failed
NOISE = 0.05  # a speed that differs by less is no news
KILLED = 128 + signal.SIGKILL  # its last worker was: by the machine, for want of memory, by someone's hand
STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
Note = Callable[..., News]


@dataclass
class Watch:
    """`see` a run; what it returns is to be written, in this order."""

    note: Note  # makes a record: kind, job, body
    clock: Callable[[], float]
    _progress: dict[str, float] = field(default_factory=dict)  # when it was written last
    _plans: dict[str, tuple[int, int]] = field(default_factory=dict)  # run and number of the last plan

    def see(self, job: Job, sight: Sight) -> list[News]:
        if sight.state == "ended":
            return [self._ended(job, sight)]
        if sight.state == "gone":
            return [self._vanished(job, sight)]
        if sight.status is None:
            return []
        return list(self._running(job, sight.status))

    def forget(self, job: Job) -> None:
        self._progress.pop(job.id, None)
        self._plans.pop(job.id, None)

    # ------------------------------------------------------------------------------------ while it runs

    def _running(self, job: Job, status: JobStatus) -> Iterator[News]:
        for event in status.events:
            if event.time > job.told:
                yield self._told(job, event)
        seats, plan = status.seats, (job.run, status.plan_epoch)
        if seats and self._plans.get(job.id) != plan:
            self._plans[job.id] = plan
            plain = [{"worker": s.worker, "device": s.slot, "first": s.first, "count": s.count} for s in seats]
            yield self.note("job-planned", job.id, step=status.step, seats=plain)
        if not job.training and seats and status.state == "training":
            yield self.note("job-running", job.id, run=job.run, step=status.step)
        now = self.clock()
        if seats and now - self._progress.get(job.id, 0.0) >= PROGRESS_SECONDS:
            self._progress[job.id] = now
            yield self._progressed(job, status)
        if status.model is not None:
            speed, limit = status.model["speed"], status.model.get("limit")
            if limit != job.limit or not alike(speed, job.speed):
                yield self.note("job-proposed", job.id, speed=speed, limit=limit)

    def _told(self, job: Job, event: Happening) -> News:
        return self.note("job-told", job.id, **asdict(event))

    def _progressed(self, job: Job, status: JobStatus) -> News:
        model = status.model or {}
        return self.note(
            "job-progressed", job.id, step=status.step, total=status.total, loss=finite(status.loss),
            samples_per_second=finite(status.samples_per_second), switch_seconds=model.get("switch_seconds"),
            pauses=[round(pause, 4) for pause in status.pauses],
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ when it is over

    def _ended(self, job: Job, sight: Sight) -> News:
        if sight.exit_code == 0:
            return self.note("job-finished", job.id, step=sight.steps, fingerprint=sight.fingerprint)
        if job.wish == "cancel":
            return self.note("job-cancelled", job.id, step=sight.steps)
        if sight.exit_code in STOPPED:
            return self.note("job-stopped", job.id, run=job.run, step=max(sight.steps, job.step))
        if sight.exit_code == KILLED:
            return self._vanished(job, sight)
        why = (sight.error or f"It ended with exit code {sight.exit_code}.").strip()[-4000:]
        if job.retries < job.spec.retries and job.wish == "run":
            return self.note("job-retried", job.id, run=job.run, why=why, counted=True)
        return self.note("job-failed", job.id, step=sight.steps, error=why, exit_code=sight.exit_code)

    def _vanished(self, job: Job, sight: Sight) -> News:
        """Its workers were killed, or the whole machine went down. It goes on from its last checkpoint."""
        if job.wish == "cancel":
            return self.note("job-cancelled", job.id, step=job.step)
        if job.wish == "pause":
            return self.note("job-stopped", job.id, run=job.run, step=job.step)
        why = sight.error or "Its master and all its workers ended without a word."
        if job.crashes + 1 >= CRASHES:
            why += f" That happened {CRASHES} times in a row."
            return self.note("job-failed", job.id, step=job.step, error=why)
        return self.note("job-retried", job.id, run=job.run, why=why, counted=False)


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def alike(one: Any, other: Any) -> bool:
    """Whether two plain forms of a speed are as good as the same: what is measured is never twice the same."""
    if isinstance(one, float | int) and isinstance(other, float | int):
        return abs(one - other) <= NOISE * max(abs(one), abs(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(alike(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
