"""A job goes from devices to devices while it trains: who sits where is as wished, and the bits are stock DDP's."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from easyscale.backends.apart import ApartWorker
from easyscale.core.cluster import Slot
from easyscale.core.requests import Accepted, Refused
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.limits import Limits
from elasticity import ForkedLauncher, spec_here, wait_until, wish
from switches.stage import PICTURES, Scene, judge, order_in_hand, play, status, stock

ESTS = 4


def named(letters: str) -> tuple[Slot, ...]:
    return tuple(Slot(id=letter, kind="trial") for letter in letters)


def sits(where: Sequence[str]) -> None:
    """The master says so, and so does the worker that asks: it was started on the device that its seat has."""
    with contextlib.suppress(AssertionError):  # the master hears of a plan a moment after its workers
        wait_until(lambda: [seat.slot for seat in status().seats] == list(where), 10)
    seats, me = status().seats, spec_here()
    assert [seat.slot for seat in seats] == list(where), seats
    assert me.slot is not None
    assert [seat.slot for seat in seats if seat.worker == me.worker] == [me.slot.id], f"{me.slot} in {seats}"


def go(before: str, after: str) -> Scene:
    def act() -> None:
        sits(before)
        reply = wish(slots=named(after))
        assert isinstance(reply, Accepted), reply

    return Scene(act=act, until=order_in_hand)


def look(where: str) -> Scene:
    return Scene(act=lambda: sits(where), until=lambda: True)


def test_a_job_moves_shrinks_and_grows_over_devices_and_keeps_its_bits() -> None:
    scenes = {0: go("ab", "bc"), 2: go("bc", "c"), 4: go("c", "abcd"), 6: Scene(act=in_the_end, until=lambda: True)}
    played = play(PICTURES, (2, 2), scenes, slots=named("ab"))
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert played.plans == [(0, (2, 2)), (2, (2, 2)), (4, (4,)), (6, (1, 1, 1, 1))]
    assert set(played.codes.values()) == {0}
    assert len(played.codes) == 6, "a, b, c, and then a, b and d anew"


def in_the_end() -> None:
    wait_until(lambda: len(status().seats) == 4)
    now = status()
    assert now.seats[0].slot == "c", "who sat there stayed"
    assert {seat.slot for seat in now.seats} == set(now.held) == set("abcd")
    assert now.total == 8, "two epochs of four batches"
    assert len(now.pauses) >= 2


class Careless(ForkedLauncher):
    """Starts workers on another device than it is told."""

    def start_apart(self, spec: WorkerSpec, target: Target, out: Path, err: Path) -> ApartWorker:
        assert spec.slot is not None
        return super().start_apart(replace(spec, slot=replace(spec.slot, id=f"not-{spec.slot.id}")), target, out, err)


def test_a_launcher_that_takes_another_device_is_found_out() -> None:
    """The control: the same checks, which must not pass here."""
    played = play(PICTURES, (2, 2), {0: look("ab")}, slots=named("ab"), kind=Careless)
    assert played.run.exit_code == 1
    assert "not-a" in (played.run.error or "")


def test_a_killed_worker_leaves_its_device_empty_and_the_next_wish_fills_it() -> None:
    def die() -> None:
        sits("ab")
        other = next(seat for seat in status().seats if seat.slot == "b")
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)

    def back() -> None:
        sits("a")
        wait_until(lambda: set(status().held) == {"a"})
        assert isinstance(wish(workers=3), Refused), "it has two devices"
        assert isinstance(wish(slots=named("ab")), Accepted)

    def alone() -> bool:
        return len(status().seats) == 1

    scenes = {1: Scene(act=die, until=lambda: True), 3: Scene(act=lambda: wait_until(alone), until=lambda: True),
              4: Scene(act=back, until=order_in_hand), 6: look("ab")}  # fmt: skip
    played = play(PICTURES, (2, 2), scenes, slots=named("ab"))
    judge(played, stock("pictures", PICTURES, ESTS), losses=1)
    assert played.splits[0] == (2, 2)
    assert played.splits[-2:] == [(4,), (2, 2)]


def test_a_killed_worker_is_replaced_on_its_device_where_the_job_allows_it() -> None:
    def die() -> None:
        other = next(seat for seat in status().seats if seat.slot == "b")
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)

    scenes = {1: Scene(act=die, until=lambda: True), 3: Scene(act=lambda: None, until=order_in_hand), 5: look("ab")}
    played = play(PICTURES, (2, 2), scenes, slots=named("ab"), limits=Limits(max_restarts=1))
    judge(played, stock("pictures", PICTURES, ESTS), losses=1)
    assert played.splits == [(2, 2), (4,), (2, 2)]


@pytest.mark.parametrize("after", ["cd", "ba"])
def test_the_same_number_on_other_devices_is_a_wish_and_on_the_same_is_none(after: str) -> None:
    def act() -> None:
        assert isinstance(wish(slots=named(after)), Accepted)

    until = order_in_hand if after == "cd" else (lambda: True)
    played = play(PICTURES, (2, 2), {1: Scene(act=act, until=until), 5: look("cd" if after == "cd" else "ab")},
                  slots=named("ab"))  # fmt: skip
    judge(played, stock("pictures", PICTURES, ESTS), losses=0)
    assert len(played.plans) == (2 if after == "cd" else 1)
