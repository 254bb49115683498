"""Errors that are not deaths: user code that raises, memory that is not enough, loader processes that vanish, and the
end of all workers at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from easyscale.core.spec import WorkerSpec
from easyscale.master.limits import Limits
from elasticity import step_here, wait_until
from faults.judge import Marks, Strike, check, differences, kill, replace_at, run, stock, survive

R = "easyscale.runtime."


def raises(problem: Exception, est: int, step: int, marks: Marks, times: int = 1) -> Callable[[WorkerSpec], None]:
    """The script's loss function raises in the turn of one EST."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*args: Any) -> Any:
            import easyscale as es

            if es.rank() == est and step_here() == step and marks[0] < times:
                marks.raise_()
                raise problem
            return original(*args)

        return loss

    def surround(_spec: WorkerSpec) -> None:
        replace_at("torch.nn.functional:cross_entropy", around)

    return surround


def test_a_users_error_ends_the_job_and_is_shown_once() -> None:
    marks = Marks()
    outcome = run("pictures", (2, 2), surround=raises(ValueError("a bad sample"), 2, 3, marks))
    done = outcome.run
    assert (done.exit_code, marks[0]) == (1, 1)
    assert done.text.count("ValueError: a bad sample") == 1
    assert done.text.count("Traceback (most recent call last)") == 1
    assert "[worker 1 · EST 2 · step 3] failed:" in done.text
    assert "workloads.py" in done.text
    assert "cross_entropy(output.flatten" in done.text, "the line of the script"
    assert not done.happened("restarting")
    assert not done.happened("worker-lost")
    assert sorted(done.state.losses) == [0, 1, 2]


def test_a_users_error_that_does_not_come_again_costs_the_steps_since_the_checkpoint(tmp_path: Path) -> None:
    marks = Marks()
    outcome = run(
        "pictures", (2, 2), surround=raises(ValueError("a bad sample"), 2, 3, marks), limits=Limits(max_restarts=1),
        checkpoint_dir=str(tmp_path), checkpoint_every=2,
    )  # fmt: skip
    assert outcome.run.exit_code == 0, outcome.run.text
    assert differences(outcome, stock("pictures", 4)) == []
    assert outcome.run.happened("restarting")
    assert outcome.run.state.lost_steps == 1


def test_a_users_error_that_comes_again_ends_the_job(tmp_path: Path) -> None:
    marks = Marks()
    outcome = run(
        "pictures", (2, 2), surround=raises(ValueError("a bad sample"), 2, 3, marks, times=9),
        limits=Limits(max_restarts=1), checkpoint_dir=str(tmp_path), checkpoint_every=2,
    )  # fmt: skip
    assert (outcome.run.exit_code, marks[0]) == (1, 2)
    assert outcome.run.text.count("[worker 3 · EST 2 · step 3] failed:") == 1


# ---------------------------------------------------------------------------------------- out of memory


def runs_out(worker: int, marks: Marks) -> Strike:
    def action() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    return Strike(worker=worker, place="torch.nn.functional:cross_entropy", step=2, action=action, marks=marks)


@pytest.mark.parametrize("worker", [0, 1])
def test_another_worker_takes_the_share_of_one_that_runs_out_of_memory(worker: int) -> None:
    outcome = survive("pictures", (2, 2), [runs_out(worker, Marks())])
    assert "ran out of memory" in outcome.run.happened("worker-lost")[0]
    assert outcome.run.state.plans[-1][1].split == (4,)


def test_alone_it_is_an_error() -> None:
    strike = runs_out(0, Marks())
    done = run("pictures", (4,), [strike]).run
    assert strike.happened
    assert done.exit_code == 1
    assert "CUDA out of memory" in str(done.error)
    assert "worker 0 · EST 0" in done.text


# ---------------------------------------------------------------------------------------- loader processes


def kill_a_child() -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert children
    os.kill(int(children[0]), signal.SIGKILL)


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("name", ["loader processes", "lasting loader processes", "a stream from processes"])
def test_a_loader_process_is_killed(name: str, worker: int) -> None:
    strike = Strike(worker=worker, place=R + "data.feed:Feed.next", step=1, action=kill_a_child)
    outcome = survive(name, (2, 2), [strike], lost=0)
    assert outcome.run.happened("loader-restarted")


# ---------------------------------------------------------------------------------------- everybody


def all_die(workers: Sequence[int], step: int, checkpoint: Path | None = None) -> list[Strike]:
    """When the checkpoint is there, the master has heard of all steps, and all of them have come so far: those who had
    not would go on in the place of the first dead."""
    come = Marks()

    def dies(worker: int) -> Callable[[], None]:
        def die() -> None:
            from easyscale.runtime import api

            if checkpoint is not None:
                wait_until(checkpoint.exists)
            line = api.engine().line
            assert line is not None
            line.flush(10.0)
            come.raise_(worker)
            wait_until(lambda: all(come[other] for other in workers))
            kill()

        return die

    return [Strike(worker=w, place=R + "turns:Turns.before_forward", step=step, action=dies(w)) for w in workers]


@pytest.mark.parametrize("split", [(4,), (2, 2), (1, 1, 1, 1)], ids=["4", "2+2", "1+1+1+1"])
def test_all_die_and_the_job_goes_on_from_its_checkpoint(tmp_path: Path, split: tuple[int, ...]) -> None:
    strikes = all_die(range(len(split)), 5, tmp_path / "step-0000000004")
    outcome = run(
        "pictures", split, strikes, limits=Limits(max_restarts=1), checkpoint_dir=str(tmp_path), checkpoint_every=2
    )
    done = outcome.run
    assert done.exit_code == 0, done.text
    assert all(strike.happened for strike in strikes)
    assert differences(outcome, stock("pictures", sum(split))) == []
    assert done.state.lost_steps == 1
    assert done.happened("restarted") == ["Started again at step 4; 1 step lost."]


def test_all_die_before_the_first_checkpoint(tmp_path: Path) -> None:
    strikes = all_die(range(2), 1)
    outcome = run("pictures", (2, 2), strikes, limits=Limits(max_restarts=1), checkpoint_dir=str(tmp_path))
    assert outcome.run.exit_code == 0, outcome.run.text
    assert differences(outcome, stock("pictures", 4)) == []
    assert outcome.run.state.lost_steps == 1


def test_all_die_and_nothing_is_said_about_restarts() -> None:
    strikes = all_die(range(2), 5)
    done = run("pictures", (2, 2), strikes).run
    assert all(strike.happened for strike in strikes)
    assert done.exit_code == 128 + signal.SIGKILL
    assert "--resume latest" in str(done.error)
    assert len(done.happened("worker-lost")) == 2


def test_a_loss_and_then_all_the_others(tmp_path: Path) -> None:
    """One dies alone, its ESTs go on; then the rest, with the adopted ones in the checkpoint."""
    first, last = all_die((0, 2), 6, tmp_path / "step-0000000004")
    strikes = [Strike(worker=1, place="torch.optim:SGD.step", step=2), first, last]
    outcome = run(
        "pictures", (1, 1, 2), strikes, limits=Limits(max_restarts=1, workers=(1, 3)), checkpoint_dir=str(tmp_path),
        checkpoint_every=4,
    )  # fmt: skip
    done = outcome.run
    assert done.exit_code == 0, done.text
    assert all(strike.happened for strike in strikes)
    assert differences(outcome, stock("pictures", 4)) == []
    assert done.state.lost_steps == 2


def test_check_itself_sees_a_difference() -> None:
    outcome = run("pictures", (4,))
    check(outcome, stock("pictures", 4))
    other = {**stock("pictures", 4), "fingerprint": "0" * 64}
    assert differences(outcome, other) == ["sha256"]
