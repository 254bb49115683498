"""How fast a job is on given devices, as everyone who decides about it asks."""

from __future__ import annotations

from typing import Protocol

from easyscale.core.cluster import Devices


class Speed(Protocol):
    """The speed of one job. Implementations remember their answers: policies ask for the same ones again and again."""

    def rate(self, devices: Devices, nodes: int | None = None) -> float:
        """Global steps a second with the best assignment of ESTs to these devices; 0.0 if they cannot run it.

        `nodes`: over how many machines they are spread; None: as few as can hold them.
        """
        ...
