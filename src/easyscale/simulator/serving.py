"""An online service that lends its idle devices: its curve of demand. The rules are `scheduler.colocation`'s."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from easyscale.core.cluster import Devices
from easyscale.scheduler.colocation import LIMIT, Colocation

DAY = 86400.0
Steps = tuple[tuple[float, int], ...]  # from each time on, so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """It owns `owned`, needs `demand` (by type: times and devices from then on) and keeps `headroom` besides.

    What it calls back it must have within `limit` seconds. The curve repeats after its `period`.
    """

    owned: dict[str, int]
    demand: Mapping[str, Steps]
    headroom: int = 1
    limit: float = LIMIT
    period: float = DAY

    def needed(self, kind: str, time: float) -> int:
        curve = self.demand.get(kind, ())
        at = bisect_right(curve, (time % self.period, 1 << 60)) - 1
        return curve[at][1] if curve else 0  # before the first time of a period, the last one of it holds

    def next_change(self, time: float) -> float:
        """When the curve has its next step; infinite if it is flat."""
        times = {moment for curve in self.demand.values() for moment, _ in curve}
        if not times:
            return math.inf
        turn, within = divmod(time, self.period)
        later = [moment for moment in times if moment > within]
        return turn * self.period + (min(later) if later else self.period + min(times))

    def rules(self) -> Colocation:
        return Colocation(
            owned=self.owned, headroom={kind: min(self.headroom, owned) for kind, owned in self.owned.items()},
            limit=self.limit,
        )  # fmt: skip

    def most_lent(self) -> dict[str, int]:
        found = {}
        for kind, owned in self.owned.items():
            least = min((count for _, count in self.demand.get(kind, ())), default=0)
            if (left := owned - least - self.headroom) > 0:
                found[kind] = left
        return found


def diurnal(owned: Devices, *, low: float = 0.25, high: float = 0.9, peak_hour: float = 20.0) -> dict[str, Steps]:
    """A day of a service that people use: a cosine between two shares of its devices, in steps of ten minutes."""
    curve: dict[str, list[tuple[float, int]]] = {kind: [] for kind in owned}
    for moment in range(0, int(DAY), 600):
        wave = (1 + math.cos(2 * math.pi * (moment / 3600 - peak_hour) / 24)) / 2
        for kind, count in owned.items():
            needed = math.ceil(count * (low + (high - low) * wave))
            if not curve[kind] or curve[kind][-1][1] != needed:
                curve[kind].append((float(moment), needed))
    return {kind: tuple(steps) for kind, steps in curve.items()}
