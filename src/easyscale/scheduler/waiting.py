"""Why a job waits, in one sentence for the person who waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from easyscale.core.cluster import total
from easyscale.scheduler.state import Cluster, Job


def waiting_by_priority(cluster: Cluster) -> dict[int, int]:
    """How many jobs wait, for who asks about many of them."""
    return Counter(job.needs.priority for job in cluster.jobs.values() if not job.devices)


def why_waits(cluster: Cluster, job: Job, policy: str, waiting: Mapping[int, int] | None = None) -> str:
    """Of a job that holds nothing. The hardest reason first: what no waiting will cure."""
    needs = job.needs
    fitting = [
        kind
        for kind, count in cluster.capacity.items()
        if count and needs.allows(kind) and cluster.kinds[kind].memory_gb >= needs.memory_gb
        if job.speed.rate({kind: 1}) > 0.0
    ]
    if not fitting:
        return _no_type(cluster, job)
    there = {kind: cluster.capacity[kind] for kind in fitting}
    most = total(there) if needs.level == "D2" else max(there.values())
    one = "" if needs.level == "D2" or len(there) == 1 else " of one type"
    if needs.least > most:
        return f"It needs {_devices(needs.least)}{one} at once, and the cluster has {most}: it waits for more."
    quota = cluster.quotas.get(needs.tenant)
    if quota is not None and cluster.by_tenant.get(needs.tenant, 0) + needs.least > quota:
        held = cluster.by_tenant.get(needs.tenant, 0)
        return f"Team {needs.tenant} holds {held} of the {_devices(quota)} that it may hold now."
    free = {kind: count for kind, count in cluster.free().items() if kind in there}
    line = waiting_by_priority(cluster) if waiting is None else waiting
    ahead = sum(count for priority, count in line.items() if priority > needs.priority)
    if (total(free) if needs.level == "D2" else max(free.values(), default=0)) < needs.least:
        more = f" {_jobs(ahead)} a higher priority." if ahead else ""
        return f"All devices that it can use are held ({_of(there)}).{more}"
    if ahead:
        return f"{_jobs(ahead)} a higher priority; free devices are kept for that."
    return f"The policy {policy} has other plans for the devices that are free ({_of(free)})."


def _no_type(cluster: Cluster, job: Job) -> str:
    needs = job.needs
    allowed = [kind for kind in cluster.kinds if needs.allows(kind)]
    here = ", ".join(sorted(kind for kind, count in cluster.capacity.items() if count)) or "none"
    if needs.types is not None and not any(cluster.capacity.get(kind) for kind in allowed):
        bound = " (it began on that type, and another one would change its bits)" if job.started is not None else ""
        return f"It runs on {' or '.join(needs.types)} only{bound}; the cluster has {here} now."
    if allowed and all(cluster.kinds[kind].memory_gb < needs.memory_gb for kind in allowed):
        return f"It needs {needs.memory_gb:g} GB on a device, and no device that it may use has so much."
    return f"No device that it may use is there now; the cluster has {here}."


def _jobs(count: int) -> str:
    return "1 waiting job has" if count == 1 else f"{count} waiting jobs have"


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


def _of(devices: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in devices.items()) or "none"
