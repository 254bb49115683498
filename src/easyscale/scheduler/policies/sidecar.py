"""`sidecar`: shares follow the progress of jobs. Objective: makespan and average JCT with few restarts.

In the spirit of Wang, Gonzalez, Zhou, Williams, Friedman et al., "Non-Intrusive GPU Scheduling", SC'20, whose exact
objective is not public: an adaptive scheduler reads each job's progress and reallocates devices for incoming and
running jobs, and a side car restarts the processes inside a job instead of ending it. Our own design of that: at each
interval everyone first gets the fewest devices that it runs on, the earliest first, so that newcomers shrink those who
run. What is left goes, one device at a time, to whoever is furthest on among those that still gain: it ends soonest and
frees all that it holds. A running job changes only if that saves more than `payback` times the cost of the change.
"""

from __future__ import annotations

from easyscale.core.cluster import total
from easyscale.scheduler.curves import Curves
from easyscale.scheduler.ledger import Ledger, by_priority
from easyscale.scheduler.policies.optimus import start_least
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.state import Cluster, Job


class Sidecar:
    name = "sidecar"

    def __init__(self, *, interval: float = 60.0, payback: float = 2.0, least_gain: float = 0.5) -> None:
        self.interval = interval
        self._payback = payback
        self._least_gain = least_gain  # of a device's fair worth; below that it is left for others
        self._curves = Curves()

    def decide(self, cluster: Cluster) -> Wanted:
        self._curves.forget_all_but(cluster.jobs.values(), len(cluster.jobs))
        ledger = Ledger(cluster)
        for jobs in by_priority(cluster.jobs.values()):
            started = start_least(ledger, jobs)
            started.sort(key=lambda job: -_progress(cluster, job))
            for job in started:
                self._settle(cluster, ledger, job)
            for job in started:  # what nobody wanted at that price
                if not job.devices:
                    self._raise(ledger, job, self._useful(ledger, job, 0.0))
        return ledger.wanted

    def _settle(self, cluster: Cluster, ledger: Ledger, job: Job) -> None:
        """What it should have; or what it has, if the change does not pay and what it has is there."""
        ((kind, least),) = ledger.given(job).items()
        count = self._useful(ledger, job, self._least_gain)
        held = total(job.devices)
        if job.devices == {kind: held} and least <= held <= job.most and held != count:
            left, curve = job.remaining(cluster.now), self._curves.of(job, kind)
            saved = float("inf") if left is None else left / curve[held] - left / curve[count]
            if held < count and saved < self._payback * job.switch_seconds:
                count = held
        self._raise(ledger, job, count)

    def _useful(self, ledger: Ledger, job: Job, least_gain: float) -> int:
        """The most devices that each bring so much of what the first brought."""
        ((kind, count),) = ledger.given(job).items()
        curve = self._curves.of(job, kind)
        most = min(job.most, count + ledger.left[kind], count + ledger.room(job))
        worth, best = curve[count] / count, count
        for more in range(count + 1, most + 1):
            if curve[more] - curve[best] > least_gain * worth * (more - best):
                best = more
        return best

    def _raise(self, ledger: Ledger, job: Job, count: int) -> None:
        ((kind, given),) = ledger.given(job).items()
        if count > given:
            ledger.give(job, {kind: count - given})


def _progress(cluster: Cluster, job: Job) -> float:
    """The part that is done; without a known end, what it has had, so that the older go first."""
    if job.work is None:
        return job.attained_by(cluster.now) / (1.0 + job.attained_by(cluster.now))
    return min(1.0, job.progress(cluster.now) / job.work) if job.work > 0 else 1.0
