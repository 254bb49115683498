"""`srtf`: shortest remaining time first, with gangs and an oracle. Objective: average JCT without elasticity.

Source: Schrage (Operations Research 1968); the oracle baseline of Tiresias (NSDI'19) and of many since. Jobs are sorted
by the time that they still need on what their users asked for; each in turn runs if that fits, and is stopped if not.
It knows the work of every job, which no cluster does. A job whose work is unknown comes last, in order of submission.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from easyscale.scheduler.ledger import Ledger, asked_kinds, by_priority
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job


class Srtf:
    name = "srtf"

    def __init__(self, *, interval: float = 0.0) -> None:
        self.interval = interval

    def decide(self, cluster: Cluster) -> Wanted:
        ledger = Ledger(cluster)
        for jobs in by_priority(cluster.jobs.values()):
            run_in_order(ledger, sorted(jobs, key=lambda job: _seconds(cluster, job)))
        return ledger.wanted


def run_in_order(ledger: Ledger, jobs: Iterable[Job]) -> None:
    """Each in turn, if what its user asked for is still there; who does not fit is passed over."""
    for job in jobs:
        if not any(ledger.left.values()):
            return
        devices = ledger.gang(job, job.asked, asked_kinds(ledger.cluster, job, job.asked))
        if devices is not None:
            ledger.give(job, devices)


def _seconds(cluster: Cluster, job: Job) -> float:
    """On the type that is best for it."""
    left = job.remaining(cluster.now)
    if left is None:
        return inf
    rate = max((job.speed.rate({kind: job.asked}) for kind in asked_kinds(cluster, job, job.asked)), default=0.0)
    return left / rate if rate > 0.0 else inf
