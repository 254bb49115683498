"""A store that fails, a policy with a bug, masters that refuse, hang or talk nonsense: the service goes on itself."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.scheduler.policy import Wanted
from easyscale.scheduler.rules import RuleBroken
from easyscale.scheduler.state import Cluster
from easyscale.service.errors import StoreError
from easyscale.service.models import ScaleWish
from easyscale.service.ports import Sight
from service.live.world import WHO, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def tried(world: World) -> None:
    """A round as the loop makes it: what goes wrong is said, and the next one comes."""
    world.clock.run(world.clock.now + 0.5)
    try:
        world.live.round()
        world.live._trouble = None
    except EasyScaleError as problem:
        world.live._trouble = problem.what


@pytest.mark.parametrize("moment", range(12))
def test_a_full_disk_at_any_moment_loses_nothing_and_is_over_when_there_is_room(world: World, moment: int) -> None:
    before = world.submit(ests=2, steps=400)
    for _ in range(moment):
        world.round()
    world.log.full = True
    with pytest.raises(StoreError):
        world.submit()
    with pytest.raises(StoreError):
        world.live.pause(before, WHO)
    for _ in range(30):
        tried(world)
    assert world.live.ready() == "The disk is full."
    assert list(world.state.jobs) == [before]
    world.log.full = False
    tried(world)
    assert world.live.ready() is None
    assert world.ended(before) == "finished"
    assert len(world.log.of("job-starting")) == 1
    assert world.log.of("job-planned", before), "what could not be told then is told later"
    world.check_log()


@pytest.mark.parametrize("moment", range(10))
def test_a_write_that_was_done_though_it_failed_is_not_done_twice(world: World, moment: int) -> None:
    job = world.submit(ests=2, steps=100)
    for _ in range(moment):
        world.round()
    world.log.torn = True
    for _ in range(5):
        tried(world)
    world.log.torn = False
    assert world.ended(job) == "finished"
    world.check_log()


def test_a_decision_that_could_not_be_written_is_made_again(world: World) -> None:
    """Nothing else happens that would be a reason to decide."""
    job = world.submit()
    world.log.full = True
    tried(world)
    world.log.full = False
    assert world.ended(job) == "finished"
    world.check_log()


class Broken:
    """Says what must not be, for a while."""

    name, interval = "broken", 0.0

    def __init__(self, good: Any, problem: Exception | None) -> None:
        self.good, self.problem = good, problem

    def decide(self, cluster: Cluster) -> Wanted:
        if self.problem is not None:
            raise self.problem
        return {name: {"a": 99} for name in cluster.jobs}


@pytest.mark.parametrize("problem", [None, RuleBroken("quota", "too much"), ZeroDivisionError("a bug")])
def test_a_policy_that_breaks_a_rule_changes_nothing_and_is_asked_again(
    world: World, problem: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = world.submit(ests=1, types=["a"], steps=500)
    world.running(running)
    with monkeypatch.context() as patch:
        patch.setattr("easyscale.service.chronicle.make", lambda name: Broken(None, problem))
        world.live.book.scheduler.policy = Broken(None, problem)
        job = world.submit()
        for _ in range(40):
            tried(world)
        assert "The policy easyscale fails" in str(world.live.ready())
        assert not world.state.jobs[job].assigned
        assert world.word(running) == "running"
    world.live._broken = None
    assert world.ended(job) == "finished"
    assert world.live.ready() is None
    world.check_log()


def test_a_master_that_refuses_is_asked_again_and_again(world: World) -> None:
    job = world.submit(ests=2, steps=300)
    world.fleet.refuse = 3
    assert world.ended(job) == "finished"
    assert len(world.log.of("job-starting")) == 1


def test_a_look_that_fails_is_of_its_job_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = world.submit(ests=1, steps=60), world.submit(ests=1, steps=60)
    look, nonsense = world.fleet.look, [ZeroDivisionError("nonsense"), OSError("away"), EasyScaleError("no")]
    monkeypatch.setattr(world.fleet, "look", lambda job, run, events=50: fail() if job == bad else look(job, run))

    def fail() -> Sight:
        nonsense.append(nonsense.pop(0))
        raise nonsense[0]

    assert world.ended(good) == "finished"
    assert world.word(bad) == "starting"
    device = world.state.jobs[bad].assigned[0]
    assert device in world.live._carrier.in_use()
    monkeypatch.undo()
    assert world.ended(bad) == "finished"


def test_devices_of_a_run_that_does_not_answer_after_a_restart_stay_its_own(world: World) -> None:
    """It was told to leave one, and nobody knows whether it has heard that."""
    job = world.submit(ests=3, types=["a"], steps=100_000)
    world.running(job)
    world.fleet.silent.add(job)
    other = world.submit(ests=2, min_workers=2, types=["a"], priority=1)
    world.round()
    world.restart()
    world.rounds(60)
    assert world.word(other) == "queued"
    assert "being freed" in str(world.live.job(other).waits)
    world.fleet.silent.clear()
    assert world.ended(other) == "finished"


@pytest.mark.parametrize("calls", range(4))
@pytest.mark.parametrize("rounds", range(1, 8))
def test_a_restart_at_any_moment_starts_nothing_twice(world: World, rounds: int, calls: int) -> None:
    """Also between the record of a start and the start, and where a call was made that nobody heard the answer of."""
    world.calls.late = True
    jobs = [world.submit(ests=2, min_workers=2, steps=80) for _ in range(2)]
    for _ in range(rounds):
        world.round()
        world.calls.make(calls)
    world.restart()
    for job in jobs:
        assert world.ended(job) == "finished"
        assert world.state.jobs[job].run == 1
    world.check_log()


def test_a_job_that_is_to_wait_before_it_has_begun_waits(world: World) -> None:
    """Its start is written down, the service dies, and the devices are wanted by somebody else then."""
    world.calls.late = True
    low = world.submit(ests=3, types=["a"])
    world.round()
    assert world.log.of("job-starting", low)
    world.restart()
    high = world.submit(ests=3, min_workers=3, types=["a"], priority=1)
    assert world.ended(high) == "finished"
    assert world.ended(low) == "finished"
    assert world.state.jobs[low].run == 2
    world.check_log()


def test_a_listener_that_fails_does_not_undo_what_was_accepted(world: World) -> None:
    def wake() -> None:
        raise RuntimeError("the event loop is closed")

    world.live.subscribe(wake)
    job = world.submit()
    assert world.ended(job) == "finished"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"workdir": "/no/such/folder"}, "working directory"),
        ({"workdir": "work"}, "working directory"),
        ({"workdir": "/" + "x" * 4000}, "working directory"),
        ({"script": "other.py"}, "no such file"),
        ({"script": "../outside.py"}, "leads out"),
        ({"script": "/etc/passwd"}, "leads out"),
        ({"script": "link.py"}, "leads out"),
        ({"script": "circle.py"}, "no such file"),
        ({"script": "folder"}, "no such file"),
        ({"script": "y" * 4000}, "no such file"),
    ],
)
def test_a_place_that_is_not_there_or_leads_out_is_refused(world: World, more: dict[str, str], says: str) -> None:
    (world.folder / "outside.py").touch()
    (world.work / "link.py").symlink_to("../outside.py")
    (world.work / "circle.py").symlink_to("circle.py")
    (world.work / "folder").mkdir()
    with pytest.raises(UsageError, match=says):
        world.submit(**more)
    assert not world.state.jobs


def test_a_script_by_a_link_within_the_working_directory_is_fine(world: World) -> None:
    (world.work / "again.py").symlink_to("train.py")
    assert world.ended(world.submit(script="again.py")) == "finished"


def test_a_device_that_a_run_was_told_to_use_is_its_own_though_no_process_sits_there_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker takes its time to start; meanwhile the device is to go to another job."""
    slow = world.submit(ests=2, max_workers=1, types=["b"], steps=100_000)
    world.running(slow)
    look = world.fleet.look

    def early(job: str, run: int, events: int = 50) -> Sight:
        sight = look(job, run, events)
        if job != slow or sight.status is None:
            return sight
        return replace(sight, status=replace(sight.status, held=sight.status.held[:1]))

    monkeypatch.setattr(world.fleet, "look", early)
    world.live.scale(slow, ScaleWish(max_workers=2), WHO)
    world.until(lambda: len(world.slots(slow)) == 2)
    world.fleet.refuse = 8  # the next calls fail, and it is not told to leave
    other = world.submit(ests=1, types=["b"], priority=1, steps=50)
    world.until(lambda: bool(world.state.jobs[other].assigned))
    world.rounds(3)
    assert world.word(other) == "queued"
    assert world.ended(other) == "finished"  # `World.check` looks after each round that no device is used twice


def test_who_waits_to_write_does_not_keep_readers_waiting(world: World) -> None:
    """There are two locks, and they are taken in one order."""
    book = world.live.book
    world.log.full = True
    with pytest.raises(StoreError):
        world.submit()
    world.log.full = False
    with book.writing:
        thread = threading.Thread(target=book.recover, daemon=True)
        thread.start()
        time.sleep(0.05)
        free = book.lock.acquire(timeout=5.0)
        assert free
        book.lock.release()
    thread.join(5.0)
    assert not thread.is_alive()
    assert world.live.ready() is None
