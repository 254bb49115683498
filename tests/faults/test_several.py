"""More than one death: at once, one after another, during the recovery of another, and of those who adopt."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import pytest

from elasticity import step_here
from faults.judge import Marks, Split, Strike, kill, replace_at, run, survive

R = "easyscale.runtime."
FORWARD, OPTIMIZER = R + "turns:Turns.before_forward", "torch.optim:SGD.step"
NOTE, CLOSED = R + "exchange:Exchange.note", R + "session:EstSession.close_round"


def dies(worker: int, place: str, step: int | None = 2, **more: object) -> Strike:
    return Strike(worker=worker, place=place, step=step, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [FORWARD, OPTIMIZER, CLOSED, NOTE])
def test_two_at_once(place: str) -> None:
    survive("pictures", (1, 1, 1, 1), [dies(1, place), dies(2, place)], lost=2)


@pytest.mark.parametrize("last", range(4))
def test_all_but_one(last: int) -> None:
    """Each at another moment of the same step."""
    places = iter((FORWARD, OPTIMIZER, NOTE))
    survive("pictures", (1, 1, 1, 1), [dies(w, next(places)) for w in range(4) if w != last], lost=3)


def test_all_but_one_of_three_after_the_sums() -> None:
    survive("pictures", (1, 2, 1), [dies(0, OPTIMIZER), dies(2, OPTIMIZER)], lost=2)


def test_one_after_another() -> None:
    strikes = [dies(3, OPTIMIZER, 1), dies(0, R + "reduce:Reducer._backward_ended", 3), dies(1, FORWARD, 5)]
    outcome = survive("pictures", (1, 1, 1, 1), strikes, lost=3)
    assert outcome.run.state.plans[-1][1].split == (4,)


def test_one_a_step() -> None:
    survive("pictures", (1, 1, 1, 1), [dies(w, OPTIMIZER, w + 1) for w in range(3)], lost=3)


# ---------------------------------------------------------------------------------------- during a recovery

IN_RECOVERY = {
    "the loss is noticed": dies(2, R + "session:recover", None),
    "the group is formed": dies(2, R + "recovery:_reconcile", None),
    "the group stands": dies(2, R + "membership:Membership.form", None, nth=2, after=True),
    "the facts are gathered": dies(2, R + "recovery:_find_out", None),
    "the facts are known": dies(2, R + "recovery:_find_out", None, after=True),
    "before the confirmation": dies(2, R + "membership:Membership.confirm", None, nth=2),
    "after the confirmation": dies(2, R + "membership:Membership.confirm", None, nth=2, after=True),
    "what was found is applied": dies(2, R + "recovery:_apply", None, after=True),
    "it joined": dies(2, R + "recovery:_reconcile", None, after=True),
}


@pytest.mark.parametrize("first", [FORWARD, OPTIMIZER], ids=["forward", "optimizer"])
@pytest.mark.parametrize("moment", IN_RECOVERY)
def test_a_second_death_during_the_recovery_of_the_first(moment: str, first: str) -> None:
    """Of a neighbour, which is to adopt the first one's EST."""
    second = IN_RECOVERY[moment]
    survive("pictures", (1, 1, 1, 1), [dies(1, first), Strike(**{**vars(second), "marks": Marks()})], lost=2)


@pytest.mark.parametrize("first", [FORWARD, OPTIMIZER], ids=["forward", "optimizer"])
def test_the_one_that_tells_the_lost_contexts_dies_while_it_does(first: str) -> None:
    """The lowest rank that has the newest ones."""
    teller = dies(0, R + "group:Group.broadcast_bytes", None, when=lambda *args: step_is(2, 3))
    survive("pictures", (1, 1, 1, 1), [dies(1, first), teller], lost=2)


def step_is(*steps: int) -> bool:
    return step_here() in steps


@pytest.mark.parametrize(
    "moment",
    [R + "joining:take_up", R + "joining:ghost", R + "exchange:Exchange.go_on", R + "turns:Turns.end"],
    ids=["takes up", "runs a step again", "has run it again", "has run it"],
)
def test_the_adopter_dies(moment: str) -> None:
    """Worker 0 adopts EST 1 of worker 1 in the plan 1+1+2, and dies when it has just begun with it."""
    nth = 3 if moment.endswith("Turns.end") else 1
    adopter = dies(0, moment, None, nth=nth, when=lambda *args, **kwargs: step_is(2, 3))
    survive("pictures", (1, 1, 2), [dies(1, OPTIMIZER), adopter], lost=2)


# ---------------------------------------------------------------------------------------- a worker that is behind


RECEIVE = R + "group:Group.receive"


@cache
def visits(split: Split, worker: int, place: str, step: int) -> int:
    """How often a worker comes to a place in a step."""
    marks = Marks()

    def count(*_args: object) -> bool:
        if step_is(step):
            marks.raise_(1)
        return False

    run("pictures", split, [Strike(worker=worker, place=place, marks=marks, when=count)])
    return marks[1]


def leaves_one_behind(split: Split, victim: int, late: int) -> list[Strike]:
    """The victim has all sums and dies; `late` has not yet asked it for the last part of the last one.

    The others have all sums, too, and complete the step.
    """

    def die_later() -> None:
        time.sleep(0.4)
        kill()

    return [
        dies(victim, RECEIVE, nth=visits(split, victim, RECEIVE, 2), after=True, action=die_later),
        dies(late, RECEIVE, nth=visits(split, late, RECEIVE, 2), action=lambda: time.sleep(1.5)),
    ]


@pytest.mark.parametrize(("victim", "late"), [(0, 1), (1, 0), (0, 2)])
def test_a_worker_that_is_behind_takes_the_step_from_one_that_is_ahead(victim: int, late: int) -> None:
    seen = Marks()

    def watch(_spec: object) -> None:
        def around(original: Callable[..., object]) -> Callable[..., object]:
            def overtaken(*args: object) -> object:
                seen.raise_()
                return original(*args)

            return overtaken

        replace_at(R + "exchange:Exchange.overtaken", around)

    strikes = leaves_one_behind((1, 2, 1), victim, late)
    survive("pictures", (1, 2, 1), strikes, surround=watch)
    assert seen[0] == 1, "nobody was behind"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_one_ahead_dies_around_the_gift_of_its_state(after: bool) -> None:
    """Before it, nobody alive has completed the step: the one behind completes it alone."""
    strikes = leaves_one_behind((1, 2, 1), 0, 1)
    donor = dies(2, R + "recovery:_share_state", None, after=after)
    survive("pictures", (1, 2, 1), [*strikes, donor], lost=2)
