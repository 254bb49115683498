"""From what the service writes down to what the scheduler hears. A pure function, so that a log can be replayed.

Called with the state as it was BEFORE the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from easyscale.core.cluster import DeviceKind, Needs
from easyscale.planner.mind import Mind
from easyscale.planner.speed import Speed
from easyscale.planner.wire import speed_of_plain, speed_to_plain
from easyscale.scheduler.events import (
    Allocated,
    DevicesAdded,
    DevicesCalledBack,
    DevicesLent,
    DevicesLost,
    Event,
    JobChanged,
    JobFinished,
    JobProgressed,
    JobProposed,
    JobSubmitted,
    QuotaSet,
)
from easyscale.service.models import JobSpec
from easyscale.service.records import Record
from easyscale.service.state import Device, Job, State


def first_speed(needs: Needs, kinds: Mapping[str, DeviceKind]) -> dict[str, Any]:
    """What is believed of a job before it has run: known ratios between the types, plain."""
    return _first_speed(needs, tuple(kinds.values()))


@lru_cache(256)
def _first_speed(needs: Needs, kinds: tuple[DeviceKind, ...]) -> dict[str, Any]:
    return speed_to_plain(Mind(needs, {kind.name: kind for kind in kinds}).speed)


# Policies keep what they work out by the identity of speeds and needs: jobs that are alike, as an array's, share them.
_shared_needs: Callable[[Needs], Needs] = lru_cache(4096)(lambda needs: needs)


@lru_cache(4096)
def _shared_speed(text: str) -> Speed:
    return speed_of_plain(json.loads(text))


def _speed(plain: Mapping[str, Any]) -> Speed:
    return _shared_speed(json.dumps(plain))


def events_of(state: State, record: Record) -> list[Event]:
    """What the scheduler is to be told of it, in this order."""
    if record.kind.startswith("device-"):
        return list(_device(state, record))
    if record.kind == "team-set":
        body = record.body
        return [QuotaSet(time=record.time, tenant=body["name"], quota=body["quota"], borrow=body["borrow"])]
    if record.kind == "job-submitted":
        return [_submitted(record, state.start_seconds())]
    job = state.jobs.get(record.job or "")
    told = _JOBS.get(record.kind)
    return list(told(state, job, record)) if job is not None and told is not None else []


def _device(state: State, record: Record) -> Iterable[Event]:
    body, now = record.body, record.time
    if record.kind == "device-added":
        one = {body["kind"]: 1}
        yield DevicesLent(time=now, devices=one) if body.get("lent") else DevicesAdded(time=now, devices=one)
        return
    device = state.devices.get(body["id"])
    if device is None:
        return
    one, inside = {device.kind: 1}, device.standing == "in"
    if record.kind in ("device-drain", "device-called") and inside:
        yield DevicesCalledBack(time=now, devices=one, by=body.get("by") or now)
    elif record.kind == "device-lost":
        yield from _lost(device, now)
    elif (record.kind == "device-undrain" or (record.kind == "device-found" and device.back == "in")) and not inside:
        yield DevicesLent(time=now, devices=one) if device.lent else DevicesAdded(time=now, devices=one)
    elif record.kind == "device-lent" and not inside:
        yield DevicesLent(time=now, devices=one)


def _lost(device: Device, now: float) -> Iterable[Event]:
    """One that was called back already is no capacity any more: it comes back for a moment, to be lost with its job."""
    one = {device.kind: 1}
    if device.standing == "lost":
        return
    if device.standing != "in":
        if device.job is None:
            return
        yield DevicesAdded(time=now, devices=one)
    yield DevicesLost(time=now, devices=one, held={device.job: one} if device.job is not None else {})


def _submitted(record: Record, start: float) -> JobSubmitted:
    body = record.body
    spec = JobSpec.model_validate(body["spec"])
    assert record.job is not None
    job = Job(
        id=record.job, spec=spec, user=body["user"], team=body["team"], submitted=record.time, speed=body["speed"],
        min_workers=spec.min_workers, max_workers=min(spec.ests, spec.max_workers or spec.ests),
        total=spec.max_steps or spec.steps,
    )  # fmt: skip
    return _entering(job, record.time, start)


def _entering(job: Job, now: float, start: float) -> JobSubmitted:
    return JobSubmitted(
        time=now, job=job.id, needs=_shared_needs(job.needs()), speed=_speed(job.speed),
        work=float(job.total) if job.total is not None else None, switch_seconds=job.switch_seconds,
        start_seconds=start,
    )  # fmt: skip


def _resumed(state: State, job: Job, record: Record) -> Iterable[Event]:
    if job.wish == "pause":
        yield _entering(job, record.time, state.start_seconds())
        yield JobProgressed(time=record.time, job=job.id, done=float(job.step))
        if job.limit is not None:
            yield JobProposed(time=record.time, job=job.id, speed=_speed(job.speed), limit=job.limit)


def _left(state: State, job: Job, record: Record) -> Iterable[Event]:
    yield JobFinished(time=record.time, job=job.id)


def _without_devices(state: State, job: Job, record: Record) -> Iterable[Event]:
    """It waits again, and that is a reason to decide: nothing else may happen for long."""
    if job.assigned:
        yield Allocated(time=record.time, job=job.id, devices={})
    least = 1 if job.gang else job.min_workers
    yield JobChanged(time=record.time, job=job.id, min_workers=least, max_workers=job.max_workers)


def _allocated(state: State, job: Job, record: Record) -> Iterable[Event]:
    yield Allocated(time=record.time, job=job.id, devices=state.counts(tuple(record.body["devices"])))


def _limits(state: State, job: Job, record: Record) -> Iterable[Event]:
    body = record.body
    yield JobChanged(
        time=record.time, job=job.id, min_workers=body["min_workers"], max_workers=body["max_workers"]
    )  # fmt: skip


def _progressed(state: State, job: Job, record: Record) -> Iterable[Event]:
    body = record.body
    total = body.get("total")
    yield JobProgressed(
        time=record.time, job=job.id, done=float(body["step"]), switch_seconds=body.get("switch_seconds"),
        work=float(total) if total else None,
    )  # fmt: skip


def _running(state: State, job: Job, record: Record) -> Iterable[Event]:
    yield JobProgressed(
        time=record.time, job=job.id, done=float(record.body["step"]), start_seconds=record.time - job.began
    )  # fmt: skip


def _proposed(state: State, job: Job, record: Record) -> Iterable[Event]:
    speed = _speed(record.body["speed"])
    yield JobProposed(time=record.time, job=job.id, speed=speed, limit=record.body.get("limit"))


_JOBS: dict[str, Callable[[State, Job, Record], Iterable[Event]]] = {
    "job-resume": _resumed, "job-pause": _left, "job-cancel": _left, "job-finished": _left, "job-failed": _left,
    "job-cancelled": _left, "job-stopped": _without_devices, "job-retried": _without_devices,
    "job-running": _running, "job-allocated": _allocated, "job-limits": _limits,
    "job-progressed": _progressed, "job-proposed": _proposed,
}  # fmt: skip
