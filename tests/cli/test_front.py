"""Masters in processes of their own, played by small scripts: started again, told to stop, in the background."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from easyscale.cli import front
from easyscale.cli.front import Front, arguments, detach, role_of, run_as
from easyscale.core.errors import EasyScaleError
from easyscale.master.registry import JobFolder

LONG = 120.0  # seconds that processes may take to start and to end on a machine that is busy
START = """
import os, signal, subprocess, sys, time
from pathlib import Path
from easyscale.master.files import process_start
from easyscale.master.registry import JobFolder, JobResult
folder = JobFolder(Path(sys.argv[1]))
def listen():
    folder.write_master(os.getpid(), process_start(os.getpid()), "127.0.0.1", 1)
def start_worker():
    worker = subprocess.Popen((sys.executable, "-c", "import time; time.sleep(60)"), start_new_session=True)
    folder.write_worker(0, worker.pid)
def end(code):
    for worker in folder.live_workers():
        os.kill(worker.pid, signal.SIGKILL)
    folder.write_result(JobResult(exit_code=code))
    sys.exit(code)
"""


@pytest.fixture
def folder() -> JobFolder:
    return JobFolder.create("train", ("easyscale",), 4)


def master(folder: JobFolder, code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", START + code, str(folder.path))


def eventually(true: Callable[[], object]) -> None:
    ends = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_the_exit_code_is_the_job_s(folder: JobFolder) -> None:
    assert Front(folder, master(folder, "listen(); end(3)"), ("false",)).run() == 3


def test_a_job_that_is_refused_is_not_tried_again(folder: JobFolder) -> None:
    assert Front(folder, master(folder, "sys.exit(2)"), ("false",)).run() == 2


def test_a_master_that_dies_with_all_its_workers_is_the_end(folder: JobFolder) -> None:
    assert Front(folder, master(folder, "os.kill(os.getpid(), 9)"), ("false",)).run() == 137


@pytest.mark.parametrize(("death", "how"), [("os.kill(os.getpid(), 9)", "signal 9"), ("sys.exit(1)", "exit code 1")])
def test_a_master_that_dies_while_workers_live_is_followed_by_another(
    folder: JobFolder, capfd: pytest.CaptureFixture[str], death: str, how: str
) -> None:
    first = master(folder, f"listen(); start_worker(); {death}")
    again = master(folder, "assert folder.live_workers(); listen(); end(0)")
    assert Front(folder, first, again).run() == 0
    assert how in capfd.readouterr().err


def test_a_master_that_always_dies_is_given_up(folder: JobFolder) -> None:
    first = master(folder, "listen(); start_worker(); os.kill(os.getpid(), 9)")
    with pytest.raises(EasyScaleError, match="3 times in a row"):
        Front(folder, first, master(folder, "os.kill(os.getpid(), 9)")).run()
    for worker in folder.live_workers():
        os.kill(worker.pid, signal.SIGKILL)


@contextlib.contextmanager
def running_front(folder: JobFolder, first: str, again: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Nothing of it outlives a test that fails."""
    code = f"""
import sys
from pathlib import Path
from easyscale.cli.front import Front
from easyscale.master.registry import JobFolder
sys.exit(Front(JobFolder(Path({str(folder.path)!r})), {master(folder, first)!r}, {master(folder, again)!r}).run())
"""
    process = subprocess.Popen((sys.executable, "-c", code), start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        left = folder.master()
        for pid in [*([left.pid] if left is not None else []), *(worker.pid for worker in folder.live_workers())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


HEED = """
heard = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: heard.append(number))
listen()
while not heard:
    time.sleep(0.01)
time.sleep(0.3)
end(100 + sum(heard))
"""


@pytest.mark.usefixtures("heeds_hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_master_once(folder: JobFolder, number: signal.Signals) -> None:
    with running_front(folder, HEED) as process:
        eventually(folder.master)
        os.killpg(process.pid, number)  # as a terminal does
        assert process.wait(LONG) == 100 + number


def test_a_wish_to_stop_outlives_the_master_that_heard_it(folder: JobFolder) -> None:
    with running_front(folder, "start_worker(); listen(); time.sleep(60)", HEED) as process:
        eventually(folder.master)
        process.send_signal(signal.SIGTERM)  # of which this master dies
        assert process.wait(LONG) == 100 + signal.SIGTERM


# ---------------------------------------------------------------------------------------- in the background


def test_a_detached_job_goes_on_by_itself(folder: JobFolder, capfd: pytest.CaptureFixture[str]) -> None:
    assert detach(folder, master(folder, "print('hello', flush=True); listen(); time.sleep(60)")) == 0
    assert capfd.readouterr().out == f"{folder.id}\n"
    assert folder.state() == "running"
    found = folder.master()
    assert found is not None
    assert os.getsid(found.pid) == found.pid
    assert (folder.path / "logs" / "master.log").read_text() == "hello\n"
    os.kill(found.pid, signal.SIGKILL)
    os.waitpid(found.pid, 0)


def test_a_detached_job_that_is_refused_shows_why(folder: JobFolder, capfd: pytest.CaptureFixture[str]) -> None:
    code = "print('error: No.', file=sys.stderr); folder.remove(); sys.exit(2)"
    assert detach(folder, master(folder, code)) == 2
    shown = capfd.readouterr()
    assert shown.err == "error: No.\n"
    assert shown.out == ""


# ---------------------------------------------------------------------------------------- roles


def test_a_role_comes_back_as_it_was_given(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "COMMAND", ("easyscale",))
    command = run_as("master", folder, ("--ests", "4", "train.py", "--restart-master"))
    assert command == (
        "easyscale", "run", "--internal", f"master:{folder.id}", "--ests", "4", "train.py", "--restart-master",
    )  # fmt: skip
    assert role_of(command[3]) == ("master", folder.id)
    assert arguments(command) == command[4:], "one role is followed by another, never by two"
    assert arguments(("easyscale", "run", "train.py", "--internal")) == ("train.py", "--internal")
    assert role_of("front:a-1") == ("front", "a-1")
    assert role_of(None) == (None, "")
    with pytest.raises(EasyScaleError):
        role_of("emperor:a-1")
