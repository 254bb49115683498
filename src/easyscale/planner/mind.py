"""The mind of a job's master as a pure state machine: facts and the time go in, decisions come out.

It uses what the job holds as well as can be, learns how fast the devices are, moves ESTs away from a straggler when
that wins back its switch, and undoes a growth that did not bring what was predicted, and remembers that. The live
master and the simulator drive the same code. Its state goes through JSON, so a master that is started again goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from easyscale.core.cluster import DeviceKind, Needs, key
from easyscale.core.verdict import Verdict
from easyscale.planner.advice import held_to
from easyscale.planner.facts import (
    Decided,
    Device,
    Fact,
    GiveBack,
    Granted,
    Passed,
    Propose,
    Resplit,
    Stepped,
    Switched,
    Terms,
)
from easyscale.planner.holding import Holding, counts
from easyscale.planner.learned import LearnedSpeed
from easyscale.planner.memory import Memory, Trial
from easyscale.planner.model import EstSpeed
from easyscale.planner.profile import ENOUGH, Profile
from easyscale.planner.proposals import FEW, Asker, Proposal, grow, shrink
from easyscale.planner.samples import Samples


@dataclass(frozen=True, slots=True)
class Told:
    """What the scheduler was told last."""

    seconds: Mapping[str, float]
    reduction: float
    limit: int | None


class Mind:
    """`take` each fact and carry out what it says; take `Passed` at `due`. A decision that is not carried out is
    answered with `Switched` and the split that stays. `profile` and `memory` are for reading. `verdict`: what a scan of
    the script has found; a job that cannot be at D2 is planned on one device type.
    """

    def __init__(
        self,
        needs: Needs,
        kinds: Mapping[str, DeviceKind] | None = None,
        *,
        terms: Terms | None = None,
        profile: Profile | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        self.needs, self.kinds, self.terms = held_to(needs, verdict), kinds or {}, terms or Terms()
        self.profile = profile or Profile(level=needs.level)
        if verdict is not None and self.needs.level == "D2":
            self.profile.slowdown = verdict.factor
        self.memory = Memory()
        self.devices: tuple[Device, ...] = ()
        self.split: dict[str, int] = {}  # that the job trains with
        self.pending: dict[str, int] | None = None  # decided, not yet heard of
        self.bound: str | None = None  # the type of a D1 job, from its first split on
        self.pace = Samples()  # seconds of a global step under this split
        self.warming = 0
        self.idle: dict[str, float] = {}  # devices without ESTs, since when
        self.remaining: float | None = None
        self.told: Told | None = None
        self._speed: LearnedSpeed | None = None

    # ------------------------------------------------------------------ facts in, decisions out

    def take(self, fact: Fact, now: float) -> list[Decided]:
        decided: list[Decided] = []
        if self.memory.forgive(now):
            self._speed = None
        self._forget_idle(now)
        match fact:
            case Granted():
                decided += self._granted(fact.devices)
            case Switched():
                self._switched(fact, now)
                return []  # nothing is known yet that the scheduler has not heard
            case Stepped():
                decided += self._stepped(fact, now)
            case Passed():
                decided += self._better_split()
        return decided + self._news()

    def due(self) -> float | None:
        """When time alone may change something: take `Passed` then."""
        idle = [since + self.terms.remember for device, since in self.idle.items() if device in self.profile.devices]
        return min([*self.memory.times(), *idle], default=None)

    # ------------------------------------------------------------------ what others ask

    @property
    def speed(self) -> LearnedSpeed:
        """How fast the job is expected to be on any devices that it may hold."""
        if self._speed is None:
            seconds = self.profile.seconds(self._types())
            model = EstSpeed(self.needs.ests, seconds, self.profile.reduction(), self.needs.level)
            self._speed = LearnedSpeed(model, self.memory.rates())
        return self._speed

    @property
    def limit(self) -> int | None:
        """It wants no more devices than that for now."""
        return self.memory.limit()

    def proposals(self, free: Mapping[str, int], few: int = FEW) -> tuple[list[Proposal], list[Proposal]]:
        """The best ways to grow with what is free, and to shrink."""
        asker = Asker(
            needs=self.needs, speed=self.speed, batch_seconds=self.speed.model.batch_seconds,
            sure=lambda kind: self.profile.of_type(kind).sure, bound=self.bound, limit=self.limit,
        )  # fmt: skip
        held = counts(self.devices)
        return grow(asker, held, free, self.kinds, few), shrink(asker, held, few)

    # ------------------------------------------------------------------ rules

    def _granted(self, devices: tuple[Device, ...]) -> list[Decided]:
        before, after = {device.id for device in self.devices}, {device.id for device in devices}
        if before == after:
            return []
        for device in sorted(before - after):
            self.profile.forget(device)
        judged = self.terms.judged or not self.terms.fixed
        trial = self._trial() if self.split and before < after and judged else None
        self.devices, self.memory.trial, self.pending = devices, None, None
        usable = self._usable()
        if not usable:
            self.split = {}
            return []
        best = self._holding().best(self.needs.ests, usable)
        if trial is not None and not set(best.split) <= set(trial.kept) and 1.0 / best.seconds > trial.before:
            self.memory.trial = Trial(trial.kept, trial.before, 1.0 / best.seconds)
        if best.split == self.split:
            return []
        self.pending = best.split
        return [Resplit(best.split, best.seconds, "the job holds other devices" if before else "the job starts")]

    def _trial(self) -> Trial | None:
        """Growth is judged against what the job did before it, and before a growth that nobody has judged yet."""
        if self.memory.trial is not None:
            return self.memory.trial
        found = self.pace.estimate()
        return Trial(tuple(self.split), 1.0 / found.seconds, 0.0) if found and found.steps >= ENOUGH else None

    def _switched(self, fact: Switched, now: float) -> None:
        held = {device.id: device for device in self.devices}
        if fact.pause is not None:
            self.profile.take_switch(fact.pause)
        self.split = {device: count for device, count in fact.split.items() if count and device in held}
        self.pending, self.pace, self.warming = None, Samples(), self.terms.warm_up
        self.idle = {device: self.idle.get(device, now) for device in held if device not in self.split}
        if self.needs.level != "D2" and self.bound is None and self.split:
            self.bound = held[next(iter(self.split))].kind

    def _stepped(self, fact: Stepped, now: float) -> list[Decided]:
        self.remaining = fact.remaining
        if not all(isfinite(seconds) and seconds > 0 for seconds in (fact.seconds, *fact.local.values())):
            return []  # a clock was set
        if self.warming > 0 or not self.split:
            self.warming -= fact.steps
            return []
        kinds = {device.id: device.kind for device in self.devices if device.id in self.split}
        local = {device: seconds for device, seconds in fact.local.items() if device in kinds}
        for device, seconds in local.items():
            self.profile.take_local(device, kinds[device], seconds / self.split[device], fact.steps)
        if len(local) == len(self.split):
            rest = fact.seconds - max(local.values())
            self.profile.take_reduction(len(local), self._holding().machines(local), rest, fact.steps)
        self.pace.add(fact.seconds, fact.steps)
        return self._judged(now) or self._better_split()

    def _better_split(self) -> list[Decided]:
        """Another split, if it wins back the switch: a device is slower than it was, or faster again."""
        here = self._holding()
        if self.pending is not None or not self.split or self.warming > 0 or not here.measured(self.split):
            return []
        if self.memory.trial is not None and self.pace.steps < ENOUGH:
            return []  # it is judged first
        best, present = here.best(self.needs.ests, self._usable()), here.seconds(self.split)
        gain = 1.0 - best.seconds / present
        left = self.terms.horizon if self.remaining is None else min(self.terms.horizon, self.remaining * present)
        if gain < self.terms.least_gain or gain * left <= self.profile.switch_seconds() or best.split == self.split:
            return []
        self.pending = best.split
        spare = tuple(device for device in self.split if device not in best.split)
        spare = spare[: max(0, len(self.devices) - self.needs.least)]
        why = f"a step takes {present:.3g} s and can take {best.seconds:.3g} s"
        dismissed = [GiveBack(spare, "the job is faster without it")] if spare else []
        return [Resplit(best.split, best.seconds, why), *dismissed]

    def _judged(self, now: float) -> list[Decided]:
        """Growth that brought less than a fair share of what was predicted is undone and remembered."""
        trial, found = self.memory.trial, self.pace.estimate()
        if trial is None or found is None or found.steps < ENOUGH or self.pending is not None:
            return []
        rate, kept = 1.0 / found.seconds, sum(device.id in trial.kept for device in self.devices)
        enough = trial.before + self.terms.worth * (trial.predicted - trial.before)
        if rate < enough <= 1.0 / self._holding().best(self.needs.ests, self._usable()).seconds:
            return []  # another split may do: one of the new devices is slow, not all that is new
        self.memory.trial = None
        if rate >= enough or not kept:
            return []
        self.memory.disappointed(
            key(counts(self.devices)), rate, max(kept, self.needs.least), trial.kept, now, self.terms.remember
        )
        self._speed = None
        if self.terms.fixed:
            return []
        usable = self._usable()
        best = self._holding().best(self.needs.ests, usable)
        self.pending = best.split
        spare = tuple(device.id for device in self.devices if device not in usable)
        why = (
            f"{rate:.3g} steps a second on {len(self.split)} devices: {trial.predicted:.3g} were predicted, "
            f"{trial.before:.3g} came from {kept}"
        )
        return [Resplit(best.split, best.seconds, why), *([GiveBack(spare, why)] if spare else [])]

    def _news(self) -> list[Decided]:
        """Tell the scheduler what is different from what it was told last."""
        seconds = self.profile.seconds(self._types())
        new = Told(seconds, self.profile.reduction()(max(len(self.split), 2)), self.limit)
        if self.told is not None and not self._differs(self.told, new):
            return []
        self.told, self._speed = new, None
        return [Propose(self.speed, new.limit, self.profile.switch_seconds(), seconds)]

    def _differs(self, old: Told, new: Told) -> bool:
        if old.limit != new.limit or old.seconds.keys() != new.seconds.keys():
            return True
        share, step = self.terms.news, min(new.seconds.values(), default=0.0)
        return abs(new.reduction - old.reduction) > share * (step + new.reduction) or any(
            abs(new.seconds[kind] / old.seconds[kind] - 1.0) > share for kind in new.seconds
        )

    # ------------------------------------------------------------------ what the job may use

    def _holding(self) -> Holding:
        return Holding(self.devices, self.profile, self.kinds, self.terms.fixed)

    def _types(self) -> list[str]:
        """Those that the job may hold, of all that it has heard of."""
        heard = {*self.kinds, *self.profile.declared, *(device.kind for device in self.devices)}
        small = {kind for kind, of in self.kinds.items() if of.memory_gb < self.needs.memory_gb}
        return sorted(kind for kind in heard - small if self.needs.allows(kind))

    def _usable(self) -> list[Device]:
        """Of what the job holds, what it may train on now: one type below D2, no more than its limit."""
        if self.terms.fixed:
            return list(self.devices)
        held = counts(self.devices)
        if self.needs.level == "D2" or not held:
            devices = list(self.devices)
        else:
            home = self.bound or max(sorted(held), key=lambda kind: self.speed.rate({kind: held[kind]}))
            devices = [device for device in self.devices if device.kind == home]
        most = self.needs.most if self.limit is None else min(self.needs.most, self.limit)
        kept = self.memory.kept()
        return sorted(devices, key=lambda device: device.id not in kept)[:most]

    def _forget_idle(self, now: float) -> None:
        """A device that was too slow and has run nothing since may be well again."""
        for device, since in self.idle.items():
            if now - since >= self.terms.remember:
                self.profile.forget(device)

    # ------------------------------------------------------------------ to and from JSON

    def state(self) -> dict[str, Any]:
        return {
            "profile": self.profile.state(), "memory": self.memory.state(), "pace": self.pace.state(),
            "devices": [[device.id, device.kind, device.node] for device in self.devices],
            "split": dict(self.split), "pending": self.pending, "bound": self.bound, "warming": self.warming,
            "idle": dict(self.idle), "remaining": self.remaining,
            "told": [dict(self.told.seconds), self.told.reduction, self.told.limit] if self.told else None,
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where a mind with the same needs has left off."""
        self.profile.load(state["profile"])
        self.memory, self.pace = Memory.of_state(state["memory"]), Samples.of_state(state["pace"])
        self.devices = tuple(Device(*entry) for entry in state["devices"])
        self.split, self.pending, self.bound = dict(state["split"]), state["pending"], state["bound"]
        self.warming, self.idle, self.remaining = state["warming"], dict(state["idle"]), state["remaining"]
        self.told = Told(*state["told"]) if state["told"] else None
        self._speed = None
