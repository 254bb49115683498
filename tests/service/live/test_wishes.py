"""Each wish, on masters that are numbers: what becomes of the job and of its devices."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from easyscale.core.errors import UsageError
from easyscale.service.devices import Found, declared
from easyscale.service.errors import ConflictError, NotFoundError
from easyscale.service.models import Lend, ScaleWish
from easyscale.service.ports import Person
from service.live.world import WHO, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_job_runs_to_its_end_and_the_log_tells_all_of_it(world: World) -> None:
    job = world.submit(ests=3)
    assert world.ended(job) == "finished"
    assert [r.kind for r in world.log.records(job=job)][:3] == ["job-submitted", "job-allocated", "job-starting"]
    assert not world.fleet.users()
    world.check_log()


def test_a_paused_job_leaves_its_devices_to_others_and_goes_on_where_it_was(world: World) -> None:
    job = world.submit(ests=3, types=["a"])
    world.running(job)
    world.rounds(3)
    world.live.pause(job, WHO)
    other = world.submit(ests=3, types=["a"], steps=500)
    world.until(lambda: world.word(job) == "paused")
    world.running(other)
    assert len(world.slots(other)) == 3
    step = world.state.jobs[job].step
    assert step > 0
    world.live.resume(job, WHO)
    world.running(job)
    assert world.live.job(job).step >= step
    assert world.ended(job) == world.ended(other) == "finished"
    world.check_log()


def test_a_job_that_is_paused_and_resumed_in_one_breath_goes_on(world: World) -> None:
    job = world.submit(ests=3)
    world.running(job)
    world.live.pause(job, WHO)
    world.until(lambda: bool(world.fleet.calls.get("stop")))
    world.live.resume(job, WHO)
    world.round()
    assert world.state.jobs[job].assigned  # while it still stops
    assert world.ended(job) == "finished"
    assert world.state.jobs[job].run == 2


@pytest.mark.parametrize("when", ["queued", "assigned", "starting", "running", "pausing", "paused", "silent", "absent"])
def test_a_job_is_cancelled_in_every_state(world: World, when: str) -> None:
    keeper = world.submit(ests=3, types=["a"], steps=400, priority=1) if when == "queued" else None
    if keeper is not None:
        world.running(keeper)
    if when == "absent":
        world.calls.late = True  # its start is written down, and the service dies before it begins
    job = world.submit(ests=2, types=["a"], steps=50_000)
    if when not in ("queued", "assigned"):
        world.round()
    if when == "absent":
        world.restart()
    if when in ("running", "pausing", "paused", "silent"):
        world.running(job)
    if when in ("pausing", "paused"):
        world.live.pause(job, WHO)
        world.until(lambda: world.word(job) == when)
    if when == "silent":
        world.fleet.silent.add(job)
    world.live.cancel(job, WHO)
    assert world.ended(job) == "cancelled"
    assert job not in world.fleet.users().values()
    world.check_log()


def test_a_cancelled_job_is_not_changed_any_more(world: World) -> None:
    job = world.submit()
    world.running(job)
    world.live.cancel(job, WHO)
    with pytest.raises(ConflictError, match="being cancelled"):
        world.live.pause(job, WHO)
    world.ended(job)
    with pytest.raises(ConflictError, match="has ended"):
        world.live.cancel(job, WHO)
    with pytest.raises(NotFoundError):
        world.live.cancel("nobody", WHO)


def test_limits_are_changed_while_it_runs_and_while_it_is_paused(world: World) -> None:
    job = world.submit(ests=3, types=["a"], steps=3000)
    world.running(job)
    assert len(world.slots(job)) == 3
    world.live.scale(job, ScaleWish(max_workers=1), WHO)
    world.until(lambda: len(world.slots(job)) == 1)
    world.live.pause(job, WHO)
    world.until(lambda: world.word(job) == "paused")
    world.live.scale(job, ScaleWish(min_workers=2, max_workers=9), WHO)
    world.live.resume(job, WHO)
    world.running(job)
    assert len(world.slots(job)) == 3
    with pytest.raises(UsageError, match="no range"):
        world.live.scale(job, ScaleWish(min_workers=4), WHO)


@pytest.mark.parametrize("more", [{"gang": True}, {"determinism": "D0"}])
def test_a_gang_has_all_of_its_devices_or_none(world: World, more: dict[str, object]) -> None:
    job = world.submit(ests=3, types=["a"], max_workers=2, steps=300, **more)
    world.running(job)
    assert len(world.slots(job)) == 2
    world.live.scale(job, ScaleWish(max_workers=3), WHO)
    world.until(lambda: len(world.slots(job)) == 3)
    world.live.lose(world.slots(job)[0], "gone", WHO)
    world.rounds(20)
    assert not world.slots(job)
    assert "needs 3 devices at once" in str(world.live.job(job).waits)
    assert world.word(job) == "queued"


def test_a_drained_device_is_left_for_another_one_of_its_type(world: World) -> None:
    """Nobody has to shrink: the policy changes nothing, and the job moves all the same."""
    job = world.submit(ests=2, max_workers=2, types=["a"], steps=2000)
    world.running(job)
    (first, second) = world.slots(job)
    world.live.drain(first, WHO)
    assert device(world, first) in ("draining", "held")
    world.until(lambda: device(world, first) == "drained")
    assert first not in world.slots(job)
    assert second in world.slots(job)
    assert world.state.jobs[job].run == 1  # by a switch
    world.live.undrain(first, WHO)
    assert device(world, first) == "free"
    with pytest.raises(ConflictError):
        world.live.undrain(first, WHO)


def test_a_lost_device_is_left_and_used_again_when_it_is_found(world: World) -> None:
    job = world.submit(ests=3, types=["a"], steps=5000)
    world.running(job)
    lost = world.slots(job)[1]
    world.live.lose(lost, "it fell off the bus", WHO)
    world.until(lambda: len(world.slots(job)) == 2)
    world.live.undrain(lost, WHO)
    world.until(lambda: len(world.slots(job)) == 3)
    world.check_log()


def test_a_device_that_is_gone_after_a_restart_is_lost_and_a_drained_one_stays_drained(world: World) -> None:
    world.live.drain("a-0", WHO)
    world.live.call_back(Lend(devices=["a-1"], within=1), WHO)
    world.round()
    everything = world.found
    world.restart([found for found in everything if found.slot.kind == "b"])
    assert {name for name, d in world.state.devices.items() if d.standing == "lost"} == {"a-0", "a-1", "a-2"}
    world.round()
    world.restart(everything)
    world.round()
    assert [device(world, name) for name in ("a-0", "a-1", "a-2")] == ["drained", "away", "free"]


def test_devices_are_called_back_and_lent_again(world: World) -> None:
    job = world.submit(ests=3, types=["a"], steps=5000)
    world.running(job)
    world.live.call_back(Lend(types={"a": 2}, within=5), WHO)
    world.until(lambda: len(world.slots(job)) == 1)
    world.until(lambda: len(world.log.of("device-left")) == 2)
    assert not any(record.body["late"] for record in world.log.of("device-left"))
    world.live.lend(Lend(types={"a": 2}), WHO)
    world.until(lambda: len(world.slots(job)) == 3)
    with pytest.raises(ConflictError, match="not 1 a"):
        world.live.lend(Lend(types={"a": 1}), WHO)


def test_a_device_that_is_left_too_late_is_said_to_be(world: World) -> None:
    job = world.submit(ests=3, types=["a"], steps=5000)
    world.running(job)
    called = world.slots(job)[0]
    world.fleet.slow[called] = 30.0
    world.live.call_back(Lend(devices=[called], within=5), WHO)
    with pytest.raises(ConflictError):
        world.live.lend(Lend(devices=[called]), WHO)
    world.until(lambda: bool(world.log.of("device-left")))
    assert world.log.of("device-left")[0].body == {"id": called, "late": True}


def test_idle_devices_are_called_back_before_those_that_train(world: World) -> None:
    job = world.submit(ests=1, types=["a"], steps=5000)
    world.running(job)
    world.live.call_back(Lend(types={"a": 2}, within=5), WHO)
    world.rounds(5)
    assert world.state.jobs[job].assigned
    assert world.state.jobs[job].run == 1


def test_a_deadline_that_has_passed_is_said_once(world: World) -> None:
    when = datetime.fromtimestamp(world.clock.now + 5, UTC)
    job = world.submit(steps=300, deadline=when)
    assert world.ended(job) == "finished"
    assert len(world.log.of("job-late", job)) == 1
    assert world.live.job(job).late


def test_failures_are_forgiven_as_often_as_was_asked_for(world: World) -> None:
    job = world.submit(retries=2, steps=500)
    for run in (1, 2, 3):
        world.until(lambda run=run: (job, run) in world.fleet.runs)
        world.running(job)
        world.fleet.fail(job, 3, f"the {run}. time")
        world.round()
    assert world.ended(job) == "failed"
    assert (world.state.jobs[job].retries, world.live.job(job).exit_code) == (2, 3)
    assert "the 3. time" in str(world.live.job(job).error)


def test_a_job_that_vanishes_without_a_step_fails_after_three_times(world: World) -> None:
    job = world.submit(steps=500)
    for run in (1, 2, 3):
        world.until(lambda run=run: (job, run) in world.fleet.runs)
        world.fleet.vanish(job)
    assert world.ended(job) == "failed"
    assert "3 times in a row" in str(world.live.job(job).error)
    assert len(world.log.of("job-starting", job)) == 3


def test_a_job_that_makes_steps_may_vanish_as_often_as_it_likes(world: World) -> None:
    job = world.submit(steps=5000)
    for run in range(1, 7):
        world.until(lambda run=run: (job, run) in world.fleet.runs)
        world.running(job)
        world.rounds(12)
        world.fleet.kept[job] = 100 * run  # its checkpoint
        world.fleet.vanish(job)
    assert world.ended(job) == "finished"


def test_a_lost_worker_is_asked_for_again(world: World) -> None:
    job = world.submit(ests=3, types=["a"], steps=5000)
    world.running(job)
    world.fleet.lose_worker(job)
    assert len([d for d, j in world.fleet.users().items() if j == job]) == 2
    world.until(lambda: list(world.fleet.users().values()).count(job) == 3)


def test_a_master_that_died_is_replaced(world: World) -> None:
    job = world.submit(ests=3, steps=1000)
    world.running(job)
    world.fleet.lose_master(job)
    assert world.ended(job) == "finished"
    assert world.fleet.calls["adopt"] == 1
    assert world.state.jobs[job].run == 1


def test_an_array_is_many_jobs_with_a_number_and_a_checkpoint_folder_each(world: World) -> None:
    jobs = world.live.submit(world.spec(array=4, ests=1, checkpoint_dir="ckpt", env={"A": "b"}), WHO).jobs
    assert len(set(jobs)) == 4
    for number, job in enumerate(jobs):
        spec = world.state.jobs[job].spec
        assert spec.env == {"A": "b", "EASYSCALE_ARRAY_INDEX": str(number)}
        assert (spec.array, spec.checkpoint_dir) == (None, f"ckpt/{number}")
        assert world.ended(job) == "finished"
    folders = {world.live._launch(world.state.jobs[job], ()).checkpoint_dir for job in jobs}
    assert len(folders) == 4
    world.check_log()


def test_an_array_whose_environment_is_full_is_refused_before_it_is_written(world: World) -> None:
    env = {f"A{n}": "" for n in range(200)}
    with pytest.raises(UsageError, match="no room"):
        world.submit(array=2, env=env)
    world.restart()
    assert not world.state.jobs


def test_a_key_submits_once_also_across_a_restart(world: World) -> None:
    first = world.live.submit(world.spec(), WHO, "key")
    assert first.new
    again = world.live.submit(world.spec(), WHO, "key")
    world.restart()
    after = world.live.submit(world.spec(), WHO, "key")
    assert (again.jobs, again.new, after.jobs, after.new) == (first.jobs, False, first.jobs, False)
    assert world.live.submit(world.spec(), Person("bob", "red", "user"), "key").new
    assert len(world.state.jobs) == 2


def test_a_team_borrows_what_another_leaves_and_gives_it_back(tmp_path: Path) -> None:
    world = World(tmp_path, {"a": 4})
    world.live.set_team("red", 2, True, WHO)
    world.live.set_team("blue", 2, True, WHO)
    red = world.submit(ests=4, steps=20_000)
    world.running(red)
    assert len(world.slots(red)) == 4
    blue = world.submit(Person("bob", "blue", "user"), ests=4, steps=20_000)
    world.running(blue)
    assert (len(world.slots(red)), len(world.slots(blue))) == (2, 2)
    world.live.cancel(blue, WHO)
    world.until(lambda: len(world.slots(red)) == 4)
    world.live.set_team("red", 1, False, WHO)
    world.until(lambda: len(world.slots(red)) == 1)
    world.check_log()


def test_a_job_of_higher_priority_takes_the_devices_and_gives_them_back(world: World) -> None:
    low = world.submit(ests=3, types=["a"], steps=400)
    world.running(low)
    high = world.submit(ests=3, min_workers=3, types=["a"], steps=100, priority=5)
    world.until(lambda: world.word(high) == "running")
    assert world.word(low) == "queued"
    assert "held" in str(world.live.job(low).waits)
    assert world.ended(high) == world.ended(low) == "finished"
    assert world.state.jobs[low].run == 2


def test_a_job_at_level_d2_uses_devices_of_several_types(world: World) -> None:
    job = world.submit(ests=5, determinism="D2", steps=2000)
    world.until(lambda: len(world.slots(job)) == 5)
    assert {slot.split("-")[0] for slot in world.slots(job)} == {"a", "b"}


def test_jobs_that_swap_their_devices_do_not_wait_for_each_other(world: World) -> None:
    jobs = [world.submit(ests=2, min_workers=2, max_workers=2, determinism="D2", steps=3000) for _ in range(2)]
    for job in jobs:
        world.running(job)
    one, two = (world.state.jobs[job] for job in jobs)
    swap = [(one.id, ()), (two.id, one.assigned), (one.id, two.assigned)]  # as `in_order` has it
    book = world.live.book
    book.write([book.news("job-allocated", job, devices=list(devices)) for job, devices in swap])
    world.live._decide = lambda: None  # the policy has nothing to say for a while
    world.rounds(30)
    del world.live._decide
    world.until(lambda: {world.word(job) for job in jobs} == {"running"})
    assert not world.fleet.twice


def test_a_type_that_comes_later_is_used_by_jobs_that_wait_for_it(world: World) -> None:
    job = world.submit(types=["c"])
    world.rounds(3)
    assert "runs on c only" in str(world.live.job(job).waits)
    world.restart([*world.found, *declared({"c": 1}, node="here")])
    assert world.ended(job) == "finished"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"types": ["z"]}, "runs on z only; the cluster has a, b now"),
        ({"ests": 4, "min_workers": 4}, "needs 4 devices of one type at once, and the cluster has 3"),
        ({"ests": 8, "min_workers": 6, "determinism": "D2"}, "needs 6 devices at once, and the cluster has 5"),
        ({"ests": 4, "min_workers": 4, "types": ["a"]}, "needs 4 devices at once, and the cluster has 3"),
    ],
)
def test_a_job_that_cannot_run_here_is_accepted_and_says_why_it_waits(
    world: World, more: dict[str, object], says: str
) -> None:
    job = world.submit(**more)
    world.rounds(3)
    assert world.word(job) == "queued"
    assert says in str(world.live.job(job).waits)


def test_each_other_reason_to_wait_has_its_sentence(tmp_path: Path) -> None:
    small = [Found(found.slot, 16.0) for found in declared({"a": 2}, node="here")]
    world = World(tmp_path, small)
    waits = lambda job: str(world.live.job(job).waits)  # noqa: E731
    assert "needs 32 GB on a device" in waits(world.submit(memory_gb=32))
    keeper = world.submit(ests=2, min_workers=2, steps=50_000, priority=2)
    world.running(keeper)
    later = world.submit(types=["a"])
    world.round()
    assert "All devices that it can use are held (2 a)." in waits(later)
    world.submit(ests=2, min_workers=2, priority=1)
    world.round()
    assert "1 waiting job has a higher priority." in waits(later)
    world.live.set_team("red", 2, False, WHO)
    world.round()
    assert "Team red holds 2 of the 2 devices that it may hold now." in waits(later)
    world.live.set_team("red", None, True, WHO)
    world.live.pause(keeper, WHO)
    world.live._decide = lambda: None
    world.until(lambda: world.word(keeper) == "paused")
    assert "free devices are kept for that" in waits(later)
    other = World(tmp_path)
    other.live._decide = lambda: None
    assert "The policy easyscale has other plans for the devices that are free (3 a, 2 b)." in str(
        other.live.job(other.submit()).waits
    )
    for name in list(other.state.devices):
        other.live.drain(name, WHO)
    assert "No device that it may use is there now" in str(other.live.job(other.submit()).waits)


def device(world: World, name: str) -> str:
    return next(one.state for one in world.live.cluster().devices if one.id == name)
