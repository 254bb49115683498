"""`afs`: apathetic future share. Objective: average JCT, elastic, by comparing jobs in pairs.

Source: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI'21, the greedy AFS-L. Devices go
out one at a time. Of two jobs the shorter goes first as long as it has none; after that the longer one is preferred if
the device raises its speed, relative to its speed WITH it, by more than it raises the shorter's relative to its speed
WITHOUT it: what the shorter frees when it ends is then worth less than what the longer gains now. Lengths are the
remaining times on one device. As with `optimus`, a job stays on the type that it holds. Unknown work: attained service.
"""

from __future__ import annotations

import numpy as np

from easyscale.scheduler.curves import Curves
from easyscale.scheduler.ledger import Ledger, by_priority, kinds_for
from easyscale.scheduler.policies.optimus import start_least
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job


class Afs:
    name = "afs"

    def __init__(self, *, interval: float = 0.0) -> None:
        self.interval = interval
        self._curves = Curves()

    def decide(self, cluster: Cluster) -> Wanted:
        self._curves.forget_all_but(cluster.jobs.values(), len(cluster.jobs))
        ledger = Ledger(cluster)
        for jobs in by_priority(cluster.jobs.values()):
            order = sorted(jobs, key=lambda job: self._length(cluster, job))
            self._grow(ledger, start_least(ledger, order))
        return ledger.wanted

    def _length(self, cluster: Cluster, job: Job) -> float:
        left = job.remaining(cluster.now)
        if left is None:
            return job.attained_by(cluster.now)
        least = job.needs.least
        curves = [self._curves.of(job, kind) for kind in kinds_for(cluster, job)]
        rate = max((curve[least] for curve in curves), default=0.0)
        return left * least / rate if rate > 0.0 else float("inf")

    def _grow(self, ledger: Ledger, jobs: list[Job]) -> None:
        """`jobs` are sorted by length, so the one that leads is always the shorter of the two that are compared."""
        growth = np.array([self._growth(ledger, job) for job in jobs])  # speed with one more over speed without
        while growth.size and any(ledger.left.values()):
            longer = 1.0 - 1.0 / growth
            leader = 0
            while (passed := longer[leader + 1 :] > growth[leader] - 1.0).any():
                leader += 1 + int(np.argmax(passed))
            if growth[leader] <= 1.0:
                return
            (kind,) = ledger.given(jobs[leader])
            if ledger.fits(jobs[leader], {kind: 1}):
                ledger.give(jobs[leader], {kind: 1})
                growth[leader] = self._growth(ledger, jobs[leader])
            else:
                growth[leader] = 1.0

    def _growth(self, ledger: Ledger, job: Job) -> float:
        ((kind, count),) = ledger.given(job).items()
        if count >= job.most:
            return 1.0
        curve = self._curves.of(job, kind)
        return max(1.0, curve[count + 1] / curve[count])
