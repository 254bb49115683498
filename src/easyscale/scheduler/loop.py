"""The one loop of decisions, for live and simulated clusters: events in, changes out. The caller has the clock.

    scheduler.take(event)                   # whatever happens
    at = scheduler.next_decision(now)       # when to ask
    for change in scheduler.decide(at):     # carry each out, in this order; then take(Allocated(...))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from easyscale.core.cluster import Devices, same
from easyscale.scheduler.borrowing import lend_idle
from easyscale.scheduler.events import Allocated, Event, JobProgressed
from easyscale.scheduler.fold import apply
from easyscale.scheduler.policy import Alarmed, Batching, Delta, Policy
from easyscale.scheduler.rules import check, check_delta
from easyscale.scheduler.state import Cluster

QUIET = (JobProgressed, Allocated)  # no reason to decide: the one changes little, the other is our own doing


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A job goes from some devices to others. None: it waits, with its state kept."""

    job: str
    before: Devices
    devices: Devices
    batch: float = 1.0


class Scheduler:
    """Folds events, asks the policy when it is time, checks what it says, and puts the changes in order."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        self.cluster = cluster
        self.policy = policy
        self._due = bool(cluster.jobs)
        self._last: float | None = None
        self._alarm = policy if isinstance(policy, Alarmed) else None
        self._batching = policy if isinstance(policy, Batching) else None

    def take(self, event: Event) -> None:
        apply(self.cluster, event)
        if not isinstance(event, QUIET):
            self._due = True

    def next_decision(self, now: float) -> float | None:
        """When to call `decide`; None: nothing has happened since that could matter. At once if devices are called."""
        if self.cluster.called:
            return now
        if self.policy.interval <= 0.0:
            if self._due:
                return now
            look = self._alarm.next_look(self.cluster) if self._alarm is not None else None
            return None if look is None else max(now, look)
        if not self.cluster.jobs:
            return None
        if self._last is None:
            return now
        return max(now, (floor(self._last / self.policy.interval) + 1) * self.policy.interval)

    def decide(self, now: float) -> list[Change]:
        """What changes, so that each change finds its devices free when those before it were carried out.

        A job that must give up its devices before it gets others (two that swap types) comes twice.
        """
        cluster = self.cluster
        cluster.now = max(cluster.now, now)
        if cluster.entitled:
            cluster.quotas.update(lend_idle(cluster))
        decision = self.policy.decide(cluster)
        self._last, self._due = now, False
        cluster.touched.clear()
        touched: Mapping[str, Devices]
        if isinstance(decision, Delta):
            touched = decision.changed
            check_delta(cluster, touched)
        else:
            touched = {**{name: {} for name, job in cluster.jobs.items() if job.devices}, **decision}
            check(cluster, decision)
        changes = [change for name, devices in touched.items() if (change := self._change(name, devices)) is not None]
        return in_order(changes, dict(cluster.free()))

    def _change(self, name: str, devices: Devices) -> Change | None:
        job = self.cluster.jobs[name]
        batch = self._batching.batch(self.cluster, job, devices) if self._batching is not None and devices else 1.0
        if same(job.devices, devices) and (batch == job.batch or not devices):
            return None
        return Change(job=name, before=dict(job.devices), devices=dict(devices), batch=batch)


def in_order(changes: list[Change], free: dict[str, int]) -> list[Change]:
    """Shrinks first, then whoever finds its devices free; of those who wait for one another, one lets go first."""
    ordered: list[Change] = []
    waiting = changes
    while waiting:
        later = []
        for change in sorted(waiting, key=_grows):
            if all(n - change.before.get(kind, 0) <= free.get(kind, 0) for kind, n in change.devices.items()):
                _move(change, free)
                ordered.append(change)
            else:
                later.append(change)
        if len(later) == len(waiting):
            stuck = next(change for change in later if change.before)
            let_go = Change(job=stuck.job, before=stuck.before, devices={})
            _move(let_go, free)
            ordered.append(let_go)
            later = [
                Change(job=c.job, before={}, devices=c.devices, batch=c.batch) if c is stuck else c for c in later
            ]
        waiting = later
    return ordered


def _grows(change: Change) -> bool:
    return any(n > change.before.get(kind, 0) for kind, n in change.devices.items())


def _move(change: Change, free: dict[str, int]) -> None:
    for kind, count in change.before.items():
        free[kind] = free.get(kind, 0) + count
    for kind, count in change.devices.items():
        free[kind] = free.get(kind, 0) - count
