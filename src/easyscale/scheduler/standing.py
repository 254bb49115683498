"""What a policy keeps of jobs between decisions: where they may run and how fast. Jobs that are alike share it."""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.core.cluster import Needs
from easyscale.planner.speed import Speed
from easyscale.scheduler.curves import Curve, Curves
from easyscale.scheduler.ledger import asked_kinds, kinds_for
from easyscale.scheduler.state import Cluster, Job


@dataclass(frozen=True, slots=True)
class Standing:
    speed: Speed
    needs: Needs
    curves: dict[str, Curve]  # by the types that it may run on
    best: float  # its highest rate on one type
    alone: float  # on what its user asked for
    mixes: bool


class Standings:
    """By speed, needs and wish of a job. Its first start binds it, which gives it other needs.

    Speeds and needs are known by their identity: a standing keeps both alive.
    """

    def __init__(self) -> None:
        self._curves = Curves()
        self._known: dict[tuple[int, int, int | None, str], Standing] = {}
        self._capacity: dict[str, int] = {}

    def begin(self, cluster: Cluster) -> None:
        """Before each decision. Forgets all when the devices change: what a user asked for may be there now."""
        if cluster.capacity != self._capacity:
            self._known, self._capacity = {}, dict(cluster.capacity)

    def of(self, cluster: Cluster, job: Job) -> Standing:
        name = (id(job.speed), id(job.needs), job.requested, job.kind)
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._make(cluster, job)
        return known

    def forget_some(self, cluster: Cluster) -> None:
        """Those of jobs that have left, when they are many. The others are soon made again."""
        if len(self._known) > 2 * len(cluster.jobs) + 256:
            self._known = {}
            self._curves.forget_all_but(cluster.jobs.values(), len(cluster.jobs))

    def _make(self, cluster: Cluster, job: Job) -> Standing:
        curves = {kind: self._curves.curve(job, kind) for kind in kinds_for(cluster, job)}
        curves = {kind: curve for kind, curve in curves.items() if curve.rates[curve.peak] > 0.0}
        best = max((curve.rates[curve.peak] for curve in curves.values()), default=0.0)
        asked = [kind for kind in asked_kinds(cluster, job, job.asked) if kind in curves]
        alone = max((curves[kind].rates[job.asked] for kind in asked), default=0.0)
        mixes = job.needs.level == "D2" and len(curves) > 1
        return Standing(job.speed, job.needs, curves, best, alone or best, mixes)
