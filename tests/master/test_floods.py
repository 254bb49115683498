"""Scripts that print or fork without end, bounded here: the job's limits hold, and nothing of it is left."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.master.simulation import Simulation

from easyscale.backends.local import LocalLauncher
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.census import end_all, processes_of
from easyscale.master.inputs import TooMany
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.master import run_elastic
from easyscale.master.progress import Screen
from easyscale.master.registry import JobFolder
from easyscale.master.supervisor import Job, Outcome
from easyscale.master.trimming import end_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


def run(code: str, limits: Limits, screen: io.StringIO) -> tuple[Outcome, JobFolder]:
    folder = JobFolder.create("flood", ("x",), 1)
    job = Job(target=Target("x"), schedule=Schedule(((0, Plan((1,))),)), template=WorkerSpec(ests=1))
    launcher = LocalLauncher(os.environ, (sys.executable, "-c", textwrap.dedent(code)))
    return run_elastic(job, launcher, Screen(screen, screen), Outputs(), folder, limits), folder


def test_a_script_that_floods_its_log_keeps_the_newest_part(home: Path) -> None:
    screen = io.StringIO()
    code = """
        import sys
        for number in range(400_000):
            print(f"line {number:08} " + "x" * 86)
        print("the last line")
    """
    outcome, folder = run(code, Limits(log_bytes=1_000_000), screen)
    log = folder.log(0, "out")
    assert outcome.exit_code == 0
    assert log.stat().st_size <= 1_000_000
    assert end_of(log) > 2_000_000
    assert log.read_text().endswith("the last line\n")
    assert len(screen.getvalue()) < 4_000_000, "what is shown is bounded as well: the screen may be a file"
    assert "newest part is in its log only" in screen.getvalue()


FORKS = """
    import os, pathlib, sys, time
    for number in range(60):
        if os.fork() == 0:
            if number % 3 == 0:
                os.setsid()  # out of the session and the group
            pathlib.Path({folder!r}, str(os.getpid())).touch()
            time.sleep(120)
            os._exit(0)
        time.sleep(0.02)
    time.sleep(120)
"""


def test_a_script_that_forks_without_end_is_ended_with_all_its_processes_and_not_tried_again(home: Path) -> None:
    born = home / "born"
    born.mkdir()
    screen = io.StringIO()
    outcome, folder = run(FORKS.format(folder=str(born)), Limits(processes=20, max_restarts=3), screen)
    assert outcome.exit_code == 1
    assert "processes, and may run 20." in (outcome.error or "")
    assert "why: " in (outcome.error or "")
    assert "--process-limit" in (outcome.error or "")
    pids = {int(path.name) for path in born.iterdir()}
    assert pids
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() and b") Z" not in _stat(pid) for pid in pids):
        assert time.monotonic() < deadline, "some of them live"
        time.sleep(0.05)
    assert folder.live_workers() == []


def _stat(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return b") Z"


def test_a_script_with_fewer_processes_than_its_limit_is_left_alone(home: Path) -> None:
    code = """
        import subprocess, sys, time
        several = [subprocess.Popen(["sleep", "2.5"]) for _ in range(5)]
        for one in several: one.wait()
    """
    outcome, _ = run(code, Limits(processes=20), io.StringIO())
    assert outcome.exit_code == 0


def test_the_brain_ends_all_at_once_and_for_good() -> None:
    job = Simulation(4, 2, limits=Limits(max_restarts=5, processes=30)).training()
    job.give(TooMany(processes=31))
    job.run(1.0)
    assert job.end is not None
    assert (job.end.how, job.end.exit_code) == ("failed", 1)
    assert "31 processes" in (job.end.error or "")
    assert len(job.starts) == 2


def test_processes_are_found_in_sessions_groups_and_below() -> None:
    script = "import subprocess, sys, time; subprocess.Popen(['sleep', '60'], start_new_session=True); print(1, flush=True); time.sleep(60)"  # noqa: E501
    root = subprocess.Popen((sys.executable, "-c", script), stdout=subprocess.PIPE, start_new_session=True)
    other = subprocess.Popen(("sleep", "60"), start_new_session=True)
    try:
        assert root.stdout is not None
        root.stdout.readline()
        found = processes_of({root.pid})
        assert root.pid in found
        assert len(found) == 2
        assert other.pid not in found
        assert os.getpid() not in processes_of({os.getpid()})
        end_all({root.pid})
        assert root.wait(20) == -signal.SIGKILL
        assert other.poll() is None
        assert processes_of({root.pid}) == set()
    finally:
        for process in (root, other):
            process.kill()
            process.wait()
        root.stdout.close()  # type: ignore[union-attr]
