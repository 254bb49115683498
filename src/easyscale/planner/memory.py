"""What a job remembers of growth: the one on trial, and those that disappointed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from easyscale.planner.model import Key


@dataclass(frozen=True, slots=True)
class Trial:
    """A growth that has to show what it is worth. `kept`: the devices from before; rates in global steps a second."""

    kept: tuple[str, ...]
    before: float  # measured
    predicted: float


@dataclass(frozen=True, slots=True)
class Disappointment:
    """These devices gave `rate`; until `until` the job wants no more than `limit`. `times`: how often so far."""

    devices: Key
    rate: float
    limit: int
    kept: tuple[str, ...]
    until: float | None  # None: it may be tried again
    times: int


@dataclass(slots=True)
class Memory:
    trial: Trial | None = None
    bad: dict[Key, Disappointment] = field(default_factory=dict)

    def disappointed(
        self, devices: Key, rate: float, limit: int, kept: tuple[str, ...], now: float, remember: float
    ) -> None:
        """Each time that the same devices disappoint they are left alone for twice as long."""
        times = self.bad[devices].times + 1 if devices in self.bad else 1
        self.bad[devices] = Disappointment(devices, rate, limit, kept, now + remember * 2 ** (times - 1), times)

    def forgive(self, now: float) -> bool:
        """Those whose time is over may be tried again; how often they disappointed is kept."""
        over = [entry for entry in self._standing() if entry.until is not None and entry.until <= now]
        for entry in over:
            self.bad[entry.devices] = replace(entry, until=None)
        return bool(over)

    def limit(self) -> int | None:
        return min((entry.limit for entry in self._standing()), default=None)

    def kept(self) -> set[str]:
        return {device for entry in self._standing() for device in entry.kept}

    def rates(self) -> dict[Key, float]:
        return {entry.devices: entry.rate for entry in self._standing()}

    def times(self) -> list[float]:
        return [entry.until for entry in self._standing() if entry.until is not None]

    def _standing(self) -> list[Disappointment]:
        return [entry for entry in self.bad.values() if entry.until is not None]

    def state(self) -> dict[str, Any]:
        trial = self.trial
        return {
            "trial": [list(trial.kept), trial.before, trial.predicted] if trial else None,
            "bad": [
                [
                    [list(pair) for pair in entry.devices],
                    entry.rate,
                    entry.limit,
                    list(entry.kept),
                    entry.until,
                    entry.times,
                ]
                for entry in self.bad.values()
            ],
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Memory:
        found = cls()
        if state["trial"]:
            kept, before, predicted = state["trial"]
            found.trial = Trial(tuple(kept), before, predicted)
        for devices, rate, limit, kept, until, times in state["bad"]:
            of = tuple((kind, count) for kind, count in devices)
            found.bad[of] = Disappointment(of, rate, limit, tuple(kept), until, times)
        return found
