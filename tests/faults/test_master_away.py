"""The master is killed while its workers train: they go on without it, and another one finds them again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from easyscale.backends import apart
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.master import attach, run_elastic
from easyscale.master.progress import Screen
from easyscale.master.registry import JobFolder
from easyscale.master.supervisor import Job
from elasticity import ForkedLauncher, Run, step_here, wait_until
from faults.cases import case_of
from faults.judge import Marks, Outcome, Split, check, own_runtime_dir, replace_at, stock
from workloads import with_easyscale

STEP, GO = 0, 1  # marks: the furthest step, and that workers may go beyond step 6


class Finds(ForkedLauncher):
    """Takes over workers that another process started."""

    def attach(self, pid: int, started: str) -> apart.ApartWorker | None:
        return apart.attach(pid, started)


def close_sockets() -> None:
    """A fork has those of the master, also the one that it listens on; a worker that was started has not."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.close(int(name))


class Away:
    """A job whose master was killed at step 2. Its workers wait before step 6."""

    def __init__(self, split: Split, home: Path) -> None:
        self.split, self.marks, self.home = split, Marks(), home
        self.report = home / "report.json"
        self.folder = JobFolder.create("job", ("test",), sum(split))
        self._launcher = Finds(with_easyscale(case_of("pictures", sum(split))), surround=self._surround)
        self._master = os.fork()
        if self._master == 0:
            try:
                self._be_master()
            finally:
                os._exit(1)
        wait_until(lambda: self.marks[STEP] >= 2)
        os.kill(self._master, signal.SIGKILL)
        os.waitpid(self._master, 0)

    def _surround(self, _spec: WorkerSpec) -> None:
        from easyscale.runtime import api

        def around(original: Any) -> Any:
            def forward(*args: Any) -> Any:
                if step_here() == 1:  # what was logged at step 0 is the first master's: it lives until all got here
                    api.engine().line.flush(10.0)
                while self.marks[STEP] < step_here():
                    self.marks.raise_(STEP)
                if step_here() == 2:
                    wait_until(lambda: os.getppid() != self._parent)
                if step_here() >= 6:
                    wait_until(lambda: self.marks[GO] > 0, 60)
                return original(*args)

            return forward

        self._parent = os.getppid()
        close_sockets()
        replace_at("easyscale.runtime.turns:Turns.before_forward", around)

    def _be_master(self) -> None:
        template = WorkerSpec(ests=sum(self.split), device="cpu", timeout=30.0)
        schedule = Schedule(((0, Plan(self.split)),))
        run_elastic(
            Job(target=Target("train"), schedule=schedule, template=template), self._launcher, self._screen(),
            Outputs(report=self.report), self.folder, Limits(orphan=60.0),
        )  # fmt: skip

    def _screen(self) -> Screen:
        self.text = io.StringIO()
        return Screen(self.text, self.text, color=False)

    def pids(self) -> dict[int, int]:
        return {worker.worker: worker.pid for worker in self.folder.workers()}

    def take_over(self) -> Outcome:
        self.marks.raise_(GO)
        done = attach(self.folder, self._launcher, self._screen())
        run = Run(state=done.state, exit_code=done.exit_code, text=self.text.getvalue(), error=done.error)
        return Outcome(run=run, workers={})


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with own_runtime_dir():
        yield tmp_path


@pytest.mark.parametrize("split", [(2, 2), (4,), (1, 2, 1)], ids=["2+2", "4", "1+2+1"])
def test_workers_go_on_and_the_next_master_finds_them(home: Path, split: Split) -> None:
    job = Away(split, home)
    wait_until(lambda: job.marks[STEP] >= 6)  # without a master
    outcome = job.take_over()
    expected = stock("pictures", sum(split))
    check(outcome, expected, lost=0)
    assert outcome.run.happened("master-restarted")
    assert outcome.run.state.plans == [(0, Plan(split))]
    assert json.loads(job.report.read_text())["fingerprint"] == expected["fingerprint"]


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_worker_dies_while_there_is_no_master(home: Path, worker: int) -> None:
    """The others wait for an order, and have it when the next master is there.

    What the dead one logged while nobody heard it is lost with it, and only that.
    """
    job = Away((1, 2, 1), home)
    wait_until(lambda: job.marks[STEP] >= 6)
    os.kill(job.pids()[worker], signal.SIGKILL)
    done, expected = job.take_over().run, stock("pictures", 4)
    assert (done.exit_code, done.fingerprint, done.state.lost_steps) == (0, expected["fingerprint"], 0), done.text
    assert len(done.happened("worker-lost")) == 1
    assert len(done.state.plans[-1][1].split) == 2
    its = Plan((1, 2, 1)).range_of(worker)
    for step, row in expected["losses"].items():
        for est, loss in enumerate(row):
            silent = est in its and 1 <= int(step) <= 6
            assert done.state.losses[int(step)][est] in ((loss, None) if silent else (loss,))


def test_the_port_of_the_former_master_is_taken(home: Path) -> None:
    job = Away((2, 2), home)
    former = job.folder.master()
    assert former is not None
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", former.port))
        other.listen()
        outcome = job.take_over()
        now = job.folder.master()
    check(outcome, stock("pictures", 4), lost=0)
    assert now is not None
    assert now.port != former.port


def test_the_job_ends_while_there_is_no_master(home: Path) -> None:
    """The last words of its workers wait a while for someone to hear them."""
    job = Away((2, 2), home)
    job.marks.raise_(GO)
    wait_until(lambda: job.marks[STEP] >= 7)
    check(job.take_over(), stock("pictures", 4), lost=0)
