"""What happens to devices: they come and go, fail and are repaired, turn slow, and are lent and called back.

Chance is drawn from generators of its own for each cause, so that switching one on leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from easyscale.core.cluster import Devices
from easyscale.scheduler.events import DevicesAdded, DevicesLent, DevicesLost, JobProgressed
from easyscale.simulator.progress import NEVER, Run
from easyscale.simulator.result import Lending

if TYPE_CHECKING:
    from easyscale.simulator.engine import Simulation

DAY = 86400.0
WORLD = 2  # the priority of its events in the engine's heap


class World:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.own = dict(sim.spec.counts)
        self.colocation = sim.spec.service.rules() if sim.spec.service else None
        self.failures = 0
        self._chance = np.random.default_rng([sim.options.seed, 2])

    def begin(self) -> None:
        sim = self.sim
        for coming in sim.spec.comings:
            sim.push(coming.time, WORLD, self._coming(coming.kind, coming.change))
        if sim.spec.service is not None:
            sim.push(sim.usage.start, WORLD, self._demand)
        if sim.options.failures is not None:
            sim.push(self._next_failure(sim.usage.start), WORLD, self._failure)

    # ------------------------------------------------------------------------------------ coming and going

    def _coming(self, kind: str, change: int) -> Callable[[float], None]:
        def happen(now: float) -> None:
            if change > 0:
                self._add(kind, change, now)
            else:
                self._lose(kind, min(-change, self.own.get(kind, 0)), now)

        return happen

    def _add(self, kind: str, count: int, now: float) -> None:
        self.own[kind] = self.own.get(kind, 0) + count
        self._capacity(kind, count)
        self.sim.tell(DevicesAdded(time=now, devices={kind: count}))

    def _capacity(self, kind: str, change: int) -> None:
        sim = self.sim
        sim.usage.capacity[kind] += change
        sim.capacity += change
        if sim.placer is not None:
            if change > 0:
                sim.placer.add(kind, change)
            else:
                sim.placer.remove(kind, -change)

    def _next_failure(self, now: float) -> float:
        failures = self.sim.options.failures
        assert failures is not None
        each = failures.per_device_day * max(1, sum(self.own.values())) / DAY
        return now + self._chance.exponential(1 / each) if each > 0 else NEVER

    def _failure(self, now: float) -> None:
        """A device of our own dies, whoever holds it, and comes back repaired."""
        sim, options = self.sim, self.sim.options.failures
        assert options is not None
        if (following := self._next_failure(now)) < NEVER and (sim.runs or sim.arriving):
            sim.push(following, WORLD, self._failure)
        place = int(self._chance.integers(max(1, sum(self.own.values()))))
        for kind, count in self.own.items():
            if place < count:
                self.failures += 1
                self._lose(kind, 1, now)
                sim.push(now + options.repair_seconds, WORLD, self._coming(kind, 1))
                return
            place -= count

    def _lose(self, kind: str, count: int, now: float) -> None:
        """Devices are gone without notice, each as likely as the other."""
        if not count:
            return
        sim = self.sim
        holders = [run for run in sim.runs.values() for _ in range(run.devices.get(kind, 0))]
        lost: dict[str, int] = {}
        for place in self._chance.choice(sim.usage.capacity[kind], count, replace=False):
            if place < len(holders):
                name = holders[place].arrival.name
                lost[name] = lost.get(name, 0) + 1
        before = {name: sim.runs[name].devices for name in lost}
        for name, gone in lost.items():
            run = sim.runs[name]
            run.advance(now)
            sim.hold(run, {**run.devices, kind: run.devices[kind] - gone}, now)
            self._fall_back(run)
            sim.tell(JobProgressed(time=now, job=name, done=run.done))
        self.own[kind] -= count
        self._capacity(kind, -count)
        held: dict[str, Devices] = {name: {kind: gone} for name, gone in lost.items()}
        sim.tell(DevicesLost(time=now, devices={kind: count}, held=held))
        for name in lost:
            sim.go_on(sim.runs[name], before[name], now)

    def _fall_back(self, run: Run) -> None:
        """Nothing is lost while a worker lives. Without one, or where a loss ends them all: back to a checkpoint."""
        options = self.sim.options
        if run.devices and options.restart_seconds is None:
            return
        since = run.rate * float(self._chance.uniform(0, options.checkpoint_seconds))
        run.fall_back(max(run.saved, run.done - since))
        run.saved = run.done

    # ------------------------------------------------------------------------------------ lending

    @property
    def lending(self) -> Lending | None:
        if self.colocation is None:
            return None
        of = self.colocation.figures
        return Lending(
            owned_seconds=of.owned, demand_seconds=of.needed, lent_seconds=of.trained, calls=of.calls,
            slowest=of.slowest, violations=of.violations,
        )  # fmt: skip

    def _demand(self, now: float) -> None:
        """The service's demand has changed: it lends more, or wants some back."""
        sim, service, rules = self.sim, self.sim.spec.service, self.colocation
        assert service is not None
        assert rules is not None
        needs = {kind: service.needed(kind, now) for kind in service.owned}
        for event in rules.signal(now, needs, sim.scheduler.cluster):
            if isinstance(event, DevicesLent):
                for kind, count in event.devices.items():
                    self._capacity(kind, count)
            else:
                sim.push(event.by, WORLD, self._overdue)
            sim.tell(event)
        self.answer(now)
        if (following := service.next_change(now)) < NEVER and (sim.runs or sim.arriving):
            sim.push(following, WORLD, self._demand)

    def answer(self, now: float) -> None:
        """Calls whose devices nobody holds any more are answered. Who held them leaves at a switch."""
        sim = self.sim
        if self.colocation is not None and self.colocation.calls:
            for call in self.colocation.settle(now, sim.scheduler.cluster, sim.options.switch_seconds):
                self._capacity(call.kind, -call.count)

    def _overdue(self, now: float) -> None:
        """The service takes what is still held after the limit, from the latest jobs."""
        sim = self.sim
        for kind, more in sim.scheduler.cluster.over().items():
            over = more
            for run in reversed(list(sim.runs.values())):
                if over > 0 and (held := run.devices.get(kind, 0)):
                    left = {k: n for k, n in {**run.devices, kind: max(0, held - over)}.items() if n}
                    if sum(left.values()) < run.arrival.needs.least or run.arrival.needs.gang is not None:
                        left = {}
                    over -= held - left.get(kind, 0)
                    sim.move(run, run.devices, left, now)
        self.answer(now)

    def let_pass(self, now: float) -> None:
        """What the service and training made of the service's devices since the last event."""
        if self.colocation is not None:
            self.colocation.pass_to(now, self.sim.scheduler.cluster)
