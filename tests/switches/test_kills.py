"""SIGKILL in each phase of a switch, of each who takes part: the bits stay and no step is lost.

The wish is made in step 1, so the switch comes after step 3. What the plan is afterwards depends on who was killed and
is not looked at, except where it must be the old one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import elasticity
from easyscale.core.requests import Accepted
from easyscale.core.spec import WorkerSpec
from elasticity import Fault, wait_until, wish
from faults.judge import Marks, kill
from switches.stage import (
    PATIENCE,
    PICTURES,
    TERMINATED,
    Play,
    Scene,
    judge,
    line,
    order_in_hand,
    play,
    stock,
    told,
    wished,
)

ESTS, AT = 4, 3
SESSION = "easyscale.runtime.session:EstSession."
MEMBERS = "easyscale.runtime.membership:Membership."
LINE = "easyscale.runtime.control:Line."
JOINING = "easyscale.runtime.joining:"


@dataclass(frozen=True)
class Way:
    """From one plan to another by a switch after `at` steps."""

    began: tuple[int, ...]
    scenes: dict[int, Scene]
    at: int = AT


def replace_worker_0() -> None:
    """While a first switch is on its way: the donor of the state is to leave, and someone to join."""
    for scale in ({"split": (3, 1)}, {"leave": 0}, {"workers": 2}):
        assert isinstance(wish(**scale), Accepted)


GROW = Way((2, 2), {1: wished(workers=3)})  # worker 2 joins
GROW_BY_2 = Way((2, 2), {1: wished(workers=4)})  # workers 2 and 3 join
SHRINK = Way((2, 1, 1), {1: wished(workers=2)})  # worker 2 leaves, worker 1 takes its EST
MOVE = Way((1, 3), {1: wished(split=(3, 1))})  # ESTs 1 and 2 go from worker 1 to worker 0
THREE = Way((1, 2, 1), {1: wished(split=(2, 1, 1))})  # EST 1 goes from worker 1 to worker 0
REPLACE = Way(  # worker 0 leaves, worker 2 joins
    (2, 2),
    {1: Scene(act=replace_worker_0, until=order_in_hand), 3: Scene(act=lambda: None, until=order_in_hand)},
    at=4,  # where the epoch ends
)


def run(way: Way, *faults: Fault, victims: set[int], **more: Any) -> Play:
    played = play(PICTURES, way.began, way.scenes, faults=faults, timeout=20.0, **more)
    judge(played, stock("pictures", PICTURES, ESTS))
    assert {worker for worker, code in played.codes.items() if code == -signal.SIGKILL} == victims, played.run.text
    assert set(played.codes.values()) <= {0, -signal.SIGKILL, *TERMINATED}
    return played


def noticed(played: Play, worker: int) -> bool:
    told = [*played.run.happened("worker-lost"), *played.run.happened("switch-cancelled")]
    return any(f"worker {worker} (pid" in text and "was killed by signal 9" in text for text in told)


# ---------------------------------------------------------------------------------------- all who have joined


@pytest.mark.parametrize("place", [SESSION + "round_begins", SESSION + "announce", SESSION + "loop_begins"])
@pytest.mark.parametrize("began", [(4,), (2, 2)], ids=["4", "2+2"])
def test_newcomers_die_before_anyone_has_heard_from_them(began: tuple[int, ...], place: str) -> None:
    """What they were given comes back from who has given it, as it was then. Each waits until the other has come to its
    death: else the first one's ends the switch, and the other is called off."""
    new = (1, 2) if len(began) == 1 else (2, 3)
    come = Marks()

    def die(worker: int) -> None:
        come.raise_(worker)
        wait_until(lambda: all(come[other] for other in new))
        kill()

    faults = [Fault(worker=worker, step=AT, place=place, action=partial(die, worker)) for worker in new]
    run(Way(began, {1: wished(workers=len(began) + 2)}), *faults, victims=set(new))


# ---------------------------------------------------------------------------------------- who stays, or gives the state

BEFORE_AND_AFTER = [
    SESSION + "exchange_now", LINE + "begin_forming", MEMBERS + "form", MEMBERS + "confirm", JOINING + "take_up",
    JOINING + "_tell_joined",
]  # fmt: skip


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", BEFORE_AND_AFTER, ids=lambda place: place.rpartition(".")[2])
@pytest.mark.parametrize(
    ("way", "victim"), [("MOVE", 0), ("MOVE", 1), pytest.param("SHRINK", 1, marks=pytest.mark.slow)]
)
def test_a_worker_that_stays(way: str, victim: int, place: str, after: bool) -> None:
    played = run(globals()[way], Fault(worker=victim, step=AT, place=place, after=after), victims={victim})
    assert noticed(played, victim)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", [MEMBERS + "transfer", JOINING + "send_tree", MEMBERS + "form"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_while_another_joins(victim: int, place: str, after: bool) -> None:
    if victim == 1 and place != MEMBERS + "form":
        place = {MEMBERS + "transfer": LINE + "begin_forming"}.get(place, MEMBERS + "confirm")  # it is not the donor
    played = run(GROW, Fault(worker=victim, step=AT, place=place, after=after), victims={victim})
    assert noticed(played, victim)


def in_the_middle(worker: int, step: int) -> Fault:
    """Between two messages of the state that is on its way."""
    second = Fault(worker=worker, step=step, place="easyscale.runtime.group:Group.broadcast", nth=3)
    return Fault(
        worker=worker, step=step, place=MEMBERS + "transfer", after=True, action=lambda: elasticity._plant(second)
    )


@pytest.mark.parametrize("way", ["GROW", "REPLACE"])
def test_the_donor_in_the_middle_of_the_state(way: str) -> None:
    chosen = globals()[way]
    assert noticed(run(chosen, in_the_middle(0, chosen.at), victims={0}), 0)


# ---------------------------------------------------------------------------------------- who joins


@pytest.mark.parametrize(
    ("place", "step", "after"),
    [(MEMBERS + "transfer", -1, False), (MEMBERS + "transfer", -1, True), (JOINING + "receive_tree", -1, True),
     (MEMBERS + "form", -1, False), (MEMBERS + "form", -1, True), (MEMBERS + "confirm", AT, False),
     (MEMBERS + "confirm", AT, True), (JOINING + "_tell_joined", AT, True), (SESSION + "loop_begins", AT, False),
     (SESSION + "loop_begins", AT, True), ("easyscale.runtime.data.feed:Feed.next", AT, True)],
)  # fmt: skip
def test_a_newcomer(place: str, step: int, after: bool) -> None:
    played = run(GROW, Fault(worker=2, step=step, place=place, after=after), victims={2})
    assert noticed(played, 2)


def test_a_newcomer_in_the_middle_of_the_state() -> None:
    assert noticed(run(GROW, in_the_middle(2, -1), victims={2}), 2)


@pytest.mark.parametrize("place", [MEMBERS + "transfer", MEMBERS + "form", SESSION + "loop_begins"])
def test_one_of_two_newcomers(place: str) -> None:
    step = AT if place.endswith("loop_begins") else -1
    played = run(GROW_BY_2, Fault(worker=3, step=step, place=place), victims={3})
    assert noticed(played, 3)


def until_cancelled(workers: int) -> Scene:
    return Scene(act=lambda: wish(workers=workers), until=told("switch-cancelled"))


def test_a_newcomer_while_it_imports() -> None:
    def killed(spec: WorkerSpec) -> None:
        if spec.worker == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    played = run(Way((2, 2), {1: until_cancelled(3)}), victims={2}, surround=killed)
    assert noticed(played, 2)
    assert played.plans == [(0, (2, 2))]


def test_a_newcomer_while_it_waits_for_another() -> None:
    """Worker 3 takes its time; worker 2 is ready and dies meanwhile."""

    def slow(spec: WorkerSpec) -> None:
        if spec.worker == 3:
            time.sleep(1.5)

    def soon() -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()

    fault = Fault(worker=2, step=-1, place=LINE + "next_order", action=soon)
    played = run(Way((2, 2), {1: until_cancelled(4)}), fault, victims={2}, surround=slow)
    assert noticed(played, 2)
    assert played.plans == [(0, (2, 2))]


# ---------------------------------------------------------------------------------------- who leaves


@pytest.mark.parametrize("place", [SESSION + "exchange_now", LINE + "begin_forming", LINE + "wait_for_dismissal"])
@pytest.mark.parametrize("way", ["SHRINK", "REPLACE"])
def test_a_worker_that_leaves(way: str, place: str) -> None:
    victim, chosen = 2 if way == "SHRINK" else 0, globals()[way]
    played = run(chosen, Fault(worker=victim, step=chosen.at, place=place), victims={victim})
    left = any(text.startswith(f"worker {victim} ") for text in played.run.happened("worker-left"))
    # Once the contexts are with the others, they need it no more: it may have been dismissed before it was missed.
    assert noticed(played, victim) or (left and not place.endswith("exchange_now"))


def test_a_worker_that_was_dismissed_is_not_missed() -> None:
    played = run(SHRINK, Fault(worker=2, step=AT, place=SESSION + "leave"), victims={2})
    assert not played.run.happened("worker-lost")
    assert played.plans == [(0, (2, 1, 1)), (AT, (2, 2))]


# ---------------------------------------------------------------------------------------- halfway


def until_called_off() -> None:
    newest = line().newest_order.epoch
    wait_until(lambda: line().superseded(newest), PATIENCE)


@dataclass(frozen=True)
class Halfway:
    """One has joined the new plan, one has not yet, and one is killed then."""

    way: Way
    late: int
    victim: int


HALFWAY = {
    "one that gives an EST away is late": Halfway(THREE, late=1, victim=2),
    "one that gets an EST is late": Halfway(THREE, late=0, victim=2),
    "one that keeps its EST is late": Halfway(THREE, late=2, victim=1),
    "the newcomer is late": Halfway(GROW, late=2, victim=1),
    "the newcomer is late, the donor dies": Halfway(GROW, late=2, victim=0),
    "one that stays is late, the newcomer dies": Halfway(GROW, late=1, victim=2),
    "one that stays is late, the donor dies": Halfway(GROW, late=1, victim=0),
    "one leaves, one is late": Halfway(SHRINK, late=1, victim=0),
    "the donor leaves, the newcomer is late": Halfway(REPLACE, late=2, victim=1),
    "the donor leaves, one is late": Halfway(REPLACE, late=1, victim=2),
}


@pytest.mark.parametrize("name", HALFWAY)
def test_a_plan_that_some_have_joined(name: str) -> None:
    case = HALFWAY[name]
    at = case.way.at
    late = Fault(worker=case.late, step=at, place=MEMBERS + "confirm", action=until_called_off)
    kill = Fault(worker=case.victim, step=at, place=JOINING + "_tell_joined", after=True, action=after_its_words)
    played = run(case.way, late, kill, victims={case.victim})
    assert noticed(played, case.victim)


def after_its_words() -> None:
    """The others have had the time to join, and the master knows."""
    line().flush(PATIENCE)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
