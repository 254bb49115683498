"""A worker that hangs is found within the heartbeat limit and fenced: when it wakes up, it ends by itself.

The master kills a lost worker where it can. Here it cannot, as if the worker were on a machine that is cut off.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from easyscale.backends.apart import process_start
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.limits import Limits
from easyscale.runtime.checkpoint import CheckpointStore
from easyscale.runtime.control import FENCED
from elasticity import ForkedLauncher, run_with_master, wait_until
from faults.cases import case_of
from faults.judge import Outcome, Strike, check, replace_at, run, stock, stop, survive
from workloads import with_easyscale

R = "easyscale.runtime."
LIMITS = Limits(heartbeat=1.0)


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize(
    "place", [R + "data.feed:Feed.next", R + "reduce:Reducer._backward_ended", "torch.optim:SGD.step"]
)
def test_a_worker_that_hangs_is_replaced_by_the_others(place: str, worker: int) -> None:
    outcome = survive("pictures", (2, 2), [Strike(worker=worker, place=place, step=2, action=stop)], limits=LIMITS)
    (recovery,) = outcome.run.state.recoveries
    assert "did not answer for 1 s" in outcome.run.happened("worker-lost")[0]
    assert recovery["seconds"] < 10


class OutOfReach(ForkedLauncher):
    """Its workers cannot be killed by the master."""

    def start_apart(self, spec: WorkerSpec, target: Target, out: Path, err: Path) -> Any:
        worker = super().start_apart(spec, target, out, err)
        worker.kill = lambda: None  # type: ignore[method-assign]
        return worker


def wakes_later(
    folder: Path,
    falls_asleep: Strike,
    surround: Callable[[WorkerSpec], None] = lambda spec: None,
    **spec: Any,
) -> tuple[Outcome, int | None]:
    """The struck worker of 2+2 is stopped, and woken by the other one when that begins step 5. Returns its exit code.

    The one that wakes it goes on when it is gone.
    """
    pid = folder / "pid"

    def sleep() -> None:
        pid.write_text(str(os.getpid()))
        stop()

    def wake() -> None:
        number = int(pid.read_text())
        os.kill(number, signal.SIGCONT)
        wait_until(lambda: process_start(number) is None, 20)

    asleep = Strike(**{**vars(falls_asleep), "action": sleep})
    waker = Strike(worker=1 - asleep.worker, place=R + "data.feed:Feed.next", step=5, action=wake)
    train = with_easyscale(case_of("pictures", 4))

    def prepare(worker: WorkerSpec) -> None:
        surround(worker)
        for strike in (asleep, waker):
            if strike.worker == worker.worker:
                strike.plant()

    launcher = OutOfReach(train, surround=prepare)
    done = run_with_master(train, (2, 2), launcher=launcher, limits=LIMITS, timeout=30.0, **spec)
    outcome = Outcome(run=done, workers={})
    check(outcome, stock("pictures", 4), [asleep, waker], lost=1)
    victim = launcher.workers[asleep.worker]
    victim.gone()
    return outcome, victim.code


@pytest.mark.parametrize("place", [R + "data.feed:Feed.next", "torch.optim:SGD.step", R + "group:Group.send"])
def test_it_never_speaks_again(tmp_path: Path, place: str) -> None:
    """It would go on in the middle of its step; before it gets anywhere it hears that it is fenced."""
    strike = Strike(worker=1, place=place, step=2)
    outcome, code = wakes_later(tmp_path, strike)
    assert code == FENCED
    assert outcome.run.state.plans[-1][1].split == (4,)


WRITING = {
    "before it writes": R + "checkpoint.store:CheckpointStore._write",
    "before the files": R + "checkpoint.store:write_folder",
    "before the rename": R + "checkpoint.store:CheckpointStore._put_in_place",
}


def notes_renames(log: Path) -> None:
    """Who published which checkpoint."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def put(store: Any, writing: Path, path: Path) -> None:
            original(store, writing, path)
            with log.open("a") as file:
                file.write(f"{os.getpid()} {path.name}\n")

        return put

    replace_at(R + "checkpoint.store:CheckpointStore._put_in_place", around)


def fence_comes_late(mark: Path) -> None:
    """The writer's thread has a second to itself before the worker hears that it is fenced."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def take(line: Any, frame: bytes) -> None:
            if b'"fence"' in frame:
                mark.touch()
                time.sleep(1.0)
            original(line, frame)

        return take

    replace_at(R + "control:Line._take", around)


@pytest.mark.parametrize("moment", WRITING)
def test_it_never_writes_a_checkpoint_again(tmp_path: Path, moment: str) -> None:
    """It held EST 0, and was stopped while it wrote; another worker has taken over the folder since."""
    checkpoints, log, fenced = tmp_path / "checkpoints", tmp_path / "renames", tmp_path / "fenced"

    def surround(_spec: WorkerSpec) -> None:
        notes_renames(log)
        fence_comes_late(fenced)

    strike = Strike(worker=0, place=WRITING[moment])
    _, code = wakes_later(tmp_path, strike, surround, checkpoint_dir=str(checkpoints), checkpoint_every=2)
    assert code == FENCED
    assert fenced.exists()
    asleep = (tmp_path / "pid").read_text()
    assert not [line for line in log.read_text().splitlines() if line.startswith(f"{asleep} ")]
    assert not [path for path in checkpoints.iterdir() if path.name.startswith(".writing")]
    newest = CheckpointStore(checkpoints, report=lambda *_: None).latest()
    assert newest is not None
    assert newest.step == 8


def test_a_worker_that_hangs_before_the_job_begins() -> None:
    strike = Strike(
        worker=1, place=R + "membership:share_initial_state", step=-1,
        action=stop,
    )  # fmt: skip
    outcome = run("pictures", (2, 2), [strike], limits=LIMITS)
    check(outcome, stock("pictures", 4), [strike], lost=1)
