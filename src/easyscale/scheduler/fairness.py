"""Finish-time fairness: what each job pays for sharing. After Themis (Mahajan et al., NSDI'20).

rho = (time from submission to end) / (time alone on what its user asked for x contention while it was there)

Contention is devices asked for by all over devices there, at least 1. A rho of 1 is a fair share of the cluster to the
user's own liking; below 1 the job did better than that.
"""

from __future__ import annotations

from easyscale.core.cluster import total
from easyscale.scheduler.state import Cluster, Job

SHORT = 60.0  # s; a job that alone takes less is judged as if it took that: a moment's wait is no injustice

CROWD = 10.0  # no contention excuses more: in a cluster that falls ever further behind, nobody's turn would come


class Contention:
    """The integral of contention over time, looked at whenever something happens, and where each job came in."""

    def __init__(self) -> None:
        self._now = 0.0
        self._integral = 0.0
        self._level = 1.0  # since then
        self._came: dict[str, float] = {}

    def pass_to(self, cluster: Cluster) -> None:
        self._integral += (cluster.now - self._now) * self._level
        self._now = cluster.now
        self._level = max(1.0, cluster.demand / max(1, total(cluster.capacity)))
        for name in cluster.touched:
            self._came.setdefault(name, self._integral)

    def rho(self, job: Job, left: float, alone: float) -> float:
        """At the best that can still come: if from now on it ran as its user asked, at the rate `alone`.

        `left`: global steps to go, expected where nobody knows. Contention beyond CROWD does not count.
        """
        age = self._now - job.submitted
        work = job.work if job.work is not None else job.done + left
        paid = (age + left / alone) / max(work / alone, SHORT)
        stay = self._integral - self._came.setdefault(job.id, self._integral)
        return paid / min(max(1.0, stay / age), CROWD) if age > 0.0 else paid

    def forget_all_but(self, jobs: dict[str, Job]) -> None:
        if len(self._came) > 2 * len(jobs) + 256:
            self._came = {name: came for name, came in self._came.items() if name in jobs}
