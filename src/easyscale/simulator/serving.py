"""An online service that lends its idle devices: a demand curve, and what follows from it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from easyscale.core.cluster import Devices

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
    limit: float = 5.0
    period: float = DAY

    def lendable(self, time: float) -> dict[str, int]:
        """What is idle beyond the head-room."""
        idle = {kind: owned - self.needed(kind, time) - self.headroom for kind, owned in self.owned.items()}
        return {kind: left for kind, left in idle.items() if left > 0}

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
