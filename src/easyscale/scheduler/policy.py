"""A policy: looks at the cluster, says who should hold what. It changes nothing and asks nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from easyscale.core.cluster import Devices
from easyscale.scheduler.state import Cluster, Job

Wanted = Mapping[str, Devices]  # job -> devices; a job that is left out holds none


@dataclass(frozen=True, slots=True)
class Delta:
    """Only who changes: a job that is left out keeps what it holds. For policies that look at a few of many jobs."""

    changed: Wanted


class Policy(Protocol):
    """`interval`: seconds between two decisions; 0: after each event that may change something."""

    name: str
    interval: float

    def decide(self, cluster: Cluster) -> Wanted | Delta: ...


@runtime_checkable
class Alarmed(Protocol):
    """A policy that wants to look again at a certain time though nothing happens (a queue's threshold, a lease)."""

    def next_look(self, cluster: Cluster) -> float | None: ...


@runtime_checkable
class Batching(Protocol):
    """A policy that also scales the global batch of jobs that allow it (`Needs.batch`)."""

    def batch(self, cluster: Cluster, job: Job, devices: Devices) -> float: ...


def whole(cluster: Cluster, decision: Wanted | Delta) -> Wanted:
    """A decision with everyone in it."""
    if not isinstance(decision, Delta):
        return decision
    kept = {name: job.devices for name, job in cluster.jobs.items() if job.devices}
    return {**kept, **decision.changed}
