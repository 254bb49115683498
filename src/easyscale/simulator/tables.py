"""Speeds from measured tables: what a job does on a number of devices was timed, what lies between is interpolated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from easyscale.core.cluster import Devices
from easyscale.core.errors import UsageError

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

Shape = tuple[int, ...]  # devices on each machine that a job uses
Times = tuple[float, float]  # seconds of a step, and what of it is waiting for the others


def shape_of(devices: int, nodes: int | None, per_node: int) -> Shape:
    """How devices stand on `nodes` machines when each machine is filled before the next, and none stays empty."""
    least = -(-devices // per_node)
    nodes = least if nodes is None else min(max(nodes, least), devices)
    shape = []
    for after in reversed(range(nodes)):
        shape.append(min(per_node, devices - after))
        devices -= shape[-1]
    return tuple(shape)


def _interpolator() -> type[LinearNDInterpolator]:
    try:
        from scipy.interpolate import LinearNDInterpolator
    except ImportError:
        raise UsageError(
            "Measured step times cannot be used.",
            "what lies between two measurements is found with scipy, which is not installed.",
            "pip install 'easyscale-torch[cluster]'.",
        ) from None
    return LinearNDInterpolator  # type: ignore[no-any-return]  # scipy has no annotations


@dataclass(eq=False)
class PlacementTable:
    """Seconds of a step by shape and local batch, as Pollux (OSDI'21) measured them.

    `exact` has shapes of up to 4 machines; machines are in a ring, so of its rotations the smallest names a shape. Any
    other is interpolated linearly between (machines, devices, local batch) of all that was measured. A local batch
    outside of what was measured is taken as the nearest that was.
    """

    exact: Mapping[Shape, NDArray[np.float64]]  # rows: local batch, step, sync; by local batch
    coarse: NDArray[np.float64]  # rows: machines, devices, local batch, step, sync
    most_nodes: int = 16
    _memo: dict[tuple[Shape, float], Times] = field(default_factory=dict, repr=False)
    _between: LinearNDInterpolator | None = field(default=None, repr=False)

    def times(self, shape: Shape, local_batch: float) -> Times:
        shape = min(shape[i:] + shape[:i] for i in range(len(shape)))
        found = self._memo.get((shape, local_batch))
        if found is None:
            table = self.exact.get(shape)
            found = self._memo[shape, local_batch] = (
                self._interpolated(len(shape), sum(shape), local_batch)
                if table is None
                else (
                    float(np.interp(local_batch, table[:, 0], table[:, 1])),
                    float(np.interp(local_batch, table[:, 0], table[:, 2])),
                )
            )
        return found

    def _interpolated(self, nodes: int, devices: int, local_batch: float) -> Times:
        if self._between is None:
            self._between = _interpolator()(self.coarse[:, :3], self.coarse[:, 3:])
        point = np.array([min(nodes, self.most_nodes), devices, local_batch], dtype=float)
        step, sync = self._between(point)[0]
        if math.isnan(step):  # outside of all that was measured: the nearest that was
            width = np.ptp(self.coarse[:, :3], axis=0)
            nearest = np.argmin(np.sum(((self.coarse[:, :3] - point) / np.where(width, width, 1.0)) ** 2, axis=1))
            step, sync = self.coarse[nearest, 3:]
        return float(step), float(sync)


class _Statistics(Protocol):
    """What a profile knows about the training itself; see `profiles.Profile`."""

    @property
    def table(self) -> PlacementTable: ...
    @property
    def most_local_batch(self) -> int: ...
    @property
    def initial_batch(self) -> int: ...
    @property
    def most_batch(self) -> int: ...
    def steps(self, batch: float) -> float: ...


@dataclass(eq=False)
class _Measured:
    """The speed of a job that was measured on one type of devices, by how they stand in machines."""

    profile: _Statistics
    batch: int
    kind: str = "t4"
    per_node: int = 4
    most: int = 1 << 30  # more devices are of no use to it
    _memo: dict[tuple[int, int | None], float] = field(default_factory=dict, repr=False)

    def rate(self, devices: Devices, nodes: int | None = None) -> float:
        count = min(devices.get(self.kind, 0), self.most)
        if not count or any(kind != self.kind and others for kind, others in devices.items()):
            return 0.0
        found = self._memo.get((count, nodes))
        if found is None:
            found = self._memo[count, nodes] = self.rate_on(shape_of(count, nodes, self.per_node))
        return found

    def rate_on(self, shape: Shape) -> float:
        """For who knows on which machines the devices are."""
        raise NotImplementedError


class FixedBatchSpeed(_Measured):
    """A job with a fixed global batch that is cut anew for each number of devices, as the Pollux artifact runs it.

    Local batches above the device's limit are accumulated: all but the last of them skip the synchronization. Cutting
    rounds up, so a job on an odd number of devices sees a slightly larger batch and needs fewer steps; its rate is
    given in steps of the exact batch.
    """

    def rate_on(self, shape: Shape) -> float:
        local, extra = self.cut(sum(shape))
        step, sync = self.profile.table.times(shape, local)
        seen = sum(shape) * local * (extra + 1)
        more = self.profile.steps(self.batch) / self.profile.steps(seen)
        return more / (step + extra * (step - sync))

    def cut(self, devices: int) -> tuple[int, int]:
        """The local batch, and how often it is accumulated before the last."""
        of = self.profile
        wanted = _ceil(self.batch / devices)
        extra = _ceil(wanted / of.most_local_batch) - 1
        if devices == 1 and self.batch > of.initial_batch:
            extra = max(1, extra)  # one device needs two gradients to estimate their noise
        local = _ceil(wanted / (extra + 1))
        return min(local, int(of.most_batch / (devices * (extra + 1)))), extra


class FixedEstSpeed(_Measured):
    """The same job as N ESTs (`most`) with a mini-batch each that never changes: on fewer devices they take turns."""

    def rate_on(self, shape: Shape) -> float:
        of = self.profile
        wanted = _ceil(self.batch / self.most)
        parts = _ceil(wanted / of.most_local_batch)
        turns = -(-self.most // sum(shape)) * parts
        step, sync = of.table.times(shape, _ceil(wanted / parts))
        return 1.0 / (step + (turns - 1) * (step - sync))


@dataclass(eq=False)
class CountSpeed:
    """Steps a second by number of devices of each type: linear in between, never more than at the largest number.

    `apart`: the same when the devices are on several machines, where that was measured. One type at a time.
    """

    rates: Mapping[str, Sequence[tuple[int, float]]]  # (devices, steps a second), by devices
    apart: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    per_node: int = 8
    _memo: dict[tuple[str, int, bool], float] = field(default_factory=dict, repr=False)

    def rate(self, devices: Devices, nodes: int | None = None) -> float:
        held = [(kind, count) for kind, count in devices.items() if count]
        if len(held) != 1:
            return 0.0
        ((kind, count),) = held
        spread = kind in self.apart and (count > self.per_node if nodes is None else nodes > 1)
        key = kind, count, spread
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = _between((self.apart if spread else self.rates).get(kind, ()), count)
        return found


def _between(points: Sequence[tuple[int, float]], count: int) -> float:
    """Fewer devices than were measured: their share of the smallest number that was."""
    if not points:
        return 0.0
    if count < points[0][0]:
        return points[0][1] * count / points[0][0]
    return float(np.interp(count, [devices for devices, _ in points], [rate for _, rate in points]))


def _ceil(value: float) -> int:
    return math.ceil(value - 1e-8)
