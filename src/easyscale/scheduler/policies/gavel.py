"""`gavel`: the largest least share of time, over types. Objective: max-min fairness with devices of several types.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI'20. A
linear program (HiGHS) finds for each job the fraction of time that it should spend on each type, so that the least
normalized throughput is as large as can be; normalized by its throughput with an equal share of all types. Rounds
carry that out: who has had least of what it is due goes first. Jobs get what their users asked for, one type a round.
The program is solved again when jobs or devices come or go, or a job asks for another number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from easyscale.scheduler.ledger import Ledger, by_priority, kinds_for
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job

LITTLE = 1e-6  # what rounding leaves of a device or of a share; a program with such numbers in it may never end


class Gavel:
    name = "gavel"

    def __init__(self, *, interval: float = 360.0) -> None:
        self.interval = interval
        self._due: dict[str, dict[str, float]] = {}  # job -> type -> fraction of time
        self._had: dict[str, dict[str, float]] = {}  # job -> type -> seconds
        self._seen = 0.0
        self._solved: tuple[object, ...] = ()

    def decide(self, cluster: Cluster) -> Wanted:
        self._count(cluster)
        ledger = Ledger(cluster)
        signature = (tuple((job.id, job.asked) for job in cluster.jobs.values()), tuple(cluster.capacity.items()))
        if signature != self._solved:
            self._solved = signature
            left = {kind: float(count) for kind, count in cluster.capacity.items()}
            self._due = {}
            for jobs in by_priority(cluster.jobs.values()):
                self._due |= _fractions(cluster, jobs, left)
        for jobs in by_priority(cluster.jobs.values()):
            self._round(ledger, jobs)
        return ledger.wanted

    def _count(self, cluster: Cluster) -> None:
        """Who has run where since the last round."""
        passed, self._seen = cluster.now - self._seen, cluster.now
        self._had = {name: had for name, had in self._had.items() if name in cluster.jobs}
        for job in cluster.jobs.values():
            had = self._had.setdefault(job.id, {})
            for kind in job.devices:
                had[kind] = had.get(kind, 0.0) + min(passed, cluster.now - job.since)

    def _round(self, ledger: Ledger, jobs: list[Job]) -> None:
        pairs = [
            (self._priority(ledger.cluster, job, kind), job, kind)
            for job in jobs
            for kind in self._due[job.id]
            if job.needs.allows(kind)  # its first start has bound it to a type, since the program was solved
        ]
        pairs.sort(key=lambda pair: -pair[0])
        for _, job, kind in pairs:
            if not ledger.given(job) and ledger.fits(job, {kind: job.asked}):
                ledger.give(job, {kind: job.asked})
        for job in jobs:  # nobody waits while what it asked for is idle
            if not ledger.given(job) and (devices := ledger.gang(job, job.asked, kinds_for(ledger.cluster, job))):
                ledger.give(job, devices)

    def _priority(self, cluster: Cluster, job: Job, kind: str) -> float:
        age = max(cluster.now - job.submitted, 1.0)
        return self._due[job.id][kind] / (self._had[job.id].get(kind, 0.0) / age + 1e-3)


def _fractions(cluster: Cluster, jobs: list[Job], left: dict[str, float]) -> dict[str, dict[str, float]]:
    """The program for one class of jobs; what it uses is taken from `left`."""
    kinds = [kind for kind, count in left.items() if count > LITTLE]
    rates = np.array([[_rate(cluster, job, kind) for kind in kinds] for job in jobs]).reshape(len(jobs), len(kinds))
    runs = rates.max(axis=1, initial=0.0) > 0.0
    found: dict[str, dict[str, float]] = {job.id: {} for job in jobs}
    some = [job for job, can in zip(jobs, runs, strict=True) if can]
    if not some:
        return found
    fractions = _solve(rates[runs], np.array([job.asked for job in some], float), np.array([left[k] for k in kinds]))
    for job, row in zip(some, fractions, strict=True):
        for kind, fraction in zip(kinds, row, strict=True):
            if fraction > LITTLE:
                found[job.id][kind] = float(fraction)
                left[kind] -= float(fraction) * job.asked
    return found


def _rate(cluster: Cluster, job: Job, kind: str) -> float:
    if kind not in kinds_for(cluster, job) or job.asked > cluster.capacity.get(kind, 0):
        return 0.0
    return job.speed.rate({kind: job.asked})


def _solve(rates: NDArray[np.float64], size: NDArray[np.float64], left: NDArray[np.float64]) -> NDArray[np.float64]:
    """max t: sum_k X_jk r_jk / (r_j with equal shares) >= t, sum_k X_jk <= 1, sum_j X_jk size_j <= devices_k."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack, kron, vstack

    jobs, kinds = rates.shape
    equal = rates @ (left / left.sum())
    normal = rates / equal[:, None] * size[:, None]
    each = csr_array(kron(csr_array(np.eye(jobs)), np.ones((1, kinds))))
    per_kind = csr_array(kron(size[None, :], np.eye(kinds)))
    gain = csr_array((normal.ravel(), (np.repeat(np.arange(jobs), kinds), np.arange(jobs * kinds))))
    matrix = vstack([
        hstack([each, csr_array((jobs, 1))]),
        hstack([per_kind, csr_array((kinds, 1))]),
        hstack([-gain, csr_array(np.ones((jobs, 1)))]),
    ])  # fmt: skip
    limits = np.concatenate([np.ones(jobs), left, np.zeros(jobs)])
    aim = np.zeros(jobs * kinds + 1)
    aim[-1] = -1.0
    bounds = [(0.0, 0.0 if rate <= 0.0 else 1.0) for rate in rates.ravel()] + [(0.0, None)]
    found = linprog(aim, A_ub=matrix, b_ub=limits, bounds=bounds, method="highs")
    assert found.success, found.message
    return np.asarray(found.x[:-1], dtype=np.float64).reshape(jobs, kinds)
