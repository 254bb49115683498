"""Clocks that jump, and ports that are taken."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from easyscale.core.spec import WorkerSpec
from easyscale.master.limits import Limits
from elasticity import step_here
from faults.judge import Strike, stop, survive

DAY = 24 * 3600.0


@contextlib.contextmanager
def jumping(days: float, after: float) -> Iterator[None]:
    """The wall clock of this process jumps, so many seconds from now."""
    real, began = time.time, time.monotonic()
    time.time = lambda: real() + (days * DAY if time.monotonic() - began > after else 0.0)
    try:
        yield
    finally:
        time.time = real


def jumps_in_workers(days: float, step: int) -> object:
    def surround(spec: WorkerSpec) -> None:
        import easyscale.runtime.api  # noqa: F401  its import asks for the time

        real = time.time
        sign = 1 if spec.worker % 2 else -1  # in both directions
        time.time = lambda: real() + (sign * days * DAY if step_here() >= step else 0.0)

    return surround


@pytest.mark.parametrize("days", [1, -1])
def test_the_clocks_of_all_jump_by_a_day(days: float) -> None:
    """Nobody is taken for dead, a worker that dies is found, and the job ends."""
    strike = Strike(worker=1, place="torch.optim:SGD.step", step=5)
    with jumping(days, after=0.3):
        outcome = survive(
            "pictures", (2, 2), [strike], surround=jumps_in_workers(days, 3),
            limits=Limits(heartbeat=3.0, orphan=20.0), checkpoint_seconds=3600.0,
        )  # fmt: skip
    assert 0 <= outcome.run.state.recoveries[0]["seconds"] < 30


@pytest.mark.parametrize("days", [1, -1])
def test_a_hanging_worker_is_found_by_a_master_whose_clock_jumps(days: float) -> None:
    strike = Strike(worker=1, place="torch.optim:SGD.step", step=3, action=stop)
    with jumping(days, after=0.5):
        outcome = survive("pictures", (2, 2), [strike], limits=Limits(heartbeat=1.0))
    assert 0 <= outcome.run.state.recoveries[0]["seconds"] < 10


def test_the_port_of_a_lost_worker_is_taken_by_another_process() -> None:
    """Survivors meet on new ports; what listens elsewhere is nothing to them."""
    taken: list[socket.socket] = []

    def occupy() -> None:
        for _ in range(50):
            one = socket.socket()
            one.bind(("127.0.0.1", 0))
            one.listen()
            taken.append(one)

    occupying = Strike(worker=0, place="easyscale.runtime.recovery:_reconcile", action=occupy)
    survive("pictures", (1, 2, 1), [Strike(worker=1, place="torch.optim:SGD.step", step=3), occupying])
