"""`elastic-batch`: batch and devices together, by a dynamic program. Objective: the sum of speed-ups, so many jobs run.

Source: Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", MASCOTS'20, arXiv 2006.13878. With
P[j][k] the best sum of speed-ups of the first j jobs on k devices: P[j][k] = max over g of (best speed-up of job j on g
devices over its range of batches) + P[j-1][k-g]. Jobs that do not fit wait, the latest first. Only jobs that allow it
(`Needs.batch`) have their batch scaled: their bits are then not those of a fixed batch. All others keep theirs, and
only their devices change. `scale=False`: nobody's batch is scaled, the baseline that the source compares with. Types: a
job stays on the type that it holds; a new one goes where it is fastest among those with room for its least.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from easyscale.core.cluster import Devices
from easyscale.scheduler.ledger import Ledger, by_priority
from easyscale.scheduler.policies.optimus import start_least
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import BatchSpeed, Cluster, Job

STEPS = 5  # batches that are tried in a job's range, evenly in their logarithm: speed is smooth in the batch


class ElasticBatch:
    name = "elastic-batch"

    def __init__(self, *, interval: float = 60.0, scale: bool = True) -> None:
        self.interval = interval
        self._scale = scale
        self._best: dict[str, tuple[object, dict[tuple[str, int], tuple[float, float]]]] = {}

    def decide(self, cluster: Cluster) -> Wanted:
        self._best = {name: known for name, known in self._best.items() if name in cluster.jobs}
        ledger = Ledger(cluster)
        for jobs in by_priority(cluster.jobs.values()):
            started = start_least(ledger, jobs)
            for kind in cluster.kinds:
                self._share(ledger, kind, [job for job in started if kind in ledger.given(job)])
        return ledger.wanted

    def batch(self, cluster: Cluster, job: Job, devices: Devices) -> float:
        if len(devices) != 1:
            return 1.0
        ((kind, count),) = devices.items()
        return self._fastest(job, kind, count)[1]

    def _share(self, ledger: Ledger, kind: str, jobs: list[Job]) -> None:
        """What is left of a type, on top of each job's least, by the program."""
        spare = ledger.left.get(kind, 0)
        if not jobs or not spare:
            return
        best = np.zeros(spare + 1)  # P[j], by devices on top of the leasts
        picks: list[NDArray[np.int64]] = []
        for job in jobs:
            gains = self._gains(ledger, job, kind, spare)
            options = np.full((len(gains), spare + 1), -np.inf)
            for more, gain in enumerate(gains):
                options[more, more:] = best[: spare + 1 - more] + gain
            pick = options.argmax(axis=0)
            best = options[pick, np.arange(spare + 1)]
            picks.append(pick)
        at = int(best.argmax())
        for job, pick in zip(reversed(jobs), reversed(picks), strict=True):
            more = int(pick[at])
            at -= more
            more = min(more, ledger.room(job))
            if more:
                ledger.give(job, {kind: more})

    def _gains(self, ledger: Ledger, job: Job, kind: str, spare: int) -> list[float]:
        """Speed-ups with 0, 1, .. more devices, against its least at its own batch."""
        least = job.needs.least
        most = max(least, min(job.most, least + spare, least + ledger.room(job)))
        alone = job.speed.rate({kind: least})
        return [self._fastest(job, kind, count)[0] / alone for count in range(least, most + 1)]

    def _fastest(self, job: Job, kind: str, count: int) -> tuple[float, float]:
        """Speed and batch of a job on so many devices."""
        known = self._best.get(job.id)
        if known is None or known[0] is not job.speed:
            known = self._best[job.id] = (job.speed, {})
        found = known[1].get((kind, count))
        if found is None:
            found = known[1][kind, count] = _search(job, {kind: count}, self._scale)
        return found


def _search(job: Job, devices: Devices, scale: bool) -> tuple[float, float]:
    if not scale or job.needs.batch is None or not isinstance(job.speed, BatchSpeed):
        return job.speed.rate(devices), 1.0
    low, high = job.needs.batch
    tried = {1.0, *(low * (high / low) ** (step / (STEPS - 1)) for step in range(STEPS))}
    return max((job.speed.rate_at(devices, batch), batch) for batch in sorted(tried))
