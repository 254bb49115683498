"""What the master learns of its workers' speeds, and how ESTs get away from a slow one.

Drives the planner's `Mind` with what the brain hears anyway: plans in force, pauses, measured local steps. All of that
is in the journal, so a master that is started again has learned the same and wants the same. Only ESTs move, between
the workers that are there; how many there are is for people to say, and a split that someone asked for is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from easyscale.core.cluster import DeviceKind, Level, Needs
from easyscale.core.control import Member
from easyscale.core.messages import Ready, StepDone
from easyscale.core.plan import Plan
from easyscale.core.requests import Speed
from easyscale.core.verdict import Verdict
from easyscale.master import wishes
from easyscale.master.decisions import InForce, Paused
from easyscale.master.inputs import Input, Said
from easyscale.master.situation import Situation
from easyscale.planner.facts import Device, Granted, Resplit, Stepped, Switched, Terms
from easyscale.planner.mind import Mind
from easyscale.planner.profile import ENOUGH
from easyscale.planner.wire import speed_to_plain

# A message to the mind: ten steps make a median that one slow step does not move. Where steps are short there are more
# in it, soon many, to keep it cheap: half a second of them at first, then more each time. Of long steps nobody waits
# for ten.
USUAL_STEPS, LEAST_SECONDS, MOST_SECONDS = 10, 0.5, 5.0
SHOWN = 0.05  # a worker that differs by less is not called slower or faster
UNNAMED = "local"  # the type of a device whose name nobody said


class Balance:
    """`follow` the brain after each input. `mind` is for reading."""

    def __init__(
        self,
        ests: int,
        last_step: int | None = None,
        level: Level = "D1",
        kinds: Sequence[str] = (),
        verdict: Verdict | None = None,
    ) -> None:
        self._heard = {kind: DeviceKind(name=kind) for kind in kinds}  # types that the job may get, or had
        self.mind = Mind(Needs(ests=ests, level=level), self._heard, terms=Terms(fixed=True), verdict=verdict)
        self._last_step = last_step
        self._kinds: dict[int, str] = {}
        self._members: tuple[Member, ...] = ()
        self._usual: float | None = None  # seconds of a step on the plan before
        self._next = 0  # the first step that is still of interest
        self._ended: float | None = None  # when the step before it was completed, if that was on this plan
        self._windows = 0  # messages about this plan
        self._told: dict[int, dict[int, StepDone]] = {}  # by step, then worker
        self._window: list[tuple[dict[int, StepDone], float]] = []  # steps that all have told, and their seconds

    def follow(self, s: Situation, given: Input) -> None:
        for decision in s.decisions:
            if isinstance(decision, InForce):
                self._in_force(s, decision)
            elif isinstance(decision, Paused) and self._members:
                # The first step on the new plan is in the pause, but would have been made without it.
                self._switched(s.now, max(decision.seconds - (self._usual or 0.0), 0.0))
        if isinstance(given, Said) and given.worker in s.hands and not s.hands[given.worker].lost:
            if isinstance(given.body, Ready):
                slot = s.hands[given.worker].slot
                self._kinds[given.worker] = given.body.device or UNNAMED if slot is None else slot.kind
            elif isinstance(given.body, StepDone):
                self._step_done(s, given.body)
        if self.mind.pending is not None and s.calm and s.wish is None:
            self._switched(s.now)  # it was cancelled, or never wished: the plan in force stays

    def speeds(self) -> tuple[Speed, ...]:
        """What was measured of the workers of the plan in force."""
        known = self.mind.profile.devices
        found = []
        for member in self._members:
            kind, samples = known.get(str(member.worker), (UNNAMED, None))
            estimate = samples.estimate() if samples is not None else None
            if estimate is not None:
                found.append(
                    Speed(
                        worker=member.worker, kind=kind, seconds=estimate.seconds, spread=estimate.spread,
                        steps=estimate.steps,
                    )
                )  # fmt: skip
        return tuple(found)

    def report(self) -> dict[str, Any]:
        """The same for a report, and by type, those that have left included."""
        profile = self.mind.profile
        kinds = {kind for kind, _ in profile.devices.values()} | profile.past.keys()
        by_kind = {kind: found for kind in sorted(kinds) if (found := profile.measured(kind)) is not None}
        return {
            "workers": {
                str(speed.worker): {
                    "kind": speed.kind, "seconds": speed.seconds, "spread": speed.spread, "steps": speed.steps
                }
                for speed in self.speeds()
            },
            "kinds": {
                kind: {"seconds": found.seconds, "spread": found.spread, "steps": found.steps}
                for kind, found in by_kind.items()
            },
        }  # fmt: skip

    def model(self) -> dict[str, Any] | None:
        """What a scheduler is told; None: nothing was measured yet."""
        mind = self.mind
        if not any(samples.steps >= ENOUGH for _, samples in mind.profile.devices.values()) and not mind.profile.past:
            return None
        return {
            "speed": speed_to_plain(mind.speed), "limit": mind.limit, "switch_seconds": mind.profile.switch_seconds()
        }  # fmt: skip

    # ------------------------------------------------------------------ facts for the mind

    def _in_force(self, s: Situation, plan: InForce) -> None:
        pace = self.mind.pace.estimate()
        self._usual = pace.seconds if pace is not None else None
        self._members = plan.members
        slots = {m.worker: s.hands[m.worker].slot for m in plan.members}
        devices = tuple(
            Device(str(worker), self._kinds.get(worker, UNNAMED), slot.node if slot is not None else "")
            for worker, slot in slots.items()
        )
        self._judge(s, devices)
        self.mind.take(Granted(devices), s.now)
        self._next, self._ended, self._told, self._windows = plan.step, None, {}, 0
        self._switched(s.now)

    def _judge(self, s: Situation, devices: Sequence[Device]) -> None:
        """Whoever gives a job its devices wants to know what they brought; and their type may be another one now."""
        if s.slots is not None:
            self.mind.terms = Terms(fixed=True, judged=True)
            for device in devices:
                self._heard.setdefault(device.kind, DeviceKind(name=device.kind))
        if self.mind.bound is not None and all(device.kind != self.mind.bound for device in devices):
            self.mind.bound = None

    def _switched(self, now: float, pause: float | None = None) -> None:
        self.mind.take(Switched({str(m.worker): m.count for m in self._members}, pause), now)
        self._window = []

    def _step_done(self, s: Situation, word: StepDone) -> None:
        if word.step < self._next or all(member.worker != word.worker for member in self._members):
            return
        told = self._told.setdefault(word.step, {})
        told[word.worker] = word
        if len(told) < len(self._members):
            return
        before, self._ended = self._ended, max(part.time for part in told.values())
        self._next = word.step + 1
        self._told = {step: parts for step, parts in self._told.items() if step > word.step}
        if before is not None:
            self._window.append((told, self._ended - before))
            if self._is_full():
                self._stepped(s)

    def _is_full(self) -> bool:
        steps, seconds = len(self._window), sum(seconds for _, seconds in self._window)
        if self.mind.warming > 0:
            return steps >= self.mind.warming
        return seconds >= MOST_SECONDS or (steps >= USUAL_STEPS and seconds >= LEAST_SECONDS * self._windows)

    def _stepped(self, s: Situation) -> None:
        window, self._window = self._window, []
        self._windows += 1
        local: dict[str, float] = {}
        for member in self._members:
            measured = [own for parts, _ in window if (own := parts[member.worker].local) > 0]
            if measured:
                local[str(member.worker)] = median(measured)
        if not local:
            return
        remaining = None if self._last_step is None else float(max(self._last_step - s.steps, 0))
        fact = Stepped(local, median(seconds for _, seconds in window), len(window), remaining)
        for decision in self.mind.take(fact, s.now):
            if isinstance(decision, Resplit) and wishes.may_move(s):
                split = tuple(decision.split[str(member.worker)] for member in self._members)
                s.say("rebalance", self._sentence(Plan(split), decision.seconds))
                wishes.move(s, split)

    def _sentence(self, plan: Plan, expected: float) -> str:
        here, now = Plan(tuple(member.count for member in self._members)), self.mind.pace.estimate()
        assert now is not None, "the mind has just heard of a step"
        unit, times = ("s", 1.0) if now.seconds >= 0.1 else ("ms", 1000.0)
        new, old = (f"{times * seconds:.2f} {unit}" for seconds in (expected, now.seconds))
        return f"{self._odd_one()}; ESTs move: {plan} instead of {here}, expected step {new} instead of {old}."

    def _odd_one(self) -> str:
        """The worker that differs most from its type, which the plan took for its speed."""
        profile, ratios = self.mind.profile, {}
        for device in self.mind.devices:
            ratios[device.id] = profile.of_device(device.id, device.kind).seconds / profile.of_type(device.kind).seconds
        odd = max(ratios, key=lambda device: max(ratios[device], 1.0 / ratios[device]))
        if ratios[odd] > 1.0 + SHOWN:
            return f"worker {odd} is {ratios[odd]:.1f}x slower than planned"
        if ratios[odd] < 1.0 - SHOWN:
            return f"worker {odd} is {1.0 / ratios[odd]:.1f}x faster than planned"
        return "all workers are equally fast"
