"""What a decision may still give away: devices by type, and each tenant's quota. Policies give; it keeps the books."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from easyscale.core.cluster import Devices, total
from easyscale.scheduler.state import Cluster, Job


def kinds_for(cluster: Cluster, job: Job) -> list[str]:
    """The types that a job may run on, in the order of the cluster."""
    memory, needs = job.needs.memory_gb, job.needs
    return [name for name, kind in cluster.kinds.items() if needs.allows(name) and kind.memory_gb >= memory]


def asked_kinds(cluster: Cluster, job: Job, count: int) -> list[str]:
    """The type that its user asked for; where that is no matter (or there are not `count` of it), all it may run on."""
    kinds = kinds_for(cluster, job)
    return [job.kind] if job.kind in kinds and cluster.capacity.get(job.kind, 0) >= count else kinds


def by_priority(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Classes of equal priority, highest first; within one, in the order of submission."""
    ordered = sorted(jobs, key=lambda job: -job.needs.priority)
    for _, group in groupby(ordered, key=lambda job: job.needs.priority):
        yield list(group)


class Ledger:
    """The books of one decision: it begins with nothing given, and `wanted` is its result."""

    def __init__(self, cluster: Cluster, among: Iterable[Job] | None = None) -> None:
        """`among`: only these jobs are decided about, and all others keep what they hold; None: everybody is."""
        self.cluster = cluster
        self.left = dict(cluster.capacity)
        self.quota = dict(cluster.quotas)
        if among is not None:
            self._set_aside(among)
        self.wanted: dict[str, dict[str, int]] = {}

    def _set_aside(self, among: Iterable[Job]) -> None:
        for kind, count in self.cluster.held.items():
            self.left[kind] = self.left.get(kind, 0) - count
        for tenant in self.quota:
            self.quota[tenant] -= self.cluster.by_tenant.get(tenant, 0)
        for job in among:
            for kind, count in job.devices.items():
                self.left[kind] += count
                if job.needs.tenant in self.quota:
                    self.quota[job.needs.tenant] += count

    def room(self, job: Job) -> int:
        """How many more devices its tenant may have."""
        return self.quota.get(job.needs.tenant, 1 << 60)

    def fits(self, job: Job, devices: Devices) -> bool:
        """Can it have these on top of what it was given?"""
        left = self.left
        return total(devices) <= self.room(job) and all(left.get(kind, 0) >= n for kind, n in devices.items())

    def give(self, job: Job, devices: Devices) -> None:
        """On top of what it was given; negative numbers take back."""
        assert self.fits(job, devices), (job.id, devices, self.left)
        mine = self.wanted.setdefault(job.id, {})
        for kind, count in devices.items():
            self.left[kind] -= count
            mine[kind] = mine.get(kind, 0) + count
            if not mine[kind]:
                del mine[kind]
        if job.needs.tenant in self.quota:
            self.quota[job.needs.tenant] -= total(devices)
        if not mine:
            del self.wanted[job.id]

    def given(self, job: Job) -> dict[str, int]:
        return self.wanted.get(job.id, {})

    def could_ever(self, job: Job, count: int) -> bool:
        """Would so many fit, of one type that it asked for, if nobody else were here?"""
        capacity, quota = self.cluster.capacity, self.cluster.quotas.get(job.needs.tenant, 1 << 60)
        return count <= quota and any(capacity.get(kind, 0) >= count for kind in asked_kinds(self.cluster, job, count))

    def gang(self, job: Job, count: int, kinds: Iterable[str]) -> dict[str, int] | None:
        """So many devices of one type: that which it holds, or else the fastest for it that has them; None: nowhere."""
        found = [{kind: count} for kind in kinds if self.fits(job, {kind: count})]
        rates = [(job.speed.rate(devices), devices.keys() == job.devices.keys()) for devices in found]
        if not found or max(rate for rate, _ in rates) <= 0.0:
            return None
        held = [devices for devices, (rate, same) in zip(found, rates, strict=True) if same and rate > 0.0]
        return held[0] if held else max(zip(rates, found, strict=True), key=lambda pair: pair[0][0])[1]
