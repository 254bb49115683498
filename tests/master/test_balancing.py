"""What the live master learns of speeds and does about a slow worker, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.master.simulation import Simulation
from tests.master.test_journal import heading

from easyscale.core.control import Declined, Member
from easyscale.core.messages import Ready, StepDone
from easyscale.core.plan import Plan, Schedule
from easyscale.core.requests import Accepted
from easyscale.master.balancing import USUAL_STEPS, Balance
from easyscale.master.book import is_written
from easyscale.master.brain import Brain
from easyscale.master.decisions import InForce, Send
from easyscale.master.inputs import Begun, Said, Started
from easyscale.master.journal import Entry, Journal, read
from easyscale.master.limits import Limits
from easyscale.master.situation import Terms

ON = Limits(workers=(1, 4), rebalance=True)
ONE_SLOW = {0: 0.1, 1: 0.3}  # 4 ESTs: a step of 2+2 takes 0.65 s, one of 3+1 0.35 s


def slow_job(**options: object) -> Simulation:
    return Simulation(4, 2, **{"limits": ON, "paces": ONE_SLOW, **options}).training()  # type: ignore[arg-type]


def splits(job: Simulation) -> list[tuple[int, ...]]:
    return [tuple(member.count for member in plan.members) for plan in job.in_force]


def test_ests_move_away_from_a_slow_worker_and_the_job_says_why() -> None:
    job = slow_job().run(60.0)
    assert splits(job) == [(2, 2), (3, 1)]
    (said,) = job.events("rebalance")
    assert said == (
        "worker 1 is 3.0x slower than planned; ESTs move: 3+1 instead of 2+2,"
        " expected step 0.35 s instead of 0.65 s."
    )  # fmt: skip
    assert len(job.workers) == 2
    assert job.replies == []  # nobody asked, so nobody is answered


def test_what_was_foretold_is_what_comes() -> None:
    job = slow_job().run(60.0)
    (switched,) = job.in_force[1:]
    began, first = job.clock.now, job.step
    job.run(20.0)
    assert (job.clock.now - began) / (job.step - first) == pytest.approx(0.35, rel=0.1)
    assert switched.step < 30  # it took some steps to be sure, not hundreds


def test_workers_that_are_equally_fast_keep_their_ests() -> None:
    job = slow_job(paces={0: 0.1, 1: 0.1}).run(200.0)
    assert splits(job) == [(2, 2)]
    assert job.events("rebalance") == []


def test_a_slow_worker_is_never_sent_away() -> None:
    """How many workers there are is for people to say."""
    job = slow_job(paces={0: 0.01, 1: 5.0}).run(600.0)
    assert splits(job) == [(2, 2), (3, 1)]


def test_without_the_measurement_nothing_moves() -> None:
    job = slow_job(measures=False).run(200.0)
    assert splits(job) == [(2, 2)]
    assert job.brain.balance.speeds() == ()


def test_a_job_that_was_not_asked_to_rebalance_only_learns() -> None:
    job = slow_job(limits=Limits()).run(200.0)
    assert splits(job) == [(2, 2)]
    slow = {speed.worker: speed.seconds for speed in job.brain.balance.speeds()}
    assert slow == pytest.approx(ONE_SLOW)


def test_a_worker_that_is_well_again_gets_its_ests_back() -> None:
    job = slow_job().run(60.0)
    job.paces[1] = 0.1
    job.run(200.0)
    assert splits(job) == [(2, 2), (3, 1), (2, 2)]
    assert job.events("rebalance")[-1].startswith("all workers are equally fast; ESTs move: 2+2 instead of 3+1")


def test_a_gain_that_the_rest_of_the_job_cannot_win_back_is_left() -> None:
    schedule = Schedule(((0, Plan((2, 2))),))
    balances = [Balance(4, last_step) for last_step in (None, 15)]
    for balance in balances:
        brain = Brain(Terms(ests=4, schedule=schedule, rendezvous=str, limits=ON))
        brain.balance = balance
        moved = [play_by_hand(brain, step) for step in range(30)]
        assert any(moved) == (balance is balances[0])


def play_by_hand(brain: Brain, step: int) -> bool:
    """One step of a plan 2+2 with a slow worker; whether an order follows."""
    s, ordered = brain.facts, False
    if step == 0:
        brain.take(Begun(), 0.0)
        for worker in (0, 1):
            brain.take(Started(worker=worker, pid=1, started=""), 0.0)
            brain.take(Said(worker=worker, body=Ready(worker=worker, pid=1, step=0, seconds=1.0)), 0.0)
        assert s.opening is not None
        s.current, s.opening = s.opening.order, None
        members = (Member(worker=0, first=0, count=2), Member(worker=1, first=2, count=2))
        s.decisions.append(InForce(epoch=0, step=0, members=members))
    for worker, local in ((0, 0.2), (1, 0.6)):
        done = StepDone(
            worker=worker, step=step, epoch=0, ests=[2 * worker, 2 * worker + 1], metrics={}, samples=1,
            time=1e9 + 0.65 * step, local=local,
        )  # fmt: skip
        ordered |= any(isinstance(d, Send) for d in brain.take(Said(worker=worker, body=done), 0.65 * step))
    return ordered


def test_a_split_that_someone_asked_for_is_left_alone() -> None:
    job = slow_job()
    assert isinstance(job.scale(split=(1, 3)), Accepted)
    job.run(200.0)
    assert splits(job)[-1] == (1, 3)
    assert job.events("rebalance") == []
    job.scale(workers=2)  # any split will do again
    job.run(200.0)
    assert splits(job)[-1] == (3, 1)


@pytest.mark.parametrize("schedule", ["0:3+1", "0:2,5:1+3"])
def test_a_plan_that_was_given_at_the_start_is_left_alone(schedule: str) -> None:
    job = slow_job(schedule=schedule, paces={0: 0.3, 1: 0.3}).run(200.0)
    assert splits(job)[-1] == ((3, 1) if schedule == "0:3+1" else (1, 3))
    assert job.events("rebalance") == []


def test_the_last_wish_wins_over_a_move_that_is_on_its_way() -> None:
    job = slow_job()
    job.until(lambda: bool(job.events("rebalance")))
    job.scale(workers=1)
    job.run(60.0)
    assert splits(job)[-1] == (4,)
    assert job.events("rebalance") == job.events("rebalance")[:1]


def test_a_wish_comes_before_a_move() -> None:
    """A newcomer that takes its time: nothing moves while someone's wish waits for it."""
    job = slow_job(start=100.0)
    job.scale(workers=3)
    job.run(90.0)
    assert job.events("rebalance") == []
    job.run(60.0)
    assert (2, 1, 1) in splits(job)


def test_a_loss_during_a_move_starts_no_worker_that_nobody_asked_for() -> None:
    job = Simulation(6, 3, limits=ON, paces={0: 0.1, 1: 0.1, 2: 0.5}).training()
    job.until(lambda: bool(job.events("rebalance")))
    job.kill(2)
    job.run(60.0)
    assert set(job.members()) == {0, 1}
    assert len(job.workers) == 3


MISDEEDS: dict[str, Callable[[Simulation, int], Any]] = {
    "kill": lambda job, number: job.kill(number),
    "freeze": lambda job, number: job.freeze(number),
    "leave": lambda job, number: job.leave(number),
    "fail": lambda job, number: job.fail(number, oom=True),
    "lose each other": lambda job, _: job.lose_each_other(),
    "grow": lambda job, _: job.scale(workers=4),
    "shrink": lambda job, _: job.scale(workers=1),
    "split": lambda job, _: job.scale(split=(1, 1, 4)),
    "stop": lambda job, _: job.stop(),
}


@given(st.sampled_from(sorted(MISDEEDS)), st.integers(0, 2), st.floats(0.0, 1.5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_whatever_happens_around_a_move_the_job_goes_on_and_its_mind_knows_the_plan(
    misdeed: str, number: int, after: float, again: bool
) -> None:
    """The simulation itself checks each order."""
    job = Simulation(6, 3, limits=ON, paces={0: 0.02, 1: 0.02, 2: 0.2}, start=0.5).training()
    job.until(lambda: bool(job.events("rebalance")))
    job.run(after)
    MISDEEDS[misdeed](job, number)
    if again:
        job.run(0.1)
        job.lose_each_other()
    job.run(60.0)
    if misdeed == "stop":
        assert job.end is not None
        return
    before = job.step
    job.run(5.0)
    assert job.step > before, job.story()
    members = job.brain.facts.members()
    assert job.brain.balance.mind.split == {str(member.worker): member.count for member in members}
    assert len(job.workers) == (4 if misdeed == "grow" else 3)  # nobody is started whom nobody asked for


def test_a_move_that_is_declined_leaves_the_plan_and_is_tried_again_after_more_steps() -> None:
    job = slow_job()
    job.until(lambda: bool(job.events("rebalance")))
    opening = job.brain.facts.opening
    assert opening is not None
    epoch = opening.order.epoch
    job.give(Said(worker=0, body=Declined(worker=0, epoch=epoch, why="it cannot be")))
    mind = job.brain.balance.mind
    assert mind.pending is None
    assert mind.split == {"0": 2, "1": 2}
    assert mind.warming == mind.terms.warm_up
    assert job.events("switch-cancelled") == [
        "The change to 2 workers (3+1) is cancelled: it cannot be; the job goes on with 2 workers (2+2)."
    ]


def test_speeds_are_told_by_worker_and_by_type() -> None:
    job = slow_job(paces={0: 0.1, 1: 0.1}).run(100.0)
    report = job.brain.balance.report()
    assert set(report["workers"]) == {"0", "1"}
    assert report["workers"]["0"] == {
        "kind": "cpu", "seconds": pytest.approx(0.1), "spread": pytest.approx(1.0, abs=0.1),
        "steps": report["workers"]["0"]["steps"],
    }  # fmt: skip
    assert report["workers"]["0"]["steps"] >= USUAL_STEPS
    assert report["kinds"]["cpu"]["seconds"] == pytest.approx(0.1)


def test_a_master_that_hears_the_journal_has_learned_the_same_and_goes_on(tmp_path: Path) -> None:
    job = slow_job()
    job.until(lambda: bool(job.events("rebalance")))
    for seconds in (0.0, 5.0, 100.0):  # the order is on its way; the new plan warms up; it is well known
        job.run(seconds)
        path = tmp_path / f"{seconds}.jsonl"
        journal = Journal(path)
        journal.head(heading())
        written = [Entry(now=now, wall=now, given=given) for now, given in job.inputs]
        journal.write(one for one in written if is_written(one))
        journal.close()
        again = Brain(job.brain.facts.terms)
        for entry in read(path)[1]:
            again.take(entry.given, entry.now)
        assert again.balance.mind.state() == job.brain.balance.mind.state()
        assert again.balance.speeds() == job.brain.balance.speeds()
        assert again.facts.current == job.brain.facts.current
        assert again.facts.wish == job.brain.facts.wish
    assert splits(job) == [(2, 2), (3, 1)]
