"""A speed that remembers where the model was too hopeful."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from easyscale.core.cluster import Devices, key
from easyscale.planner.model import EstSpeed, Key


@dataclass(slots=True, eq=False)
class LearnedSpeed:
    """The model's answer, but never more than what was measured on devices that disappointed."""

    model: EstSpeed
    measured: Mapping[Key, float] = field(default_factory=dict)  # global steps a second

    def rate(self, devices: Devices, nodes: int | None = None) -> float:
        found = self.model.rate(devices, nodes)
        return min(found, self.measured.get(key(devices), found)) if self.measured else found
