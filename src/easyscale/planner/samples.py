"""Robust summaries of measured times: what is typical, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median
from typing import Any

WINDOW = 15  # so many observations are kept: eight new ones, and the median has moved. Odd: it is one of them
NORMAL = 1.4826  # a median absolute deviation times this is the standard deviation of normal noise
MEDIAN = 1.2533  # a median is so much less precise than a mean


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds, known to a factor: the truth is expected between seconds/spread and seconds*spread."""

    seconds: float
    spread: float
    steps: int = 0  # that were measured for it; 0: a guess

    @property
    def sure(self) -> float:
        """1.0: certain; near 0: nobody knows."""
        return 1.0 / self.spread


def typical(values: Sequence[float], steps: int) -> Estimate:
    """The median, two of its standard errors wide, and never surer than the number of steps allows."""
    middle = median(values)
    noise = NORMAL * median(abs(value - middle) for value in values)
    error = 2.0 * MEDIAN * noise / sqrt(len(values)) / middle if middle > 0 else 0.0
    return Estimate(middle, 1.0 + error + 0.5 / max(steps, 1), steps)


@dataclass(slots=True)
class Samples:
    """The last observations of one thing. Outliers do not move a median; MAD says how much the rest differ."""

    values: list[float] = field(default_factory=list)
    steps: int = 0
    _estimate: Estimate | None = field(default=None, init=False, repr=False, compare=False)

    def add(self, value: float, steps: int = 1) -> None:
        self.values.append(value)
        del self.values[:-WINDOW]
        self.steps += steps
        self._estimate = None

    def estimate(self) -> Estimate | None:
        """None as long as there is nothing."""
        if self._estimate is None and self.values:
            self._estimate = typical(self.values, self.steps)
        return self._estimate

    def state(self) -> dict[str, Any]:
        return {"values": list(self.values), "steps": self.steps}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Samples:
        return cls(list(state["values"]), state["steps"])
