"""The masters of simulated jobs: each drives the planner's `Mind`, the one that a live master drives.

What is simulated here is the job itself: how long each device needs for its ESTs, and that it is measured with noise.
The mind sees measurements only; the split, the proposals and the giving back are its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from easyscale.core.cluster import Devices
from easyscale.planner.facts import Decided, Device, Granted, Passed, Propose, Resplit, Stepped, Switched
from easyscale.planner.mind import Mind
from easyscale.planner.model import EstSpeed
from easyscale.planner.profile import Profile
from easyscale.planner.reduction import Reduction
from easyscale.scheduler.events import JobProgressed, JobProposed
from easyscale.simulator.progress import Run

if TYPE_CHECKING:
    from easyscale.simulator.engine import Simulation

DAY = 86400.0
RELAXED = 8  # while its devices stay the same, a master is heard less and less often, down to this share
PARTS = 8  # in which the steps since the last word are told
WORLD = 2  # the priority of its events in the engine's heap


class Master:
    """Of one job whose speed is that of its devices (`EstSpeed`)."""

    def __init__(self, sim: Simulation, run: Run, truth: EstSpeed, noise: np.random.Generator) -> None:
        self.sim, self.run, self.truth, self._noise = sim, run, truth, noise
        self.held: dict[str, str] = {}  # device -> type
        self.slow: dict[str, float] = {}  # device -> how many times slower
        self.resplits = 0
        self._numbers = 0
        self._ticking = False
        self._pace = sim.options.report_seconds
        self._since = 0.0  # of what is told with the next tick
        needs, options = run.arrival.needs, sim.options
        none = Reduction()
        profile = Profile(level=needs.level) if options.measured else Profile(
            level=needs.level, declared=dict(truth.batch_seconds), expected_reduction=truth.reduction or none
        )  # fmt: skip
        profile.take_switch(options.change_seconds)
        self.mind = Mind(needs, sim.spec.kinds, profile=profile)

    # ------------------------------------------------------------------------------------ truth

    def rate(self, nodes: int | None = None) -> float:
        """Global steps a second with the split as it is, on devices as they are."""
        split = self.mind.split
        if not split:
            return 0.0
        seconds = max(self._local(device) for device in split)
        reduction = self.truth.reduction
        return 1.0 / (seconds + (reduction(len(split), nodes) if reduction is not None else 0.0))

    def _local(self, device: str) -> float:
        seconds = self.truth.batch_seconds[self.held[device]] * self.slow.get(device, 1.0)
        return seconds * self.mind.split.get(device, 0)

    # ------------------------------------------------------------------------------------ what happens to it

    def granted(self, devices: Devices, now: float) -> None:
        """It holds these now. Of its own it gives up slow ones first, then the latest."""
        for kind in {*self.held.values()}:
            mine = sorted((d for d, of in self.held.items() if of == kind), key=lambda d: (-self.slow.get(d, 1.0), d))
            for device in mine[: len(mine) - devices.get(kind, 0)]:
                del self.held[device]
                self.slow.pop(device, None)
        for kind, count in devices.items():
            for _ in range(count - sum(of == kind for of in self.held.values())):
                self._numbers += 1
                self.held[f"{kind}-{self._numbers:06}"] = kind
        if self.held and self.mind.bound not in self.held.values():
            self.mind.bound = None  # whether a job may go to another type is the scheduler's rule; its mind follows
        before = bool(self.mind.split)
        found = tuple(Device(device, kind) for device, kind in self.held.items())
        self._carry_out(self.mind.take(Granted(found), now), now, paid=before)
        self._since = now
        self._pace = self.sim.options.report_seconds
        if devices and not self._ticking:
            self._ticking = True
            self.sim.push(now + self._pace, WORLD, self.tick)

    def tick(self, now: float) -> None:
        """What was measured since the last time."""
        run, sim = self.run, self.sim
        if not run.devices or sim.runs.get(run.arrival.name) is not run:
            self._ticking = False
            return
        self._pace = min(self._pace * 2, RELAXED * sim.options.report_seconds)
        sim.push(now + self._pace, WORLD, self.tick)
        seconds = now - max(self._since, run.since)
        rate = self.rate(sim.nodes(run))
        if run.later is not None or now < run.since or seconds * rate < 1.0:
            return
        run.advance(now)
        self._since = now
        decided = self._measure(int(seconds * rate), 1.0 / rate, now)
        due = self.mind.due()
        if due is not None and due <= now:
            decided += self.mind.take(Passed(), now)
        if self._carry_out(decided, now, paid=True):
            self.resplits += 1
            self._pace = sim.options.report_seconds
            run.set_rate(self.rate(sim.nodes(run)), now, sim.options.change_seconds)
            sim.predict(run)
        else:
            sim.report_progress(run, now)

    def _measure(self, steps: int, seconds: float, now: float) -> list[Decided]:
        """The steps since the last time, with noise, in a few parts: a live master hears of each."""
        truth = {device: self._local(device) for device in self.mind.split}
        rest = seconds - max(truth.values())
        left = self.run.arrival.work - self.run.done
        parts = min(steps, PARTS)
        for _ in range(parts):
            noise = self._noise.lognormal(0.0, self.sim.options.noise, len(truth)).tolist()
            local = {device: of * factor for (device, of), factor in zip(truth.items(), noise, strict=True)}
            decided = self.mind.take(Stepped(local, max(local.values()) + rest, steps // parts, left), now)
            if decided:
                return decided
        return []

    def _carry_out(self, decided: Iterable[Decided], now: float, *, paid: bool) -> bool:
        """True: the split is another one."""
        sim, split = self.sim, False
        todo = list(decided)
        while todo:
            decision = todo.pop(0)
            if isinstance(decision, Resplit):
                split = True
                pause = sim.options.change_seconds if paid else None
                todo += self.mind.take(Switched(decision.split, pause), now)
            elif isinstance(decision, Propose):
                name, done = self.run.arrival.name, self.run.done
                sim.tell(JobProgressed(time=now, job=name, done=done, switch_seconds=decision.switch_seconds))
                sim.tell(JobProposed(time=now, job=name, speed=decision.speed, limit=decision.limit))
        return split

    def turn(self, device: str, slowdown: float, now: float) -> None:
        """A device is slower from now on, or (1.0) well again."""
        if device not in self.held:
            return
        if slowdown > 1.0:
            self.slow[device] = slowdown
        else:
            self.slow.pop(device, None)
        self.run.advance(now)
        self.run.set_rate(self.rate(self.sim.nodes(self.run)), now, 0.0)
        self.sim.predict(self.run)


class Masters:
    """The masters of all jobs, and the chance that makes devices slow."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.of: dict[str, Master] = {}
        self.stragglers = self.resplits = 0
        self._chance = np.random.default_rng([sim.options.seed, 3])
        self._noise = np.random.default_rng([sim.options.seed, 4])

    def begin(self) -> None:
        if self.sim.options.stragglers is not None:
            self._plan(self.sim.usage.start)

    def add(self, run: Run) -> Master | None:
        """None: its speed is a table of measurements by whole allocations, which says nothing of one device."""
        truth = run.arrival.speed
        if not isinstance(truth, EstSpeed) or run.arrival.needs.batch is not None:
            return None
        self.of[run.arrival.name] = Master(self.sim, run, truth, self._noise)
        return self.of[run.arrival.name]

    def forget(self, run: Run) -> None:
        master = self.of.pop(run.arrival.name, None)
        if master is not None:
            self.resplits += master.resplits
            master.held.clear()

    def _plan(self, now: float) -> None:
        options = self.sim.options.stragglers
        assert options is not None
        each = options.per_device_day * max(1, self.sim.capacity) / DAY
        if each > 0 and (self.sim.runs or self.sim.arriving):
            self.sim.push(now + self._chance.exponential(1 / each), WORLD, self._happen)

    def _happen(self, now: float) -> None:
        """One of all devices turns slow. One that nobody holds is well again before anybody does."""
        options = self.sim.options.stragglers
        assert options is not None
        self._plan(now)
        place = int(self._chance.integers(max(1, self.sim.capacity)))
        seconds = float(self._chance.exponential(options.seconds))
        for master in self.of.values():
            if place < len(master.held):
                device = list(master.held)[place]
                self.stragglers += 1
                master.turn(device, options.slowdown, now)
                self.sim.push(now + seconds, WORLD, lambda now, at=master, of=device: at.turn(of, 1.0, now))
                return
            place -= len(master.held)
