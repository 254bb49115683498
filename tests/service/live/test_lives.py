"""Random lives of a service: whatever is wished, breaks or is restarted, the invariants of `World.check` hold after
each round, the log tells all of it, and when the world stays calm every job that can run ends."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from easyscale.core.errors import EasyScaleError
from easyscale.service.models import Lend, ScaleWish
from easyscale.service.ports import Person
from service.live.world import WHO, World

Deed = tuple[str, int, int]
WORDS = (
    "submit", "submit", "submit", "submit", "pass", "pass", "pass", "pause", "resume", "cancel", "scale", "drain",
    "undrain", "lose", "found", "call", "lend", "quota", "fail", "vanish", "lose-worker", "lose-master", "silent",
    "slow", "restart", "restart", "late", "make", "full", "torn", "refuse", "fewer",
)  # fmt: skip
deeds: st.SearchStrategy[list[Deed]] = st.lists(
    st.tuples(st.sampled_from(WORDS), st.integers(0, 40), st.integers(0, 7)), min_size=3, max_size=40
)


class Life:
    def __init__(self, folder: Path, policy: str) -> None:
        self.world = World(folder, policy=policy)

    def do(self, deed: Deed) -> None:
        what, one, two = deed
        world = self.world
        with contextlib.suppress(EasyScaleError):  # what cannot be is said so, and changes nothing
            getattr(self, "_" + what.replace("-", "_"))(one, two)
        for _ in range(two % 3):
            self._round()
        assert set(world.submitted) <= world.state.jobs.keys()

    def _round(self, seconds: float = 0.5) -> None:
        world = self.world
        if world.log.full:
            world.clock.run(world.clock.now + seconds)
            with contextlib.suppress(EasyScaleError):
                world.live.round()
        else:
            with contextlib.suppress(EasyScaleError):
                world.round(seconds)

    # ------------------------------------------------------------------------------------ deeds

    def _submit(self, one: int, two: int) -> None:
        ests = 1 + one % 4
        self.world.submit(
            Person("ann", ("red", "blue", "green")[two % 3], "user"), ests=ests, min_workers=1 + two % ests,
            gang=one % 7 == 0, determinism=("D1", "D1", "D2", "D0")[one % 4 if two else 0], priority=one % 3,
            types=(None, None, ["a"], ["b", "c"])[two % 4], retries=two % 2, steps=20 + 10 * one,
            array=2 if one == 13 else None,
        )  # fmt: skip

    def _pass(self, one: int, two: int) -> None:
        for _ in range(one):
            self._round()

    def _pick(self, one: int) -> str:
        living = list(self.world.state.living)
        return living[one % len(living)] if living else "nobody"

    def _pause(self, one: int, two: int) -> None:
        self.world.live.pause(self._pick(one), WHO)

    def _resume(self, one: int, two: int) -> None:
        self.world.live.resume(self._pick(one), WHO)

    def _cancel(self, one: int, two: int) -> None:
        self.world.live.cancel(self._pick(one), WHO)

    def _scale(self, one: int, two: int) -> None:
        self.world.live.scale(self._pick(one), ScaleWish(min_workers=1 + one % 3, max_workers=1 + two % 4), WHO)

    def _device(self, one: int) -> str:
        names = list(self.world.state.devices)
        return names[one % len(names)]

    def _drain(self, one: int, two: int) -> None:
        self.world.live.drain(self._device(one), WHO)

    def _undrain(self, one: int, two: int) -> None:
        self.world.live.undrain(self._device(one), WHO)

    _found = _undrain

    def _lose(self, one: int, two: int) -> None:
        self.world.live.lose(self._device(one), "it fell off the bus", WHO)

    def _call(self, one: int, two: int) -> None:
        self.world.live.call_back(Lend(devices=[self._device(one)], within=1 + two), WHO)

    def _lend(self, one: int, two: int) -> None:
        self.world.live.lend(Lend(devices=[self._device(one)]), WHO)

    def _quota(self, one: int, two: int) -> None:
        self.world.live.set_team(("red", "blue")[one % 2], two if two < 6 else None, one % 3 > 0, WHO)

    def _of_fleet(self, one: int) -> str:
        jobs = [name for name, _ in self.world.fleet.runs]
        return jobs[one % len(jobs)] if jobs else ""

    def _fail(self, one: int, two: int) -> None:
        if job := self._of_fleet(one):
            self.world.fleet.fail(job)

    def _vanish(self, one: int, two: int) -> None:
        if job := self._of_fleet(one):
            self.world.fleet.vanish(job)

    def _lose_worker(self, one: int, two: int) -> None:
        if (job := self._of_fleet(one)) and self.world.fleet._present(job).here:
            self.world.fleet.lose_worker(job)

    def _lose_master(self, one: int, two: int) -> None:
        if job := self._of_fleet(one):
            self.world.fleet.lose_master(job)

    def _silent(self, one: int, two: int) -> None:
        silent = self.world.fleet.silent
        if silent and two % 2:
            silent.clear()
        elif job := self._of_fleet(one):
            silent.add(job)

    def _slow(self, one: int, two: int) -> None:
        self.world.fleet.slow[self._device(one)] = float(two * 4)

    def _restart(self, one: int, two: int) -> None:
        self.world.restart()

    def _late(self, one: int, two: int) -> None:
        self.world.calls.late = not self.world.calls.late

    def _make(self, one: int, two: int) -> None:
        self.world.calls.make(1 + two)

    def _full(self, one: int, two: int) -> None:
        self.world.log.full = not self.world.log.full

    def _torn(self, one: int, two: int) -> None:
        self.world.log.torn = True

    def _refuse(self, one: int, two: int) -> None:
        self.world.fleet.refuse = two

    def _fewer(self, one: int, two: int) -> None:
        """A start that finds fewer devices, or a new type."""
        world = self.world
        world.restart([found for found in world.found if found.slot.id != self._device(one)] if two else world.found)

    # ------------------------------------------------------------------------------------ calm

    def calm(self) -> None:
        world = self.world
        world.log.full = world.log.torn = False
        world.fleet.silent.clear()
        world.fleet.slow.clear()
        world.fleet.refuse = 0
        world.calls.late = False
        world.calls.make()
        with contextlib.suppress(EasyScaleError):
            world.round()
        for team in ("red", "blue"):
            world.live.set_team(team, None, True, WHO)
        for name in list(world.state.devices):
            for repair in (world.live.undrain, world.live.undrain):
                with contextlib.suppress(EasyScaleError):
                    repair(name, WHO)
        for job in list(world.state.living):
            with contextlib.suppress(EasyScaleError):
                world.live.resume(job, WHO)
        world.until(lambda: all(d.standing != "away" or d.by is None for d in world.state.devices.values()))
        for name in list(world.state.devices):
            with contextlib.suppress(EasyScaleError):
                world.live.lend(Lend(devices=[name]), WHO)
        world.until(lambda: all(not can_run(world, job) for job in world.state.living), 4000)
        for job in world.state.living:
            assert world.live.job(job).waits or world.state.jobs[job].active, job
        world.check_log()


def can_run(world: World, name: str) -> bool:
    job = world.state.jobs[name]
    needs = job.needs()
    counts = {kind: sum(d.kind == kind for d in world.state.devices.values()) for kind in ("a", "b")}
    fit = [count for kind, count in counts.items() if needs.allows(kind)]
    elastic = world.policy.startswith("easyscale")
    least = needs.least if elastic else needs.most  # the others give a job what it asks for, of one type, or nothing
    return bool(fit) and (sum(fit) if needs.level == "D2" and elastic else max(fit)) >= least


@pytest.mark.parametrize("policy", ["easyscale", "fifo", "afs"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deeds)
def test_whatever_happens_no_device_is_used_twice_and_every_job_ends(policy: str, stream: list[Deed]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), policy)
        for deed in stream:
            life.do(deed)
        life.calm()
