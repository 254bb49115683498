"""Devices held and there, over time and in all, in memory that does not grow with the length of a simulation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Means over buckets of `width` seconds from `start` on, by type."""

    start: float
    width: float
    used: dict[str, list[float]]
    capacity: dict[str, list[float]]


class Usage:
    """Integrals of devices used and of capacity. When the buckets run out, each two become one of double width."""

    def __init__(self, kinds: Iterable[str], start: float, *, width: float = 60.0, buckets: int = 720) -> None:
        self.kinds = list(kinds)
        self.used = dict.fromkeys(self.kinds, 0)
        self.capacity = dict.fromkeys(self.kinds, 0)
        self.start = self.now = start
        self._width, self._most = width, buckets
        # used of each type, then capacity of each type, device-seconds:
        self._totals = [0.0] * (2 * len(self.kinds))
        self._buckets: list[list[float]] = []

    @property
    def used_seconds(self) -> dict[str, float]:
        return dict(zip(self.kinds, self._totals, strict=False))

    @property
    def capacity_seconds(self) -> dict[str, float]:
        return dict(zip(self.kinds, self._totals[len(self.kinds) :], strict=True))

    def advance(self, now: float) -> None:
        """As it was, until now."""
        seconds = now - self.now
        if seconds <= 0:
            return
        while now - self.start > self._width * self._most:
            self._halve()
        values, totals = [*self.used.values(), *self.capacity.values()], self._totals
        index = int((self.now - self.start) / self._width)
        if index < len(self._buckets) and now <= self.start + (index + 1) * self._width:  # as it mostly is
            bucket = self._buckets[index]
            for place, value in enumerate(values):
                if value:
                    more = value * seconds
                    totals[place] += more
                    bucket[place] += more
        else:
            for place, value in enumerate(values):
                totals[place] += value * seconds
            self._fill(values, index, now)
        self.now = now

    def _fill(self, values: list[int], index: int, until: float) -> None:
        """The buckets from this one on."""
        at, width = self.now, self._width
        while at < until:
            end = min(until, self.start + (index + 1) * width)
            while len(self._buckets) <= index:
                self._buckets.append([0.0] * len(values))
            if end > at:
                bucket = self._buckets[index]
                for place, value in enumerate(values):
                    bucket[place] += value * (end - at)
                at = end
            index += 1

    def _halve(self) -> None:
        self._width *= 2
        old = self._buckets
        if len(old) % 2:
            old.append([0.0] * (2 * len(self.kinds)))
        pairs = zip(old[::2], old[1::2], strict=True)
        self._buckets = [[a + b for a, b in zip(one, two, strict=True)] for one, two in pairs]

    def curve(self) -> Curve:
        lengths = [self._width] * len(self._buckets)
        if lengths:
            lengths[-1] = max(self.now - self.start - self._width * (len(lengths) - 1), 1e-9)
        columns = [[bucket[place] / length for bucket, length in zip(self._buckets, lengths, strict=True)]
                   for place in range(2 * len(self.kinds))]  # fmt: skip
        n = len(self.kinds)
        return Curve(
            start=self.start, width=self._width,
            used=dict(zip(self.kinds, columns[:n], strict=True)),
            capacity=dict(zip(self.kinds, columns[n:], strict=True)),
        )  # fmt: skip
