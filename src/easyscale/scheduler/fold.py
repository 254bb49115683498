"""From events to the state of the cluster. The only code that writes a `Cluster`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from easyscale.core.cluster import DeviceKind, Devices, Needs, minus, plus, same, total
from easyscale.scheduler.events import (
    Allocated,
    DevicesAdded,
    DevicesCalledBack,
    DevicesLent,
    DevicesLost,
    Event,
    JobChanged,
    JobFailed,
    JobFinished,
    JobProgressed,
    JobProposed,
    JobSubmitted,
    QuotaSet,
)
from easyscale.scheduler.state import Cluster, Job


def apply(cluster: Cluster, event: Event) -> None:
    """Late words about a job that has left are no error: messages cross."""
    if event.time > cluster.now:
        cluster.now = event.time
    match event:  # the most frequent first
        case Allocated():
            if job := cluster.jobs.get(event.job):
                _allocate(cluster, job, event)
        case JobProgressed():
            if job := cluster.jobs.get(event.job):
                job.done, job.told = event.done, event.time
                if event.switch_seconds is not None:
                    job.switch_seconds = event.switch_seconds
                if event.start_seconds is not None:
                    job.start_seconds = event.start_seconds
                if event.work is not None:
                    job.work = event.work
        case JobSubmitted():
            _submit(cluster, event)
        case JobProposed():
            if job := cluster.jobs.get(event.job):
                _settle(job, event.time)
                job.speed, job.limit = event.speed, event.limit
                cluster.touched[job.id] = None
        case JobChanged():
            if job := cluster.jobs.get(event.job):
                _change(cluster, job, event)
        case QuotaSet():
            if event.quota is None:
                cluster.entitled.pop(event.tenant, None)
                cluster.quotas.pop(event.tenant, None)
            else:
                cluster.entitled[event.tenant] = (event.quota, event.borrow)
        case JobFinished() | JobFailed():
            if job := cluster.jobs.pop(event.job, None):
                _leave(cluster, job)
        case DevicesAdded():
            _add(cluster, event.devices)
        case DevicesLent():
            _add(cluster, event.devices)
            cluster.lent = plus(cluster.lent, event.devices)
        case DevicesLost():
            _lose(cluster, event)
        case DevicesCalledBack():
            _shrink(cluster, event.devices)
            cluster.called.append((event.by, dict(event.devices)))
            _forget_calls(cluster)


def _submit(cluster: Cluster, event: JobSubmitted) -> None:
    assert event.job not in cluster.jobs, f"two jobs named {event.job}"
    job = Job(
        id=event.job, needs=event.needs, speed=event.speed, submitted=event.time, work=event.work,
        requested=event.requested, kind=event.kind, told=event.time, since=event.time,
    )  # fmt: skip
    if event.switch_seconds is not None:
        job.switch_seconds = event.switch_seconds
    job.start_seconds = event.start_seconds
    cluster.jobs[event.job] = job
    cluster.touched[event.job] = None
    cluster.demand += job.asked
    cluster.priorities[job.needs.priority] = cluster.priorities.get(job.needs.priority, 0) + 1


def _change(cluster: Cluster, job: Job, event: JobChanged) -> None:
    cluster.demand -= job.asked
    gang = None if job.needs.gang is None else event.max_workers
    job.needs = replace(job.needs, min_workers=event.min_workers, max_workers=event.max_workers, gang=gang)
    cluster.demand += job.asked
    cluster.touched[job.id] = None


def _leave(cluster: Cluster, job: Job) -> None:
    _hold(cluster, job, {})
    cluster.touched.pop(job.id, None)
    cluster.demand -= job.asked
    cluster.priorities[job.needs.priority] -= 1
    if not cluster.priorities[job.needs.priority]:
        del cluster.priorities[job.needs.priority]
    _forget_calls(cluster)


def _settle(job: Job, now: float) -> None:
    """Write down what it has done and had by now, before its speed or its devices change."""
    done = job.progress(now)
    job.done = done if job.work is None else max(job.done, min(done, job.work))
    job.told = max(job.told, now)
    job.attained = job.attained_by(now)
    job.since = max(job.since, now)


def _hold(cluster: Cluster, job: Job, devices: Devices) -> None:
    held = cluster.held
    for kind, count in job.devices.items():
        held[kind] -= count
    for kind, count in devices.items():
        held[kind] = held.get(kind, 0) + count
    tenant, more = job.needs.tenant, total(devices) - total(job.devices)
    cluster.by_tenant[tenant] = cluster.by_tenant.get(tenant, 0) + more
    if not cluster.by_tenant[tenant]:
        del cluster.by_tenant[tenant]
    job.devices = {kind: count for kind, count in devices.items() if count}


def _allocate(cluster: Cluster, job: Job, event: Allocated) -> None:
    if same(event.devices, job.devices) and event.batch == job.batch:
        return
    first_of_this_moment = event.time > job.since or not job.switches
    _settle(job, event.time)
    starts = not job.devices and job.start_seconds is not None
    _hold(cluster, job, event.devices)
    job.batch = event.batch
    if job.devices:
        if job.started is None:
            job.started = event.time
            _bind(cluster, job)
        elif first_of_this_moment:
            job.switches += 1
        pause = job.start_seconds if starts and job.start_seconds is not None else job.switch_seconds
        job.resumes = event.time + pause
    _forget_calls(cluster)


def _bind(cluster: Cluster, job: Job) -> None:
    """From its first step on, a job that is not D2 knows one type of devices."""
    if cluster.binds and job.needs.level != "D2":
        job.needs = _bound(job.needs, tuple(job.devices))


@lru_cache(maxsize=4096)
def _bound(needs: Needs, types: tuple[str, ...]) -> Needs:
    """The same object for jobs that are alike, so that others can know it by its identity."""
    return replace(needs, types=types)


def _add(cluster: Cluster, devices: Devices) -> None:
    for kind, count in devices.items():
        cluster.kinds.setdefault(kind, DeviceKind(name=kind))
        cluster.capacity[kind] = cluster.capacity.get(kind, 0) + count


def _shrink(cluster: Cluster, devices: Devices) -> None:
    """Fewer devices: first of those that were lent, where the event says nothing else."""
    for kind, count in devices.items():
        left = cluster.capacity.get(kind, 0) - count
        assert left >= 0, f"{count} {kind} leave a cluster that has {cluster.capacity.get(kind, 0)}"
        cluster.capacity[kind] = left
        cluster.lent[kind] = max(0, cluster.lent.get(kind, 0) - count)


def _lose(cluster: Cluster, event: DevicesLost) -> None:
    """Its own devices are lost before lent ones: who lent them keeps its claim as long as that can be."""
    for kind, count in event.devices.items():
        left = cluster.capacity.get(kind, 0) - count
        assert left >= 0, f"{count} {kind} lost of {cluster.capacity.get(kind, 0)}"
        cluster.capacity[kind] = left
        cluster.lent[kind] = min(cluster.lent.get(kind, 0), left)
    for name, devices in event.held.items():
        if job := cluster.jobs.get(name):
            _settle(job, event.time)
            _hold(cluster, job, minus(job.devices, devices))
            assert all(count > 0 for count in job.devices.values()), (name, devices)
            job.resumes = event.time + job.switch_seconds
            job.switches += 1
            cluster.touched[name] = None
    _forget_calls(cluster)


def _forget_calls(cluster: Cluster) -> None:
    """A call is over when nobody holds more than we have left of its types."""
    if cluster.called:
        over = cluster.over()
        still = [(by, {kind: min(n, over.get(kind, 0)) for kind, n in what.items()}) for by, what in cluster.called]
        cluster.called = [(by, what) for by, what in still if total(what)]
