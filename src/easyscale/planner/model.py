"""How fast a job of N ESTs is on given devices, from the seconds of one local step on each type and the reduction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from easyscale.core.cluster import Devices, Level, key
from easyscale.planner.assignment import TypeAssignment, assign_types, solve
from easyscale.planner.reduction import Reduction

__all__ = ["EstSpeed", "Figures", "Reduction", "figures", "one_type_rates", "published_waste"]

Key = tuple[tuple[str, int], ...]


@dataclass(slots=True, eq=False)
class EstSpeed:
    """A `Speed` by the best assignment. Cheap to make; answers are remembered.

    D1 and D0 jobs run on one type: on a mix they do not run, and neither does any job on a type of unknown speed.
    `batch_loss`: x, where the sample of a batch b times as large is worth b**-x of one of the original batch. 0: as
    much; 1: larger batches bring nothing. Smaller batches are not taken to be worth more.
    """

    ests: int
    batch_seconds: Mapping[str, float]
    reduction: Reduction | None = None
    level: Level = "D1"
    batch_loss: float = 0.0
    _mixed: dict[tuple[Key, int | None], float] = field(default_factory=dict, init=False, repr=False)
    _scaled: dict[float, EstSpeed] | None = field(default=None, init=False, repr=False)
    _near: dict[str, list[float]] = field(default_factory=dict, init=False, repr=False)  # by type, on few machines

    def rate(self, devices: Devices, nodes: int | None = None) -> float:
        """Global steps a second; 0.0 if the job cannot run on these."""
        if len(devices) == 1:  # what policies ask most
            for kind, count in devices.items():
                if nodes is None and (found := self._near.get(kind)) is not None and 0 < count <= self.ests:
                    return found[count - 1]
                return self.rate_of(kind, count, nodes)
        wanted = key(devices)
        if len(wanted) <= 1:
            return self.rate_of(*wanted[0], nodes) if wanted else 0.0
        if self.level != "D2":
            return 0.0
        mixed = self._mixed.get((wanted, nodes))
        if mixed is None:
            mixed = self._mixed[wanted, nodes] = self._mix(dict(wanted), nodes)
        return mixed

    def rate_of(self, kind: str, count: int, nodes: int | None = None) -> float:
        """On `count` devices of one type."""
        if count > self.ests:
            count = self.ests
        if nodes is None and count > 0 and (found := self._near.get(kind)) is not None:
            return found[count - 1]
        seconds = self.batch_seconds.get(kind)
        if seconds is None or count < 1:
            return 0.0
        if self.reduction is None:
            return 1.0 / (-(-self.ests // count) * seconds)
        found = _curve(self.ests, seconds, self.reduction, nodes)
        if nodes is None:
            self._near[kind] = found
        return found[count - 1]

    def rate_at(self, devices: Devices, batch: float, nodes: int | None = None) -> float:
        """Steps of the original batch a second when each is `batch` times as large.

        Local steps take so many times as long, there are fewer of them, and each still needs one reduction.
        """
        if batch == 1.0:
            return self.rate(devices, nodes)
        if self._scaled is None:
            self._scaled = {}
        speed = self._scaled.get(batch)
        if speed is None:
            seconds = {kind: batch * of_one for kind, of_one in self.batch_seconds.items()}
            speed = self._scaled[batch] = EstSpeed(self.ests, seconds, self.reduction, self.level)
        worth = min(1.0, float(batch**-self.batch_loss))
        return batch * worth * speed.rate(devices, nodes)

    def rates(self, kind: str, most: int, nodes: int | None = None) -> NDArray[np.float64]:
        """On 1, 2, .. `most` devices of one type. For reading: others hold the same array."""
        seconds = self.batch_seconds.get(kind)
        if seconds is None:
            return np.zeros(most)
        return one_type_rates(self.ests, seconds, most, self.reduction, nodes)

    def assignment(self, devices: Devices, nodes: int | None = None) -> TypeAssignment | None:
        """Who runs how many ESTs there; None if the job cannot run on these."""
        if not self.rate(devices, nodes):
            return None
        return assign_types(self.ests, dict(key(devices)), self.batch_seconds, self.reduction, nodes=nodes)

    def _mix(self, devices: Devices, nodes: int | None) -> float:
        if any(kind not in self.batch_seconds for kind in devices):
            return 0.0
        return 1.0 / solve(self.ests, devices, self.batch_seconds, self.reduction, nodes)[2].seconds


@lru_cache(maxsize=4096)
def one_type_rates(
    ests: int, seconds: float, most: int, reduction: Reduction | None = None, nodes: int | None = None
) -> NDArray[np.float64]:
    """Global steps a second on 1..most equal devices, of which some stay idle where communication makes that faster.

    Shared by all jobs with the same figures, of which a trace has many; so it cannot be written to.
    """
    steps = _loads(ests)[:most] * seconds
    if reduction is not None:
        steps = np.minimum.accumulate(steps + _costs(ests, reduction, nodes)[:most])
    found = np.empty(most)
    found[: len(steps)] = 1.0 / steps
    found[len(steps) :] = found[len(steps) - 1] if len(steps) else 0.0
    found.flags.writeable = False
    return found


@lru_cache(maxsize=1024)
def _loads(ests: int) -> NDArray[np.float64]:
    """The most ESTs of a device, of 1..ests devices."""
    return np.ceil(ests / np.arange(1.0, ests + 1))


@lru_cache(maxsize=1024)
def _costs(ests: int, reduction: Reduction, nodes: int | None) -> NDArray[np.float64]:
    """The reduction of 1..ests devices."""
    workers = range(1, ests + 1)
    return np.array([reduction(k) if nodes is None else reduction(k, min(nodes, k)) for k in workers])


@lru_cache(maxsize=4096)
def _curve(ests: int, seconds: float, reduction: Reduction, nodes: int | None) -> list[float]:
    """The same as a list, which gives single numbers faster."""
    return list(map(float, one_type_rates(ests, seconds, ests, reduction, nodes)))


# ------------------------------------------------------------------------------------------ published figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What EasyScale (SC'23) reports for a plan, in mini-batches a second; communication is left out, as there."""

    capacity: float  # of all devices
    throughput: float
    waste: float  # capacity that waits for the slowest device
    utilization: float  # throughput over capacity
    speedup: float  # against one of the fastest of these devices


def figures(ests: int, devices: Devices, batch_seconds: Mapping[str, float]) -> Figures:
    """The figures of the best plan. Its loads may differ within a type, so no place for an EST stays empty."""
    best = assign_types(ests, devices, batch_seconds)
    capacity = sum(count / batch_seconds[kind] for kind, count in devices.items() if count)
    fastest = max(1.0 / batch_seconds[kind] for kind, count in devices.items() if count)
    throughput = ests / best.bottleneck
    return Figures(
        capacity=capacity,
        throughput=throughput,
        waste=max(0.0, capacity - throughput),
        utilization=min(1.0, throughput / capacity),
        speedup=throughput / fastest,
    )


def published_waste(ests: int, devices: Devices, speeds: Mapping[str, float], loads: Mapping[str, int]) -> float:
    """The formula as it is printed, for `loads[i]` ESTs on each device of type i, in mini-batches a second.

    Places for ESTs that nobody fills count as waste, and so does the capacity that waits for the bottleneck.
    """
    slowest = max(loads[kind] / speeds[kind] for kind in devices)
    places = sum(count * loads[kind] for kind, count in devices.items())
    waiting = sum(count * (speeds[kind] - loads[kind] / slowest) for kind, count in devices.items())
    return waiting + (places - ests) / slowest
