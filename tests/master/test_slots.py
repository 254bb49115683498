"""Jobs whose devices have names, in virtual time: who sits where after wishes, losses, farewells and restarts.

The simulation itself asserts that no worker starts on a device on which another one lives.
"""

import json

import pytest
from tests.master.simulation import Simulation, named

from easyscale.core.requests import Accepted, Refused
from easyscale.master.brain import Brain
from easyscale.master.limits import Limits
from easyscale.planner.wire import speed_of_plain


def slots_started(job: Simulation) -> list[str]:
    return [start.slot.id for start in job.starts if start.slot is not None]


def test_a_job_begins_with_one_worker_on_each_of_its_devices() -> None:
    job = Simulation(4, slots="ab").training()
    assert slots_started(job) == ["a", "b"]
    assert job.where() == {"a": [0, 1], "b": [2, 3]}


def test_who_sits_on_a_wished_device_stays_and_newcomers_take_the_empty_ones() -> None:
    job = Simulation(4, slots="ab").training()
    reply = job.place("bc")
    assert isinstance(reply, Accepted)
    assert (reply.split, reply.text) == ((2, 2), "The job goes to 2 workers (2+2) on devices b and c.")
    job.training()
    assert job.where() == {"b": [0, 1], "c": [2, 3]}
    assert slots_started(job) == ["a", "b", "c"]
    assert not job.run(0.1).workers[0].alive
    job.place("c")
    job.training()
    assert job.where() == {"c": [0, 1, 2, 3]}
    job.run(0.1).place("abcd")
    job.training()
    assert job.where() == {"c": [0], "a": [1], "b": [2], "d": [3]}
    assert len(job.starts) == 6


def test_a_move_of_all_workers_is_a_switch_like_any_other() -> None:
    job = Simulation(4, slots="ab").training()
    before = job.step
    job.place("cd")
    job.training()
    assert job.where() == {"c": [0, 1], "d": [2, 3]}
    assert job.step > before
    assert [order.how for order in job.orders] == ["start", "switch"]


def test_a_wish_for_the_devices_that_it_has_changes_nothing() -> None:
    job = Simulation(4, slots="ab").training()
    assert isinstance(job.place("ba"), Accepted)
    job.run(20.0)
    assert (len(job.orders), len(job.starts)) == (1, 2)


def test_a_device_is_taken_until_its_process_has_ended() -> None:
    """The worker that left b is slow to end; the next on b waits for that, and the job trains meanwhile."""
    job = Simulation(4, slots="ab", limits=Limits(grace=5.0)).training()
    job.place("a")
    job.training()
    assert job.where() == {"a": [0, 1, 2, 3]}
    job = Simulation(4, slots="ab", limits=Limits(grace=5.0)).training()
    job.place("a")
    job.until(lambda: job.brain.facts.hands[1].dismissed)
    job.freeze(1)
    job.place("ab")
    before = job.step
    job.run(2.0)
    assert len(job.starts) == 2
    assert job.workers[1].alive
    assert job.step > before
    job.training()
    assert job.where() == {"a": [0, 1], "b": [2, 3]}
    assert slots_started(job) == ["a", "b", "b"]


def test_a_lost_worker_leaves_its_device_empty_until_the_next_wish() -> None:
    job = Simulation(4, slots="ab").training()
    job.kill(0)
    job.training()
    job.run(20.0)
    assert job.where() == {"b": [0, 1, 2, 3]}
    assert len(job.starts) == 2
    job.place("ab")
    job.training()
    assert job.where() == {"b": [0, 1], "a": [2, 3]}


def test_a_replacement_takes_the_empty_device() -> None:
    job = Simulation(4, slots="abc", limits=Limits(max_restarts=1)).training()
    job.kill(1)
    job.run(0.1)
    job.training()
    assert set(job.where()) == {"a", "b", "c"}
    assert slots_started(job) == ["a", "b", "c", "b"]
    job.kill(3)
    job.run(20.0)
    assert set(job.where()) == {"a", "c"}, "only one may be replaced"


def test_a_worker_lost_before_the_first_plan_is_left_out_or_replaced_on_its_device() -> None:
    job = Simulation(4, slots="ab").run(1.0)
    job.kill(0)
    job.training()
    assert job.where() == {"b": [0, 1, 2, 3]}
    job = Simulation(4, slots="ab", limits=Limits(max_restarts=1)).run(1.0)
    job.kill(0)
    job.training()
    assert slots_started(job) == ["a", "b", "a"]
    assert set(job.where()) == {"a", "b"}


def test_a_job_that_starts_anew_starts_on_its_devices() -> None:
    job = Simulation(4, slots="ab", limits=Limits(max_restarts=1)).training()
    job.place("cd")
    job.training()
    job.fail(2)
    job.run(0.1)
    job.training()
    assert set(job.where()) == {"c", "d"}
    assert slots_started(job) == ["a", "b", "c", "d", "c", "d"]


def test_a_newcomer_that_fails_leaves_the_job_where_it_is() -> None:
    job = Simulation(4, slots="ab").training()
    job.on_start = lambda worker: job.clock.after(1.0, lambda: job.kill(worker.number))
    job.place("bc")
    job.training()
    assert set(job.where()) == {"a", "b"}
    (told,) = job.events("switch-cancelled")
    assert told.startswith("The change to devices b and c is cancelled: worker 2")


def test_the_last_wish_wins_and_newcomers_of_both_go_on() -> None:
    job = Simulation(4, slots="a").training()
    job.place("abc")
    job.run(0.5)
    job.place("acd")
    job.training()
    assert set(job.where()) == {"a", "c", "d"}
    assert slots_started(job) == ["a", "b", "c", "d"]


def test_a_number_takes_of_the_devices_that_the_job_was_given_and_no_more() -> None:
    job = Simulation(4, slots="abc").training()
    assert isinstance(job.scale(1), Accepted)
    job.training()
    assert set(job.where()) == {"a"}
    refused = job.scale(4)
    assert isinstance(refused, Refused)
    assert refused.what == "4 workers are more than the job has devices."
    assert "devices a, b and c" in refused.why
    assert refused.now
    assert isinstance(job.scale(3), Accepted)
    job.training()
    assert set(job.where()) == {"a", "b", "c"}
    assert isinstance(job.scale(split=(1, 3)), Accepted)
    job.training()
    assert {slot: len(ests) for slot, ests in job.where().items()} == {"a": 1, "b": 3}


@pytest.mark.parametrize("count", [5, 9])
def test_more_devices_than_ests_are_refused(count: int) -> None:
    job = Simulation(4, slots="ab").training()
    assert isinstance(job.place("abcdefghi"[:count]), Refused)
    job.run(5.0)
    assert set(job.where()) == {"a", "b"}


def test_devices_outside_of_the_jobs_range_are_refused() -> None:
    job = Simulation(4, slots="ab", limits=Limits(workers=(1, 2))).training()
    assert isinstance(job.place("abc"), Refused)


def test_who_was_told_to_leave_goes_and_its_device_stays_empty() -> None:
    job = Simulation(4, slots="ab").training()
    job.leave(1)
    job.run(0.1)
    job.training()
    job.run(5.0)
    assert set(job.where()) == {"a"}
    assert isinstance(job.scale(leave=0), Refused)


def test_a_wish_under_way_lets_those_go_first_who_want_to_and_is_kept() -> None:
    job = Simulation(4, slots="ab").training()
    job.place("bc")
    job.run(0.5)
    job.leave(0)
    job.run(0.5)
    assert set(job.where()) == {"b"}, "it went at once, though c is not ready"
    job.training()
    assert set(job.where()) == {"b", "c"}
    assert slots_started(job) == ["a", "b", "c"], "who was starting went on"


def test_a_device_is_filled_again_once_the_one_who_wants_to_leave_has_left() -> None:
    job = Simulation(4, slots="ab").training()
    job.leave(1)
    job.run(0.01)
    job.place("ab")
    job.training()
    assert job.where() == {"a": [0, 1], "b": [2, 3]}
    assert slots_started(job) == ["a", "b", "b"]


def test_the_only_worker_wants_to_leave_and_others_take_over() -> None:
    job = Simulation(4, slots="a").training()
    job.place("ab")
    job.leave(0)
    job.run(0.1)
    job.until(lambda: set(job.where()) == {"b"})
    job.training()
    assert set(job.where()) == {"b", "a"}


def test_a_job_by_number_can_be_given_devices() -> None:
    job = Simulation(4, 2).training()
    assert isinstance(job.place("ab"), Accepted)
    job.training()
    assert job.where() == {"a": [0, 1], "b": [2, 3]}
    assert job.starts[0].slot is None


def test_the_planner_hears_the_type_of_the_device() -> None:
    job = Simulation(4, slots="aB").training().run(20.0)
    assert {device.id: device.kind for device in job.brain.balance.mind.devices} == {"0": "plain", "1": "fast"}


def test_a_job_tells_how_fast_it_would_be_once_it_has_measured_something() -> None:
    job = Simulation(4, slots="a", paces={0: 0.1, 1: 0.1}, kinds=("plain", "fast")).training()
    balance = job.brain.balance
    assert balance.model() is None
    job.run(30.0)
    model = balance.model()
    assert model is not None
    speed = speed_of_plain(json.loads(json.dumps(model["speed"])))
    assert speed.rate({"plain": 1}) == pytest.approx(1 / 0.45, rel=0.05)
    assert speed.rate({"fast": 2}) > 0, "a type that it never had is guessed"
    assert speed.rate({"unheard": 1}) == 0.0
    assert model["limit"] is None


def test_a_growth_that_brings_nothing_is_told_as_a_limit_and_nobody_leaves() -> None:
    job = Simulation(4, slots="a", paces={0: 0.1, 1: 0.1}, limits=Limits(rebalance=True)).training().run(30.0)
    job.place("ab")
    job.training()
    job.step_seconds = 0.24  # instead of 0.05: what the local steps win, the reduction costs
    job.run(60.0)
    model = job.brain.balance.model()
    assert model is not None
    assert model["limit"] == 1
    assert set(job.where()) == {"a", "b"}


def test_a_growth_that_brings_what_was_hoped_for_has_no_limit() -> None:
    job = Simulation(4, slots="a", paces={0: 0.1, 1: 0.1}).training().run(30.0)
    job.place("ab")
    job.training().run(60.0)
    model = job.brain.balance.model()
    assert model is not None
    assert model["limit"] is None


def test_a_master_that_hears_it_all_again_knows_who_sits_where() -> None:
    job = Simulation(4, slots="ab").training()
    job.place("bc")
    job.training()
    job.kill(1)
    job.run(5.0)
    again = Brain(job.brain.facts.terms)
    for now, given in job.inputs:
        again.take(given, now)
    assert {n: hand.slot for n, hand in again.facts.hands.items()} == dict(enumerate(named("abc")))
    assert [member.worker for member in again.facts.members()] == [2]
    assert again.facts.slots == named("bc")
