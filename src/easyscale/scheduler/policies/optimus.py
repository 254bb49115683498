"""`optimus`: the next device to whoever's remaining time falls most by it. Objective: the sum of remaining times.

Source: Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters", EuroSys'18. Each job
first gets the fewest devices that it runs on; then devices go out one at a time by the marginal gain in estimated time
to completion. Parameter servers are left out: workers alone are counted. `first`: who starts when not all can, the
"smallest" needs (as in the Pollux artifact, OSDI'21) or the "earliest". Optimus knows one type; here a job stays on the
type that it holds, and starts on the fastest for it that has room. A job of unknown work is taken to be at its half.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Literal

from easyscale.scheduler.curves import Curves
from easyscale.scheduler.ledger import Ledger, by_priority, kinds_for
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job


class Optimus:
    name = "optimus"

    def __init__(self, *, interval: float = 60.0, first: Literal["smallest", "earliest"] = "smallest") -> None:
        self.interval = interval
        self._first = first
        self._curves = Curves()

    def decide(self, cluster: Cluster) -> Wanted:
        self._curves.forget_all_but(cluster.jobs.values(), len(cluster.jobs))
        ledger = Ledger(cluster)
        for jobs in by_priority(cluster.jobs.values()):
            order = sorted(jobs, key=lambda job: job.needs.least) if self._first == "smallest" else jobs
            self._grow(cluster, ledger, start_least(ledger, order))
        return ledger.wanted

    def _grow(self, cluster: Cluster, ledger: Ledger, jobs: list[Job]) -> None:
        heap = [(-self._gain(cluster, ledger, job), turn, job) for turn, job in enumerate(jobs)]
        heapify(heap)
        while heap and any(ledger.left.values()):
            gain, turn, job = heappop(heap)
            if gain >= 0.0:
                return
            (kind,) = ledger.given(job)
            if ledger.fits(job, {kind: 1}):
                ledger.give(job, {kind: 1})
                heappush(heap, (-self._gain(cluster, ledger, job), turn, job))

    def _gain(self, cluster: Cluster, ledger: Ledger, job: Job) -> float:
        ((kind, count),) = ledger.given(job).items()
        if count >= job.most:
            return 0.0
        left = job.remaining(cluster.now)
        left = job.progress(cluster.now) + 1.0 if left is None else left
        curve = self._curves.of(job, kind)
        return left / curve[count] - left / curve[count + 1] if curve[count + 1] > 0.0 else 0.0


def start_least(ledger: Ledger, jobs: Iterable[Job]) -> list[Job]:
    """Each in turn gets the fewest devices that it runs on, of the type that it holds or the fastest. Who got them?"""
    started = []
    for job in jobs:
        devices = ledger.gang(job, job.needs.least, kinds_for(ledger.cluster, job))
        if devices is not None:
            ledger.give(job, devices)
            started.append(job)
    return started
