"""The master's decisions in virtual time, with workers that keep their side of the contract."""

import pytest
from tests.master.simulation import Simulation

from easyscale.core.control import Declined, Hello, Joined, Lost, Status
from easyscale.core.messages import StepDone
from easyscale.core.requests import Accepted, Refused
from easyscale.master.brain import Brain
from easyscale.master.inputs import Ended, Overdue, Said, Save, Stop
from easyscale.master.limits import Limits
from easyscale.master.situation import Wanted

# ---------------------------------------------------------------------------------------- start and end


def test_a_job_starts_its_workers_and_orders_the_first_plan_when_all_are_ready() -> None:
    job = Simulation(4, 2).training()
    (order,) = job.orders
    assert (order.how, order.epoch, order.plan.split, order.rendezvous) == ("start", 0, (2, 2), "rendezvous-0")
    assert [(start.worker, start.split, start.rank) for start in job.starts] == [(0, (2, 2), 0), (1, (2, 2), 1)]
    assert job.events("plan") == ["Starts at step 0 on 2 workers (2+2)."]


def test_a_job_is_done_when_all_scripts_came_to_their_end() -> None:
    job = Simulation(4, 2, length=30)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert (job.end.how, job.end.exit_code, job.step) == ("done", 0, 30)


def test_a_script_that_never_asks_for_a_place_ends_well_and_plainly() -> None:
    job = Simulation(4, 2, start=1e6)
    job.run(1.0)
    for number in (0, 1):
        job.kill(number, 0)
    job.run(1.0)
    assert job.end is not None
    assert job.end.how == "plain"


def test_workers_that_are_ready_do_not_wait_for_one_whose_script_ended() -> None:
    job = Simulation(4, 3)
    job.run(1.0)
    job.kill(2, 0)
    job.training()
    assert job.members() == {0: [0, 1], 1: [2, 3]}


def test_a_script_that_ends_itself_before_the_start_fails_the_job_with_its_code() -> None:
    job = Simulation(4, 2).run(1.0)
    job.kill(1, 2)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert (job.end.how, job.end.exit_code) == ("failed", 2)
    assert "exit code 2" in (job.end.error or "")


def test_a_worker_killed_before_the_start_is_left_out() -> None:
    job = Simulation(4, 2).run(1.0)
    job.kill(0)
    job.training()
    assert job.members() == {1: [0, 1, 2, 3]}
    assert job.events("worker-lost") == [
        "worker 0 (pid 1000) was killed by signal 9 before it was ready; the job starts without it."
    ]


def test_a_worker_killed_before_the_start_is_replaced_while_restarts_last() -> None:
    job = Simulation(4, 2, limits=Limits(max_restarts=1)).run(1.0)
    job.kill(0)
    job.training()
    assert job.members() == {1: [0, 1], 2: [2, 3]}


def test_a_worker_that_is_never_ready_does_not_keep_the_others_from_starting() -> None:
    job = Simulation(4, 2, limits=Limits(start=20.0), slow=(1,))
    job.until(lambda: bool(job.members()), 60.0)
    assert job.members() == {0: [0, 1, 2, 3]}
    assert job.events("worker-lost") == [
        "worker 1 (pid 1001) was not ready in 20 s; the job starts without it."
    ]


def test_a_process_that_cannot_be_started_is_told_and_left_out() -> None:
    job = Simulation(4, 1).training()
    job.launcher.refuse = True
    job.scale(2)
    job.run(1.0)
    (text,) = job.events("switch-cancelled")
    assert "could not be started" in text
    assert job.members() == {0: [0, 1, 2, 3]}


# ---------------------------------------------------------------------------------------- losses


def test_the_living_keep_their_ests_and_neighbours_take_the_rest() -> None:
    job = Simulation(8, 4).training().run(1.0)
    step = job.step
    job.kill(2)
    job.training()
    assert job.members() == {0: [0, 1], 1: [2, 3, 4], 3: [5, 6, 7]}
    assert job.orders[-1].how == "recover"
    (text,) = job.events("worker-lost")
    assert text.startswith(f"worker 2 (pid 1002) was killed by signal 9 during step {step}; its ESTs 4-5 continue on ")
    assert "workers 1 and 3; 0 steps lost" in text
    assert [(loss.workers, loss.lost_steps) for loss in job.recoveries] == [((2,), 0)]


def test_all_but_one_may_die_at_once() -> None:
    job = Simulation(6, 3).training().run(1.0)
    job.kill(0)
    job.kill(2)
    job.training()
    assert job.members() == {1: [0, 1, 2, 3, 4, 5]}
    assert len(job.events("worker-lost")) == 2


def test_a_second_loss_during_a_recovery_is_overcome_as_well() -> None:
    job = Simulation(6, 3).training().run(1.0)
    job.kill(0)
    job.until(lambda: job.orders[-1].how == "recover")
    job.kill(1)
    job.training()
    assert job.members() == {2: [0, 1, 2, 3, 4, 5]}


def test_a_frozen_worker_is_found_by_its_silence_killed_and_fenced() -> None:
    job = Simulation(4, 2).training().run(1.0)
    job.freeze(1)
    job.until(lambda: len(job.members()) == 1, 7.0).training()
    assert not job.workers[1].alive
    assert "did not answer for 5 s" in job.events("worker-lost")[0]


def test_nothing_a_lost_worker_says_counts_and_it_is_told_so() -> None:
    job = Simulation(4, 2).training().run(1.0)
    job.workers[1].mute = True
    job.until(lambda: job.brain.facts.hands[1].lost, 10.0)
    before = job.step
    late = StepDone(worker=1, step=10**5, epoch=0, ests=[2, 3], metrics={}, samples=1, time=0.0)
    job.brain.facts.hands[1].ended = False  # on another machine, where no kill reaches it
    decisions = job.brain.take(Said(worker=1, body=late), job.clock.now)
    assert [type(decision.body).__name__ for decision in decisions] == ["Fence"]  # type: ignore[union-attr]
    assert job.step == before
    assert job.brain.facts.dropped["nobody"] == 1


def test_a_worker_that_was_said_to_be_gone_and_speaks_again_is_told_to_stop() -> None:
    """As when a back end gave its machine up, and it was only out of reach for a while."""
    job = Simulation(4, 2).training().run(1.0)
    job.kill(1, None)
    job.until(lambda: len(job.members()) == 1, 7.0)
    decisions = job.brain.take(Said(worker=1, body=Hello(worker=1, pid=7)), job.clock.now)
    assert [type(decision.body).__name__ for decision in decisions] == ["Fence"]  # type: ignore[union-attr]


def test_workers_that_lose_each_other_for_no_cause_regroup() -> None:
    job = Simulation(4, 2).training().run(1.0)
    job.lose_each_other()
    job.training()
    assert job.members() == {0: [0, 1], 1: [2, 3]}
    assert job.orders[-1].how == "recover"
    assert len(job.events("regrouped")) == 1


def test_workers_that_lose_each_other_again_and_again_fail_the_job() -> None:
    job = Simulation(4, 2).training().run(1.0)
    job.barren = True
    for _ in range(4):
        job.lose_each_other()
        job.run(1.0)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert "lose each other again and again" in (job.end.error or "")


def test_who_computes_while_all_others_wait_in_vain_is_lost() -> None:
    job = Simulation(6, 3).training().run(1.0)
    job.lose_each_other(timed_out=True, busy=1)
    job.training()
    assert sorted(job.members()) == [0, 2]
    assert "worker 1 (pid 1001) held the others up" in job.events("worker-lost")[0]


def test_a_broken_group_of_an_older_plan_is_no_news() -> None:
    job = Simulation(4, 2).training()
    job.scale(1)
    job.training()
    job.give(Said(worker=0, body=Lost(worker=0, epoch=0, step=1, why="late")))
    assert job.brain.facts.suspicion is None
    assert job.brain.facts.dropped["older plan"] == 1


def test_a_loss_while_the_first_group_forms_starts_the_job_without_the_lost() -> None:
    job = Simulation(4, 2)
    job.until(lambda: bool(job.orders))
    job.kill(1)
    job.training()
    assert job.orders[-1].how == "start"
    assert job.members() == {0: [0, 1, 2, 3]}


def test_the_order_on_the_way_is_said_again_on_a_new_connection() -> None:
    job = Simulation(4, 2)
    job.until(lambda: job.brain.facts.hands.get(1) is not None and job.brain.facts.hands[1].ready)
    job.workers[1].mute = True
    job.run(1.0)
    assert not job.members()
    job.reconnect(1)
    job.training()
    assert len(job.orders) == 1


def test_a_halt_is_said_again_on_a_new_connection() -> None:
    job = Simulation(6, 3).training()
    job.workers[1].mute = True
    job.kill(0)
    job.run(1.0)
    assert job.brain.facts.halting is not None
    job.reconnect(1)
    job.training()
    assert sorted(job.members()) == [1, 2]


# ---------------------------------------------------------------------------------------- all lost, restarts


def test_a_job_whose_workers_are_all_lost_fails_and_says_how_to_go_on() -> None:
    job = Simulation(4, 2).training().run(1.0)
    job.kill(0)
    job.kill(1)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert (job.end.how, job.end.exit_code) == ("failed", 137)
    assert "SIGKILL" in (job.end.error or "")
    assert "--resume latest" in (job.end.error or "")


def test_a_job_whose_workers_are_all_lost_starts_anew_from_its_checkpoint_if_it_may() -> None:
    job = Simulation(4, 2, limits=Limits(max_restarts=1), checkpoint=7).training().run(1.0)
    done = job.step
    job.kill(0)
    job.kill(1)
    job.run(0.5)
    assert [start.resume for start in job.starts] == [None, None, "auto", "auto"]
    job.training()
    assert job.orders[-1].how == "start"
    assert [recovery.lost_steps for recovery in job.recoveries] == [done - 7]
    assert job.events("restarted") == [f"Started again at step 7; {done - 7} steps lost."]
    job.kill(2)
    job.kill(3)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert job.end.how == "failed"


# ---------------------------------------------------------------------------------------- failures


def test_a_users_error_ends_the_job_and_is_told_once() -> None:
    job = Simulation(4, 2).training().run(1.0)
    job.fail(1)
    job.fail(0)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert (job.end.how, job.end.worker, job.end.ours, job.end.exit_code) == ("failed", 1, False, 1)
    assert job.end.error == "Traceback\nValueError: bad"


def test_a_failed_job_starts_anew_if_it_may() -> None:
    job = Simulation(4, 2, limits=Limits(max_restarts=1)).training().run(1.0)
    job.fail(1)
    job.until(lambda: len(job.starts) == 4).training()
    assert sorted(job.members()) == [2, 3]


def test_a_worker_without_memory_is_lost_where_another_can_take_its_share() -> None:
    job = Simulation(4, 2).training().run(1.0)
    job.fail(1, oom=True)
    job.training()
    assert job.members() == {0: [0, 1, 2, 3]}
    assert "ran out of memory" in job.events("worker-lost")[0]
    job.fail(0, oom=True)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert job.end.how == "failed"


# ---------------------------------------------------------------------------------------- wishes


def test_growing_starts_newcomers_beside_the_workers_that_go_on() -> None:
    job = Simulation(4, 2).training()
    reply = job.scale(4)
    assert reply == Accepted(text="The job goes to 4 workers (1+1+1+1).", split=(1, 1, 1, 1))
    before = job.step
    job.run(1.5)
    assert job.step > before + 20
    job.training()
    assert job.members() == {0: [0], 1: [1], 2: [2], 3: [3]}
    assert (job.orders[-1].how, job.orders[-1].joining) == ("switch", (2, 3))
    assert [pause.step for pause in job.pauses] == [job.in_force[-1].step]
    assert "instead of 2 workers (2+2); pause 0.05 s." in job.events("plan")[-1]


def test_shrinking_keeps_the_earliest_workers_in_their_order() -> None:
    job = Simulation(4, 4).training()
    job.scale(2)
    job.training()
    assert job.members() == {0: [0, 1], 1: [2, 3]}
    assert job.orders[-1].leaving == (2, 3)
    job.run(1.0)
    assert not job.workers[2].alive
    assert len(job.events("worker-left")) == 2


def test_the_pause_of_a_shrink_is_right_though_a_worker_that_leaves_tells_its_last_step_late() -> None:
    def step(worker: int, number: int, time: float) -> Said:
        body = StepDone(worker=worker, step=number, epoch=0, ests=[], metrics={}, samples=0, time=time)
        return Said(worker=worker, body=body)

    job = Simulation(4, 4).training()
    job.scale(2)
    job.until(lambda: job.brain.facts.watch is not None)
    watch = job.brain.facts.watch
    assert watch is not None
    left = watch.left_at
    assert left is not None
    job.give(step(0, watch.step, left + 0.25))
    job.give(step(3, watch.step - 1, left))
    job.give(step(1, watch.step, left + 0.25))
    assert [pause.seconds for pause in job.pauses] == [pytest.approx(0.25)]


def test_a_named_worker_leaves() -> None:
    job = Simulation(4, 4).training()
    assert job.scale(leave=1).split == (2, 1, 1)
    job.training()
    assert job.members() == {0: [0, 1], 2: [2], 3: [3]}


def test_a_split_is_followed_exactly() -> None:
    job = Simulation(6, 2).training()
    job.scale(split=(1, 3, 2))
    job.training()
    assert job.members() == {0: [0], 1: [1, 2, 3], 2: [4, 5]}


@pytest.mark.parametrize(
    "wish", [{"workers": 5}, {"workers": 0}, {"split": (1, 1)}, {"split": (4, 0)}, {"leave": 9}], ids=str
)
def test_a_wish_that_cannot_be_is_refused_with_a_reason(wish: dict[str, object]) -> None:
    job = Simulation(4, 2).training()
    job.scale(**wish)  # type: ignore[arg-type]
    reply = job.replies[-1]
    assert isinstance(reply, Refused)
    assert reply.what
    assert reply.now
    assert job.brain.facts.wish is None


def test_a_wish_outside_the_range_of_the_job_is_refused() -> None:
    job = Simulation(8, 4, limits=Limits(workers=(2, 4))).training()
    assert isinstance(job.scale(1), Refused)
    assert isinstance(job.scale(5), Refused)
    assert isinstance(job.scale(3), Accepted)


def test_the_only_worker_cannot_be_sent_away() -> None:
    job = Simulation(4, 1).training()
    assert isinstance(job.scale(leave=0), Refused)


def test_the_last_wish_wins_while_workers_are_started() -> None:
    job = Simulation(8, 2).training()
    job.scale(6)
    job.run(0.5)
    job.scale(3)
    job.run(0.5)
    assert len(job.starts) == 6
    job.training()
    assert len(job.members()) == 3
    assert [order.plan.workers for order in job.orders] == [2, 3]
    job.run(1.0)
    assert sum(worker.alive for worker in job.workers.values()) == 3


def test_a_wish_during_a_switch_waits_for_it() -> None:
    job = Simulation(8, 2).training()
    job.scale(4)
    job.until(lambda: job.brain.facts.opening is not None)
    job.scale(1)
    job.training()
    assert [order.plan.workers for order in job.orders] == [2, 4, 1]


def test_a_wish_before_the_first_plan_changes_what_is_started() -> None:
    job = Simulation(4, 2).run(0.5)
    job.scale(3)
    job.training()
    assert job.orders[0].plan.split == (2, 1, 1)
    assert len(job.orders) == 1


def test_a_newcomer_that_dies_cancels_the_wish_and_the_job_goes_on() -> None:
    job = Simulation(4, 2).training()
    job.scale(4)
    job.run(1.0)
    job.kill(3)
    job.run(5.0)
    assert job.members() == {0: [0, 1], 1: [2, 3]}
    assert job.events("switch-cancelled") == [
        "The change to 4 workers is cancelled: worker 3 (pid 1003) was killed by signal 9 before it was ready;"
        " the job goes on with 2 workers (2+2)."
    ]
    assert not job.workers[2].alive


def test_a_newcomer_that_fails_cancels_the_wish_with_its_reason() -> None:
    job = Simulation(4, 2).training()
    job.scale(3)
    job.run(1.0)
    job.fail(2)
    job.run(5.0)
    assert "failed before it was ready: ValueError: bad" in job.events("switch-cancelled")[0]
    assert job.end is None


def test_a_newcomer_that_is_too_slow_cancels_the_wish() -> None:
    job = Simulation(4, 2, limits=Limits(start=10.0), slow=(2,)).training()
    job.scale(3)
    job.run(15.0)
    assert "was not ready in 10 s" in job.events("switch-cancelled")[0]
    assert not job.workers[2].alive
    assert len(job.members()) == 2


def test_a_switch_that_the_workers_decline_is_cancelled_and_later_wishes_count() -> None:
    job = Simulation(4, 2).training()
    job.scale(workers=3)
    job.until(lambda: len(job.orders) == 2)
    said = Declined(worker=0, epoch=job.orders[-1].epoch, why="there is no place for it")
    job.give(Said(worker=0, body=said))
    assert job.events("switch-cancelled") == [
        "The change to 3 workers is cancelled: there is no place for it; the job goes on with 2 workers (2+2)."
    ]
    job.give(Said(worker=0, body=said))  # of an order that is over
    job.scale(workers=1)
    assert job.orders[-1].plan.split == (4,), "the order that was declined is not in the way of the next"
    job.until(lambda: len(job.members()) == 1)


def test_a_worker_may_be_sent_away_while_the_first_plan_forms() -> None:
    job = Simulation(4, 2)
    job.until(lambda: job.brain.facts.opening is not None)
    assert isinstance(job.scale(leave=0), Accepted)
    job.until(lambda: set(job.members()) == {1})


def test_a_member_lost_while_newcomers_start_does_not_cancel_the_wish() -> None:
    job = Simulation(4, 2).training()
    job.scale(3)
    job.run(1.0)
    job.kill(1)
    job.run(0.5)
    assert job.members() == {0: [0, 1, 2, 3]}
    job.run(5.0)
    assert len(job.members()) == 3


def test_a_member_lost_during_a_switch_takes_it_back_and_it_is_ordered_anew() -> None:
    job = Simulation(6, 2).training()
    job.scale(3)
    job.until(lambda: job.orders[-1].how == "switch")
    job.kill(0)
    job.run(10.0)
    assert [order.how for order in job.orders] == ["start", "switch", "recover", "switch"]
    assert job.orders[2].members[0].worker == 1
    assert len(job.members()) == 3


def test_a_newcomer_lost_during_a_switch_cancels_it() -> None:
    job = Simulation(4, 2).training()
    job.scale(3)
    job.until(lambda: job.orders[-1].how == "switch")
    job.kill(2)
    job.run(10.0)
    assert len(job.events("switch-cancelled")) == 1
    assert job.members() == {0: [0, 1], 1: [2, 3]}


def test_a_switch_that_one_of_the_living_has_made_counts() -> None:
    """The plan of the switch is the base. Its joiner has no state yet, so it comes with a switch of its own."""
    job = Simulation(4, 2).training()
    job.step_seconds = 1e6  # from here on all words are the test's own
    job.run(0.1)
    job.scale(split=(1, 2, 1))
    job.until(lambda: job.orders[-1].how == "switch")
    epoch, facts = job.orders[-1].epoch, job.brain.facts
    job.run(0.01)
    job.give(Said(worker=0, body=Joined(worker=0, epoch=epoch, step=5, seconds=0.1)))
    job.workers[0].epoch, job.workers[0].ests = epoch, (0,)
    job.workers[1].ests = ()
    job.kill(1)
    job.until(lambda: job.orders[-1].how == "recover")
    assert job.orders[-1].joining == ()
    assert [(m.worker, list(m.ests)) for m in job.orders[-1].members] == [(0, [0, 1, 2, 3])]
    assert facts.opening is not None
    assert facts.wish == Wanted(workers=2)
    assert [hand.number for hand in facts.candidates()] == [2]


def test_a_switch_that_never_comes_about_is_tried_again_without_those_who_did_not_join() -> None:
    job = Simulation(6, 3).training()
    job.scale(2)
    job.until(lambda: job.orders[-1].how == "switch")
    epoch = job.orders[-1].epoch
    job.give(Said(worker=0, body=Joined(worker=0, epoch=epoch, step=5, seconds=0.1)))
    assert job.brain.due(job.clock.now + 400.0)[-1] == Overdue(what="join", workers=(1,))


# ---------------------------------------------------------------------------------------- leaving, replacing


def test_a_worker_that_is_told_to_go_hands_over_and_leaves() -> None:
    job = Simulation(4, 2).training()
    job.leave(0)
    job.training().run(1.0)
    assert job.members() == {1: [0, 1, 2, 3]}
    assert not job.workers[0].alive
    assert job.events("worker-lost") == []


def test_the_only_worker_that_is_told_to_go_stops_the_job() -> None:
    job = Simulation(4, 1).training()
    job.leave(0)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert (job.end.how, job.end.exit_code) == ("stopped", 143)


def test_a_job_that_is_told_to_go_with_its_only_worker_still_leaves_a_checkpoint() -> None:
    """Whoever ends a whole container signals both. The job's own signal is its first, not its second."""
    job = Simulation(4, 1, step=0.5).training()
    job.leave(0)
    job.run(0.1)
    job.stop()
    job.until(lambda: job.end is not None)
    assert job.brain.facts.hands[0].code == 143, "it was killed"


def test_all_workers_told_to_go_stop_the_job() -> None:
    job = Simulation(4, 2).training()
    job.leave(0)
    job.leave(1)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert job.end.how == "stopped"


def test_lost_workers_are_replaced_below_the_least_while_restarts_last() -> None:
    job = Simulation(8, 4, limits=Limits(workers=(3, 4), max_restarts=1)).training()
    job.kill(0)
    job.run(10.0)
    assert len(job.members()) == 3
    assert len(job.starts) == 4
    job.kill(1)
    job.run(10.0)
    assert len(job.members()) == 3
    assert len(job.starts) == 5
    job.kill(2)
    job.run(10.0)
    assert len(job.members()) == 2


# ---------------------------------------------------------------------------------------- schedules


def test_a_schedule_is_followed_to_the_step() -> None:
    job = Simulation(4, schedule="0:4,100:2,150:1,200:3")
    job.until(lambda: job.step > 210)
    assert [(plan.step, len(plan.members)) for plan in job.in_force] == [(0, 4), (100, 2), (150, 1), (200, 3)]


def test_a_wish_does_not_wait_for_the_next_step_of_a_schedule() -> None:
    job = Simulation(4, schedule="0:2,10000:1").run(4.0)
    job.scale(4)
    job.run(10.0)
    assert len(job.members()) == 4
    assert job.brain.facts.opening is not None
    assert job.brain.facts.opening.order.at == 10000


def test_a_loss_before_the_next_step_of_a_schedule_does_not_take_it_away() -> None:
    job = Simulation(4, schedule="0:2,200:4").run(4.0)
    job.kill(1)
    job.until(lambda: job.step > 210)
    assert [(plan.step, len(plan.members)) for plan in job.in_force][-1] == (200, 4)


def test_a_script_that_ends_before_a_planned_switch_ends_the_job() -> None:
    job = Simulation(4, schedule="0:2,10000:4", length=50)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert job.end.how == "done"


# ---------------------------------------------------------------------------------------- stops


def test_a_stop_asks_the_workers_and_ends_with_its_code() -> None:
    job = Simulation(4, 2).training()
    job.stop(2)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert (job.end.how, job.end.exit_code) == ("stopped", 130)


def test_a_stop_dismisses_newcomers() -> None:
    job = Simulation(4, 2).training()
    job.scale(4)
    job.run(0.5)
    job.stop()
    job.until(lambda: job.end is not None, 5.0)


def test_a_second_stop_kills() -> None:
    job = Simulation(4, 2, step=1e6).run(5.0)
    job.stop()
    job.run(1.0)
    assert job.end is None
    job.stop()
    job.run(0.1)
    assert job.end is not None


def test_workers_that_a_stop_kills_are_not_told_as_lost() -> None:
    job = Simulation(4, 2).training()
    job.give(Stop(number=15, now=True))
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert (job.end.how, job.events("worker-lost")) == ("stopped", [])


def test_a_stop_that_is_not_obeyed_ends_in_kills() -> None:
    job = Simulation(4, 2, step=1e6, limits=Limits(stop=20.0)).run(5.0)
    job.stop()
    job.until(lambda: job.end is not None, 21.0)


def test_a_stop_before_the_start_ends_at_once() -> None:
    job = Simulation(4, 2).run(0.1)
    job.stop()
    job.run(0.5)
    assert job.end is not None


def test_a_loss_during_a_stop_is_recovered_so_that_the_checkpoint_is_written() -> None:
    job = Simulation(4, 2, step=1.0).training()
    job.kill(1)
    job.stop()
    job.until(lambda: job.end is not None)
    assert [order.how for order in job.orders] == ["start", "recover"]
    assert job.end is not None
    assert job.end.how == "stopped"


def test_a_checkpoint_is_wished_of_all_members() -> None:
    job = Simulation(4, 2).training()
    job.give(Save())
    assert isinstance(job.replies[-1], Accepted)


# ---------------------------------------------------------------------------------------- the end of scripts


def test_a_worker_lost_after_another_came_to_its_end_does_not_cost_the_job() -> None:
    job = Simulation(4, 2, length=20)
    job.until(lambda: job.brain.facts.hands[0].done if 0 in job.brain.facts.hands else False)
    job.until(lambda: job.end is not None)
    assert job.end is not None
    assert job.end.how == "done"


def test_a_worker_that_lingers_after_its_end_is_killed() -> None:
    job = Simulation(4, 1, length=5).training()
    job._exit = lambda worker, code: None  # type: ignore[method-assign]
    job.until(lambda: job.end is not None, 60.0)
    assert job.end is not None
    assert job.end.how == "done"


# ---------------------------------------------------------------------------------------- purity


def test_the_same_inputs_give_the_same_decisions() -> None:
    job = Simulation(6, 3).training()
    job.scale(2)
    job.kill(1)
    job.run(10.0)
    again = Brain(job.brain.facts.terms)
    for now, given in job.inputs:
        again.take(given, now)
    assert again.facts == job.brain.facts


def test_a_status_of_an_older_halt_is_no_answer() -> None:
    job = Simulation(4, 2).training()
    job.give(Said(worker=0, body=Status(worker=0, epoch=-1, forming=None, ests=(), step=0)))
    job.give(Said(worker=77, body=Hello(worker=77, pid=1)))
    assert job.brain.facts.dropped == {"older plan": 1, "nobody": 1}


def test_an_end_is_heard_once() -> None:
    job = Simulation(4, 2).training()
    job.kill(1)
    job.training()
    job.give(Ended(worker=1, code=-9))
    job.run(1.0)
    assert len(job.events("worker-lost")) == 1
