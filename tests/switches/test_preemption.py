"""SIGTERM to a worker: it hands its ESTs over and leaves with 0. SIGTERM to the job: it leaves a checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.requests import Accepted, AskStop
from easyscale.master.limits import Limits
from elasticity import Fault, Run, ask, run_with_master, wait_until, wish
from switches.stage import (
    PATIENCE,
    PICTURES,
    Play,
    Scene,
    judge,
    line,
    order_in_hand,
    play,
    status,
    stock,
    wished,
)
from workloads import with_easyscale

ESTS = 4
REFERENCE = ("pictures", PICTURES, ESTS)
SESSION = "easyscale.runtime.session:EstSession."
BACKWARD = "easyscale.runtime.reduce:Reducer._backward_ended"


def preempt() -> None:
    """As a cluster's scheduler does. The worker goes on until the master knows, so that the step is known."""
    os.kill(os.getpid(), signal.SIGTERM)


def preempt_and_wait() -> None:
    preempt()
    wait_until(order_in_hand, PATIENCE)


def wait_for_order() -> None:
    wait_until(order_in_hand, PATIENCE)


@pytest.mark.parametrize(
    ("began", "victim", "then"), [((1, 2, 1), 1, (2, 2)), ((2, 1, 1), 0, (2, 2)), ((2, 2), 0, (4,)), ((2, 2), 1, (4,))]
)
def test_a_worker_hands_over_and_leaves_with_0(began: tuple[int, ...], victim: int, then: tuple[int, ...]) -> None:
    faults = [
        Fault(worker=w, step=1, place=BACKWARD, action=preempt_and_wait if w == victim else wait_for_order)
        for w in range(len(began))
    ]
    played = play(PICTURES, began, faults=faults)
    judge(played, stock(*REFERENCE), losses=0)
    assert played.plans == [(0, began), (3, then)]
    assert set(played.codes.values()) == {0}
    (left,) = played.run.happened("worker-left")
    assert left.startswith(f"worker {victim} ")


@pytest.mark.parametrize("place", [SESSION + "loop_begins", SESSION + "epoch_ended"])
def test_a_worker_that_is_preempted_outside_a_step(place: str) -> None:
    step = 0 if place.endswith("loop_begins") else 4
    faults = [
        Fault(worker=1, step=step, place=place, action=preempt_and_wait),
        Fault(worker=0, step=step, place=place, action=wait_for_order),
    ]
    played = play(PICTURES, (2, 2), faults=faults)
    judge(played, stock(*REFERENCE), losses=0)
    assert played.splits == [(2, 2), (4,)]
    assert played.codes == {0: 0, 1: 0}


def test_two_workers_are_preempted_at_once() -> None:
    def both() -> None:
        """Both are in the master's hands before the first order can be carried out."""
        preempt()
        line().flush(PATIENCE)
        wait_until(order_in_hand, PATIENCE)

    faults = [Fault(worker=w, step=1, place=BACKWARD, action=both if w else wait_for_order) for w in range(3)]
    played = play(PICTURES, (2, 1, 1), faults=faults)
    judge(played, stock(*REFERENCE), losses=0)
    assert played.splits[-1] == (4,)
    assert played.codes == {0: 0, 1: 0, 2: 0}
    assert len(played.run.happened("worker-left")) == 2


def test_a_worker_that_comes_to_no_step_is_gone_within_its_grace() -> None:
    """Its own script hangs: the grace ends it, and the others adopt its ESTs from the last step on."""

    def hang() -> None:
        preempt()
        wait_until(lambda: False, PATIENCE)

    played = play(
        PICTURES, (2, 2), faults=[Fault(worker=1, step=2, place=BACKWARD, action=hang)], limits=Limits(grace=1.0)
    )
    judge(played, stock(*REFERENCE), losses=1)
    assert played.codes == {0: 0, 1: 0}
    assert played.splits == [(2, 2), (4,)]


def test_a_newcomer_is_preempted_while_it_waits() -> None:
    def newcomer() -> None:
        line().flush(PATIENCE)
        preempt()

    fault = Fault(worker=2, step=-1, place="easyscale.runtime.control:Line.next_order", action=newcomer)
    scene = Scene(act=lambda: wish(workers=3), until=lambda: order_in_hand() or bool(_cancelled()))
    played = play(PICTURES, (2, 2), {1: scene}, faults=[fault])
    judge(played, stock(*REFERENCE))
    assert played.codes[0] == played.codes[1] == 0


def _cancelled() -> list[Any]:
    return [event for event in status(50).events if event.what == "switch-cancelled"]


# ---------------------------------------------------------------------------------------- the job stops


def goes_on(folder: Path, split: tuple[int, ...] = (3, 1)) -> Run:
    """The rest of a stopped job, on another plan."""
    return run_with_master(with_easyscale(PICTURES), split, checkpoint_dir=str(folder), resume="latest")


def stopped(played: Play, folder: Path) -> None:
    """A checkpoint is there, and the rest of the job ends with the bits and losses of a job that never stopped."""
    expected = stock(*REFERENCE)
    assert played.run.exit_code == 128 + signal.SIGTERM, played.run.text
    assert set(played.codes.values()) <= {0, 128 + signal.SIGTERM, -signal.SIGTERM}, played.codes
    rest = goes_on(folder)
    assert (rest.exit_code, rest.fingerprint) == (0, expected["fingerprint"]), rest.text
    losses = {**played.run.state.losses, **rest.state.losses}
    assert {str(step): row for step, row in losses.items()} == expected["losses"]
    assert 0 < min(rest.state.losses) <= max(played.run.state.losses) + 1  # it went on where the other stopped


def test_the_only_worker_is_preempted(tmp_path: Path) -> None:
    """Nobody could take its ESTs: the job stops with a checkpoint."""

    def preempt_and_wait_for_stop() -> None:
        preempt()
        wait_until(is_stopping, PATIENCE)

    fault = Fault(worker=0, step=2, place=BACKWARD, action=preempt_and_wait_for_stop)
    later = Scene(act=lambda: line().flush(PATIENCE), until=lambda: True)  # what the master says comes before it hears
    played = play(PICTURES, (4,), {3: later, 4: later}, faults=[fault], checkpoint_dir=str(tmp_path))
    stopped(played, tmp_path)


@pytest.mark.parametrize("split", [(4,), (2, 1, 1)])
def test_sigterm_to_the_job_leaves_a_checkpoint(split: tuple[int, ...], tmp_path: Path) -> None:
    """The master is the parent of the workers, and this very process."""

    def stop_job() -> None:
        os.kill(os.getppid(), signal.SIGTERM)
        wait_until(lambda: status().state == "stopping", PATIENCE)

    scene = Scene(act=stop_job, until=lambda: status().state == "stopping")
    played = play(PICTURES, split, {2: scene}, checkpoint_dir=str(tmp_path))
    stopped(played, tmp_path)


def stop() -> None:
    assert isinstance(ask(AskStop()), Accepted)


def is_stopping() -> bool:
    return status().state == "stopping"


def grow_and_stop() -> None:
    wish(workers=3)
    stop()


def shrink_and_stop() -> None:
    wish(workers=1)
    wait_until(order_in_hand, PATIENCE)
    stop()


PHASES = {
    "while the newcomer starts": Scene(act=grow_and_stop, until=is_stopping),
    "when the order is in hand": Scene(act=shrink_and_stop, until=is_stopping),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_during_a_switch(phase: str, tmp_path: Path) -> None:
    played = play(PICTURES, (2, 2), {1: PHASES[phase]}, checkpoint_dir=str(tmp_path))
    stopped(played, tmp_path)


@pytest.mark.parametrize(
    "place", ["joining:_give_state", "membership:Membership.form", "membership:Membership.confirm"]
)
@pytest.mark.parametrize("workers", [3, 1])
def test_a_stop_while_the_plan_changes(place: str, workers: int, tmp_path: Path) -> None:
    """It is heard on the new plan, and obeyed there."""
    if workers == 1 and place.endswith("_give_state"):
        place = "joining:switch"
    fault = Fault(worker=0, step=3, place="easyscale.runtime." + place, action=stop)
    later = Scene(act=lambda: None, until=is_stopping)
    played = play(
        PICTURES, (2, 2), {1: wished(workers=workers), 3: later}, faults=[fault], checkpoint_dir=str(tmp_path)
    )
    stopped(played, tmp_path)


def test_a_stop_after_a_loss_in_a_switch_leaves_nobody_waiting(tmp_path: Path) -> None:
    """A staying worker dies in the switch right after the stop: the newcomer has no place any more, and goes."""

    def stop_and_die() -> None:
        stop()
        os.kill(os.getpid(), signal.SIGKILL)

    fault = Fault(worker=1, step=3, place="easyscale.runtime.membership:Membership.form", action=stop_and_die)
    played = play(PICTURES, (2, 2), {1: wished(workers=3)}, faults=[fault], checkpoint_dir=str(tmp_path))
    assert played.codes[1] == -signal.SIGKILL
    assert played.codes[2] in (0, 128 + signal.SIGTERM)
    rest = goes_on(tmp_path)
    assert (rest.exit_code, rest.fingerprint) == (0, stock(*REFERENCE)["fingerprint"]), rest.text
