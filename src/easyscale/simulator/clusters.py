"""The devices of a simulated cluster: those that stay, those that come and go, those that a service lends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from easyscale.core.cluster import DeviceKind, Devices, parse_devices, plus
from easyscale.scheduler.state import Cluster
from easyscale.simulator.serving import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """At a time, devices of a type come (positive) or go without notice (negative)."""

    time: float
    kind: str
    change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    kinds: dict[str, DeviceKind]
    counts: dict[str, int]  # its own, at the start
    comings: tuple[Coming, ...] = ()
    service: Service | None = None
    quotas: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, *, per_node: int = 8, memory_gb: Devices | None = None) -> ClusterSpec:
        """`v100:32,p100:16,t4:16`"""
        counts = parse_devices(text)
        memory = memory_gb or {}
        kinds = {
            kind: DeviceKind(name=kind, per_node=per_node, memory_gb=memory.get(kind, float("inf"))) for kind in counts
        }
        return cls(kinds=kinds, counts=counts)

    def with_service(self, service: Service, per_node: int = 8) -> ClusterSpec:
        """Also the devices of an online service, as far as it lends them."""
        more = {kind: DeviceKind(name=kind, per_node=per_node) for kind in service.owned if kind not in self.kinds}
        return replace(self, kinds={**self.kinds, **more}, service=service)

    def with_comings(self, comings: Iterable[Coming]) -> ClusterSpec:
        return replace(self, comings=tuple(sorted(comings, key=lambda coming: coming.time)))

    def most(self) -> dict[str, int]:
        """What training may hold at the best of times."""
        now, best = dict(self.counts), dict(self.counts)
        for coming in self.comings:
            now[coming.kind] = now.get(coming.kind, 0) + coming.change
            best[coming.kind] = max(best.get(coming.kind, 0), now[coming.kind])
        return plus(best, self.service.most_lent()) if self.service else best

    def state(self) -> Cluster:
        """The scheduler's view before anything has happened."""
        return Cluster(kinds=dict(self.kinds), capacity=dict(self.counts), quotas=dict(self.quotas))
