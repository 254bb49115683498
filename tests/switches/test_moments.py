"""A change of plan that is wished at an awkward moment: the same bits, and the plan that was wished."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.plan import parse_schedule
from easyscale.core.requests import Accepted, AskScale, Refused
from easyscale.core.spec import WorkerSpec
from easyscale.master.limits import Limits
from elasticity import Fault, ask, run_with_master, spec_here, step_here, wait_until, wish
from switches.stage import (
    PATIENCE,
    PICTURES,
    TERMINATED,
    Scene,
    holds_est_0,
    judge,
    once,
    order_in_hand,
    play,
    status,
    stock,
    wished,
)
from workloads import with_easyscale

ESTS = 4
LAST = 8  # global steps of the case; an epoch has half of them
SESSION = "easyscale.runtime.session:EstSession."
EVALUATED = replace(PICTURES, evaluate=True)


def order(**scale: Any) -> None:
    assert isinstance(wish(**scale), Accepted)


def order_and_wait(**scale: Any) -> None:
    order(**scale)
    wait_until(order_in_hand, PATIENCE)


def wait_for_order() -> None:
    wait_until(order_in_hand, PATIENCE)


# ---------------------------------------------------------------------------------------- before the first step


@pytest.mark.parametrize(("began", "workers"), [((2, 2), 4), ((1, 1, 1, 1), 1), ((4,), 3)])
def test_a_wish_when_the_script_begins_is_the_first_plan(began: tuple[int, ...], workers: int) -> None:
    def train() -> None:
        if spec_here().worker == 0:
            order(workers=workers)
        with_easyscale(PICTURES)()

    played = play(PICTURES, began, train=train)
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert len(played.splits[-1]) == workers
    assert all(step == 0 for step, _ in played.plans)
    assert set(played.codes.values()) <= {0, *TERMINATED}


@pytest.mark.parametrize("scale", [{"workers": 3}, {"workers": 1}, {"leave": 0}])
def test_a_wish_before_the_first_step_takes_effect_after_it(scale: dict[str, Any]) -> None:
    begins = SESSION + "loop_begins"
    faults = [
        Fault(worker=0, step=0, place=begins, action=lambda: order_and_wait(**scale)),
        Fault(worker=1, step=0, place=begins, action=wait_for_order),
    ]
    played = play(PICTURES, (2, 2), faults=faults)
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert [step for step, _ in played.plans] == [0, 1]
    assert set(played.codes.values()) == {0}


# ---------------------------------------------------------------------------------------- at the end


@pytest.mark.parametrize("scale", [{"workers": 4}, {"workers": 1}, {"leave": 0}])
def test_a_wish_in_the_last_step_takes_effect_at_the_end_of_the_epoch(scale: dict[str, Any]) -> None:
    played = play(PICTURES, (2, 2), {LAST - 1: wished(**scale)})
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert [step for step, _ in played.plans] == [0, LAST]
    assert set(played.codes.values()) == {0}


def test_a_wish_that_comes_too_late_is_let_go() -> None:
    """The newcomer is still on its way when the script ends."""

    def late(spec: WorkerSpec) -> None:
        if spec.worker == 2:
            time.sleep(60)  # ended by SIGTERM long before

    scene = Scene(act=lambda: order(workers=3), until=lambda: True)
    played = play(PICTURES, (2, 2), {LAST - 1: scene}, surround=late)
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2))]
    assert (played.codes[0], played.codes[1]) == (0, 0)
    assert played.codes[2] in TERMINATED


def test_a_schedule_beyond_the_last_step_changes_nothing() -> None:
    played = play(PICTURES, parse_schedule("0:2,100:3", ESTS))
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2))]
    assert set(played.codes.values()) <= {0, *TERMINATED}


# ---------------------------------------------------------------------------------------- between epochs


@pytest.mark.parametrize("scale", [{"workers": 4}, {"leave": 0}, {"split": (1, 3)}])
def test_a_wish_between_epochs_takes_effect_there(scale: dict[str, Any]) -> None:
    ended = SESSION + "epoch_ended"
    faults = [
        Fault(worker=0, step=LAST // 2, place=ended, action=lambda: order_and_wait(**scale)),
        Fault(worker=1, step=LAST // 2, place=ended, action=wait_for_order),
    ]
    played = play(EVALUATED, (2, 2), faults=faults)
    judge(played, stock("evaluated", EVALUATED, ESTS), losses=0)
    assert [step for step, _ in played.plans] == [0, LAST // 2]
    assert set(played.codes.values()) == {0}


@pytest.mark.parametrize("scale", [{"workers": 4}, {"workers": 1}])
def test_a_wish_during_an_evaluation_waits_for_its_end(scale: dict[str, Any], tmp_path: Path) -> None:
    """Every worker evaluates, in the middle of which it gets the order."""
    rows = 0

    def held_out() -> Any:
        data = EVALUATED.data()
        original = type(data).__getitem__

        class Watched(type(data)):  # type: ignore[misc]
            def __getitem__(self, i: int) -> Any:
                nonlocal rows
                rows += 1
                if rows == 20 and step_here() == LAST // 2:
                    if holds_est_0() and once(tmp_path / "wished"):
                        order(**scale)
                    wait_for_order()
                return original(self, i)

        data.__class__ = Watched
        return data

    played = play(EVALUATED, (2, 2), train=with_easyscale(replace(EVALUATED, held_out=held_out)))
    judge(played, stock("evaluated", EVALUATED, ESTS), losses=0)
    assert [step for step, _ in played.plans] == [0, LAST // 2]


# ---------------------------------------------------------------------------------------- during a checkpoint


@pytest.mark.parametrize("scale", [{"workers": 4}, {"leave": 0}, {"workers": 1}])
def test_a_switch_during_a_background_checkpoint(scale: dict[str, Any], tmp_path: Path) -> None:
    """The checkpoint of step 2 is being written while the plan changes at step 3: what is in the folder is whole."""

    def slow_disk(spec: WorkerSpec) -> None:
        from easyscale.runtime.checkpoint import store

        original = store.write_folder

        def write_folder(*args: Any) -> int:
            if step_here() < 4:
                wait_until(lambda: step_here() >= 3 or line_dismissed(), PATIENCE)
            return original(*args)

        store.write_folder = write_folder  # type: ignore[assignment]

    def line_dismissed() -> bool:
        return bool(status().step >= 3)

    played = play(
        PICTURES, (2, 2), {1: wished(**scale)}, surround=slow_disk, checkpoint_dir=str(tmp_path), checkpoint_every=2,
        checkpoint_keep=10,
    )  # fmt: skip
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert [step for step, _ in played.plans] == [0, 3]
    assert set(played.codes.values()) == {0}
    saved = {int(path.name.removeprefix("step-")): path for path in tmp_path.glob("step-*")}
    # One that had to wait may have given way to the next; a new holder of EST 0 takes the folder over.
    assert {8} <= set(saved) if "leave" in scale else {2, 8} <= set(saved)
    again = run_with_master(with_easyscale(PICTURES), (3, 1), resume=str(saved[min(saved)]))
    assert again.fingerprint == stock("pictures", PICTURES, ESTS)["fingerprint"], again.text


# ---------------------------------------------------------------------------------------- several wishes


def test_the_last_of_two_wishes_wins_while_workers_start() -> None:
    def act() -> None:
        order(workers=4)
        order(split=(1, 2, 1))

    played = play(PICTURES, (2, 2), {1: Scene(act=act, until=order_in_hand)})
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2)), (3, (1, 2, 1))]
    assert len(played.codes) == 4  # two were started, one of them was dismissed again
    assert set(played.codes.values()) <= {0, *TERMINATED}


def test_a_wish_for_the_old_plan_takes_the_first_one_back() -> None:
    def act() -> None:
        order(workers=4)
        order(workers=2)

    played = play(PICTURES, (2, 2), {1: Scene(act=act, until=lambda: True)})
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2))]


def test_a_wish_during_a_switch_is_the_next_switch(tmp_path: Path) -> None:
    """Made when the workers have left the old plan for the new one."""
    fault = Fault(
        worker=0, step=3, place="easyscale.runtime.membership:Membership.form", action=lambda: order(workers=1)
    )
    later = Scene(act=lambda: None, until=lambda: order_in_hand() or status().seats[1:] == ())
    played = play(PICTURES, (2, 2), {1: wished(workers=3), 4: later}, faults=[fault])
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.splits == [(2, 2), (2, 1, 1), (4,)]


def test_a_wish_for_the_plan_in_force_changes_nothing() -> None:
    scene = Scene(act=lambda: order(workers=2), until=lambda: True)
    played = play(PICTURES, (2, 2), {1: scene})
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2))]
    assert len(played.run.happened("plan")) == 1
    assert sorted(played.codes) == [0, 1]


@pytest.mark.parametrize(
    ("scale", "says"),
    [({"workers": 4}, "2:3"), ({"workers": 1}, "2:3"), ({"workers": 5}, "only 4 ESTs"), ({"split": (2, 3)}, "5 ESTs"),
     ({"leave": 7}, "not in the plan"), ({"leave": 1}, "2:3")],
)  # fmt: skip
def test_a_wish_that_cannot_be_is_refused_with_what_why_and_now(scale: dict[str, Any], says: str) -> None:
    def act() -> None:
        reply = ask(AskScale(**scale))
        assert isinstance(reply, Refused), reply
        assert says in f"{reply.what} {reply.why}", reply
        assert reply.what, reply
        assert reply.why, reply
        assert reply.now, reply

    played = play(PICTURES, (2, 2), {1: Scene(act=act, until=lambda: True)}, limits=Limits(workers=(2, 3)))
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2))]
