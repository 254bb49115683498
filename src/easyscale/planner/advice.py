"""What follows from a verdict: which level a job should run at, and what it may hold.

A job below D2 stays on one device type (`EstSpeed`, `Asker` and `Mind` keep to that). D2 lets it take what is free, at
the price that the scan has measured. Both are weighed by the same model that plans the job: the best single type at D1
against all devices at D2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from easyscale.core.cluster import Devices, Level, Needs, key, show
from easyscale.core.verdict import Verdict
from easyscale.planner.model import EstSpeed
from easyscale.planner.priors import against_v100
from easyscale.planner.reduction import Reduction

# Without a cluster to weigh it on: two device types in equal parts are twice the devices, of which D2 may cost half of
# what it brings and is still worth having.
LIMIT = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """Global steps a second on given devices: `alone` on the best type of them at D1, `mixed` on all at D2."""

    kind: str
    alone: float
    mixed: float

    @property
    def gain(self) -> float:
        """Above 1: D2 is faster."""
        return self.mixed / self.alone if self.alone else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """`level`: at which to run. D1 means one device type, None that every level refuses the script."""

    level: Level | None
    reason: str

    @property
    def words(self) -> str:
        if self.level is None:
            return "replace an operator"
        return "D2" if self.level == "D2" else "one device type"


def advise(verdict: Verdict, weighed: Weighed | None = None, limit: float = LIMIT) -> Advice:
    """D2 where it works and is worth what it costs."""
    if verdict.nondeterministic:
        named = _few(verdict.nondeterministic)
        words = "torch has no deterministic kernel on this device, so every level refuses"
        return Advice(level=None, reason=f"{words}: {named}")
    if not verdict.mixes:
        return Advice(level="D1", reason=f"no D2 form: {_few(verdict.missing)}")
    if weighed is not None:
        words = f"{weighed.gain:.2f}x the speed of the {weighed.kind} alone at D1"
        return Advice(level="D2" if weighed.gain > 1.0 else "D1", reason=f"on all devices together D2 has {words}")
    if verdict.slowdown is None:
        return Advice(level="D2", reason="every operator has a D2 form; what it costs was not measured")
    cost = f"a D2 step takes {verdict.slowdown:.2f}x the time of a D1 step on {verdict.device or 'this device'}"
    if verdict.slowdown > limit:
        return Advice(level="D1", reason=f"{cost}, more than {limit:g}x")
    return Advice(level="D2", reason=f"every operator has a D2 form, and {cost}")


def weigh(
    ests: int,
    devices: Devices,
    verdict: Verdict,
    seconds: Mapping[str, float] | None = None,
    reduction: Reduction | None = None,
) -> Weighed:
    """`seconds`: of a local step at D1 by type; where they are not known, by what is believed of the types."""
    at_d1 = {kind: against_v100(kind, "D1")[0] for kind in devices} if seconds is None else dict(seconds)
    single = EstSpeed(ests, at_d1, reduction, "D1")
    kind = max(sorted(devices), key=lambda one: single.rate({one: devices[one]}))
    at_d2 = {of: verdict.factor * one for of, one in at_d1.items()}
    mixed = EstSpeed(ests, at_d2, reduction, "D2").rate(devices) if verdict.mixes else 0.0
    return Weighed(kind=f"{show({kind: devices[kind]})}", alone=single.rate({kind: devices[kind]}), mixed=mixed)


def held_to(needs: Needs, verdict: Verdict | None) -> Needs:
    """What the job may hold: a job whose script has no D2 is planned on one device type, whatever it asks for."""
    if verdict is None or verdict.mixes or needs.level != "D2":
        return needs
    return replace(needs, level="D1")


def may_mix(level: Level, kinds: Mapping[str, int] | tuple[str, ...]) -> bool:
    """Whether a plan may hold these types at once."""
    held = [kind for kind, _ in key(kinds)] if isinstance(kinds, Mapping) else sorted(set(kinds))
    return level == "D2" or len(held) <= 1


def _few(names: tuple[str, ...], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
