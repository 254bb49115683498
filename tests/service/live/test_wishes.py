"""Each wish, on masters that are numbers: what becomes of the job and of its devices."""

from __future__ import annotations

from pathlib import Path

import pytest

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
