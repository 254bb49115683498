"""`easyscale-homo`, `easyscale-heter`: greedy growth by proposals. Objective: the speed-up of each next device.

Source: Li et al., "EasyScale: Elastic Training with Consistent Accuracy and Improved Utilization on GPUs", SC'23, arXiv
2208.14228, and its artifact. A new job waits for one device of the type that its user prefers. The master of a running
job proposes to grow, each proposal so many devices of one type, with the speed-up per added device; the scheduler
grants greedily by that, ties to the larger grant. Nobody ever shrinks. `homo`: a job grows on its own type only;
`heter`: D2 jobs grow on any.

`published_bugs=True` estimates as the artifact does: of several mappings of ESTs to the same devices it keeps one whose
speed-up exceeds the kept one's WASTE (not its speed-up), and it takes the waste of plans on one type to be 0.
`first_anywhere=True`: a new job takes its first device of any type that is free, which the artifact does not do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from easyscale.core.cluster import Devices, key, plus, total
from easyscale.scheduler.ledger import Ledger, asked_kinds, by_priority, kinds_for
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job

Key = tuple[tuple[str, int], ...]


class _Published:
    mixes = False

    def __init__(
        self, *, interval: float = 60.0, published_bugs: bool = False, first_anywhere: bool = False, proposals: int = 3
    ) -> None:
        self.interval = interval
        self._bugs, self._anywhere, self._proposals = published_bugs, first_anywhere, proposals
        self._known: dict[str, tuple[object, dict[Key, float]]] = {}

    def decide(self, cluster: Cluster) -> Wanted:
        self._known = {name: known for name, known in self._known.items() if name in cluster.jobs}
        ledger = Ledger(cluster)
        for jobs in by_priority(cluster.jobs.values()):
            running = [job for job in jobs if self._start(ledger, job)]
            while best := max((self._proposal(ledger, job) for job in running), key=lambda p: p[:2], default=None):
                gain, _, job, more = best
                if gain <= 0.0:
                    break
                ledger.give(job, more)
        return ledger.wanted

    def _start(self, ledger: Ledger, job: Job) -> bool:
        least, cluster = job.needs.least, ledger.cluster
        if least <= total(job.devices) <= job.needs.most and ledger.fits(job, job.devices):
            ledger.give(job, job.devices)
            return True
        kinds = kinds_for(cluster, job) if self._anywhere else asked_kinds(cluster, job, least)
        devices = ledger.gang(job, least, kinds)
        if devices is None:  # all that it asked for is not there of its type, so any may have to do
            devices = ledger.gang(job, least, asked_kinds(cluster, job, job.asked))
        if devices is not None:
            ledger.give(job, devices)
        return devices is not None

    def _proposal(self, ledger: Ledger, job: Job) -> tuple[float, int, Job, Devices]:
        """The best of the few that a job makes: speed-up per device, devices, and which."""
        held = ledger.given(job)
        now = self._rate(job, held)
        kinds = kinds_for(ledger.cluster, job) if self.mixes and job.needs.level == "D2" else list(held)
        best: tuple[float, int, Job, Devices] = (0.0, 0, job, {})
        for kind in kinds:
            most = min(job.most - total(held), ledger.left.get(kind, 0), ledger.room(job))
            found = []
            for count in range(1, most + 1):
                gain = (self._rate(job, plus(held, {kind: count})) / now - 1.0) / count
                if gain > 1e-9:
                    found.append((gain, count))
            for gain, count in sorted(found, reverse=True)[: self._proposals]:
                if (gain, count) > best[:2]:
                    best = (gain, count, job, {kind: count})
        return best

    def _rate(self, job: Job, devices: Devices) -> float:
        if not self._bugs:
            return job.speed.rate(devices)
        known = self._known.get(job.id)
        if known is None or known[0] is not job.speed:
            known = self._known[job.id] = (job.speed, {})
        wanted = key(devices)
        if wanted not in known[1]:
            known[1][wanted] = _artifact_rate(job, dict(wanted))
        return known[1][wanted]


class Homogeneous(_Published):
    name = "easyscale-homo"


class Heterogeneous(_Published):
    name = "easyscale-heter"
    mixes = True


def _artifact_rate(job: Job, devices: dict[str, int]) -> float:
    """The throughput that the artifact expects of these devices, in global steps a second."""
    ests = job.needs.ests
    speed = {kind: job.speed.rate({kind: 1}) * ests for kind in devices}  # mini-batches a second of one device
    kept: tuple[float, float] | None = None  # throughput, waste
    for loads in _mappings(ests, devices):
        slowest = max(loads[kind] / speed[kind] for kind in devices)
        places = sum(count * loads[kind] for kind, count in devices.items())
        waste = sum(count * (speed[kind] - loads[kind] / slowest) for kind, count in devices.items())
        waste = 0.0 if len(devices) == 1 else waste + (places - ests) / slowest
        throughput = sum(count * speed[kind] for kind, count in devices.items()) - waste
        if kept is None or throughput > kept[1]:
            kept = throughput, waste
    return kept[0] / ests if kept else 0.0


def _mappings(ests: int, devices: dict[str, int]) -> Iterator[dict[str, int]]:
    """ESTs on each device of a type, alike within one, with places for all and no device that none could leave."""
    kinds = list(devices)
    for loads in product(*(range(1, -(-ests // devices[kind]) + 1) for kind in kinds)):
        places = sum(devices[kind] * load for kind, load in zip(kinds, loads, strict=True))
        if ests <= places < ests + sum(devices.values()):
            yield dict(zip(kinds, loads, strict=True))
