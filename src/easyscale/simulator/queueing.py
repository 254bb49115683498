"""Why jobs wait where nobody scales: a replay of a trace with gangs, first come first served, and locality.

Made for the study of a trace, after the questions of "Analysis of Large-Scale Multi-Tenant GPU Clusters" (ATC'19): how
much of the waiting is because the devices are others' (fair share), and how much because they are free but scattered
over machines (fragmentation). Each tenant has a queue. The first job of a queue starts when there is room for all its
devices on as few machines as can hold them; after `patience` seconds it takes scattered ones, and is slower for it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from easyscale.core.cluster import Devices, total
from easyscale.simulator.workload import Arrival, Workload

FAIR_SHARE, FRAGMENTATION = 0, 1
_END, _ARRIVAL, _LOOK = range(3)


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds that a job waited, by cause; on how many machines more than needed it ran, and its seconds there."""

    fair_share: float
    fragmentation: float
    spread: int
    seconds: float

    @property
    def queued(self) -> float:
        return self.fair_share + self.fragmentation


@dataclass(slots=True)
class _Machines:
    """Machines of one type by how many of their devices are free."""

    per_node: int
    left: list[int]  # free devices of each machine
    free: int
    of: list[dict[int, None]]  # free devices -> machines, in the order in which they came to have so many

    @classmethod
    def make(cls, count: int, per_node: int) -> _Machines:
        left = [min(per_node, count - first) for first in range(0, count, per_node)]
        of: list[dict[int, None]] = [{} for _ in range(per_node + 1)]
        for machine, free in enumerate(left):
            of[free][machine] = None
        return cls(per_node, left, count, of)

    def take(self, count: int, *, anywhere: bool) -> list[tuple[int, int]] | None:
        """(machine, devices) of each; None: there is no room. Best fit, so that whole machines stay whole."""
        whole, rest = divmod(count, self.per_node)
        if len(self.of[self.per_node]) >= whole:
            left = next((f for f in range(rest, self.per_node + 1) if self._room(f, whole)), None) if rest else 0
            if left is not None:
                taken = [self._from(self.per_node, self.per_node) for _ in range(whole)]
                return taken + ([self._from(left, rest)] if rest else [])
        if not anywhere:
            return None
        taken = []
        while count:
            most = next(f for f in range(self.per_node, 0, -1) if self.of[f])
            taken.append(self._from(most, min(most, count)))
            count -= taken[-1][1]
        return taken

    def give(self, taken: list[tuple[int, int]]) -> None:
        for machine, count in taken:
            self._move(machine, -count)

    def _room(self, free: int, whole: int) -> bool:
        return len(self.of[free]) > (whole if free == self.per_node else 0)

    def _from(self, free: int, count: int) -> tuple[int, int]:
        machine = next(reversed(self.of[free]))
        self._move(machine, count)
        return machine, count

    def _move(self, machine: int, count: int) -> None:
        del self.of[self.left[machine]][machine]
        self.left[machine] -= count
        self.of[self.left[machine]][machine] = None
        self.free -= count


@dataclass(slots=True)
class _Queue:
    """Of one tenant. `clocks`: seconds for which its first job was held up, by cause."""

    jobs: deque[tuple[int, tuple[float, float]]] = field(default_factory=deque)
    clocks: list[float] = field(default_factory=lambda: [0.0, 0.0])
    cause: int = FAIR_SHARE
    told: float = 0.0
    scattered_since: float | None = None
    used: int = 0

    def tick(self, now: float) -> None:
        if self.jobs:
            self.clocks[self.cause] += now - self.told
        self.told = now


def replay(
    workload: Workload,
    cluster: Devices,
    *,
    per_node: int = 8,
    quotas: Mapping[str, int] | None = None,
    patience: float = 600.0,
) -> list[Wait | None]:
    """How each job waited, in the order of the workload; None for one that can never run there."""
    return _Replay(workload, cluster, per_node, quotas or {}, patience).run()


class _Replay:
    def __init__(
        self, workload: Workload, cluster: Devices, per_node: int, quotas: Mapping[str, int], patience: float
    ) -> None:
        self.arrivals, self.cluster, self.quotas, self.patience = workload.arrivals, cluster, quotas, patience
        self.machines = {kind: _Machines.make(count, per_node) for kind, count in cluster.items()}
        self.queues: dict[str, _Queue] = {}
        self.waits: list[Wait | None] = [None] * len(self.arrivals)
        self.events: list[tuple[float, int, int]] = []  # (time, what, job)
        self.held: dict[int, tuple[str, list[tuple[int, int]]]] = {}

    def run(self) -> list[Wait | None]:
        self.events = [(arrival.time, _ARRIVAL, place) for place, arrival in enumerate(self.arrivals)]
        heapq.heapify(self.events)
        while self.events:
            now, what, job = heapq.heappop(self.events)
            if what == _END:
                kind, taken = self.held.pop(job)
                self.machines[kind].give(taken)
                self.queues[self.arrivals[job].needs.tenant].used -= self.arrivals[job].requested
            elif what == _ARRIVAL:
                self._submit(now, job)
                if len(self.queues[self.arrivals[job].needs.tenant].jobs) > 1:
                    continue  # others of its queue are before it, and nothing else has changed
            self._start_all(now)
        return self.waits

    def _submit(self, now: float, job: int) -> None:
        arrival = self.arrivals[job]
        queue = self.queues.setdefault(arrival.needs.tenant, _Queue())
        if self._kind(arrival) is None:
            return
        queue.tick(now)
        queue.jobs.append((job, (queue.clocks[0], queue.clocks[1])))

    def _kind(self, arrival: Arrival) -> str | None:
        """The type that it runs on: as its user asked, else the one of which there are most."""
        fits = [kind for kind, n in self.cluster.items() if n >= arrival.requested and arrival.needs.allows(kind)]
        if arrival.kind in fits or not fits:
            return arrival.kind if fits else None
        return max(fits, key=lambda kind: self.cluster[kind])

    def _start_all(self, now: float) -> None:
        waiting = [queue for queue in self.queues.values() if queue.jobs]
        for queue in sorted(waiting, key=lambda queue: queue.jobs[0][0]):
            queue.tick(now)
            while queue.jobs and self._start(now, queue):
                queue.scattered_since = None

    def _start(self, now: float, queue: _Queue) -> bool:
        job, before = queue.jobs[0]
        arrival = self.arrivals[job]
        kind = self._kind(arrival)
        assert kind is not None
        machines, count = self.machines[kind], arrival.requested
        quota = self.quotas.get(arrival.needs.tenant, total(self.cluster))
        if machines.free < count or (queue.used + count > quota and queue.used):
            queue.cause, queue.scattered_since = FAIR_SHARE, None
            return False
        since = now if queue.scattered_since is None else queue.scattered_since
        taken = machines.take(count, anywhere=now >= since + self.patience)
        if taken is None:
            if queue.scattered_since is None:
                heapq.heappush(self.events, (now + self.patience, _LOOK, job))
            queue.cause, queue.scattered_since = FRAGMENTATION, since
            return False
        least = -(-count // machines.per_node)
        rate = arrival.speed.rate({kind: count}, len(taken))
        seconds = arrival.work / rate if rate else 0.0
        queue.jobs.popleft()
        queue.used += count
        self.held[job] = kind, taken
        heapq.heappush(self.events, (now + seconds, _END, job))
        fair, scattered = (clock - start for clock, start in zip(queue.clocks, before, strict=True))
        self.waits[job] = Wait(fair, scattered, len(taken) - least, seconds)
        return True


def quotas_by_demand(workload: Workload, cluster: Devices) -> dict[str, int]:
    """A share of the devices for each tenant, by the device-seconds of its jobs; enough for its largest job."""
    demand: dict[str, float] = {}
    largest: dict[str, int] = {}
    for arrival in workload.arrivals:
        tenant, rate = arrival.needs.tenant, arrival.speed.rate({arrival.kind: arrival.requested})
        demand[tenant] = demand.get(tenant, 0.0) + (arrival.requested * arrival.work / rate if rate else 0.0)
        largest[tenant] = max(largest.get(tenant, 0), arrival.requested)
    every = sum(demand.values())
    return {tenant: max(largest[tenant], round(total(cluster) * of / every)) for tenant, of in demand.items()}
