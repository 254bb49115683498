"""Forked workers keep the promises of `LocalLauncher`'s: pipes, exit codes, signals, nothing outlives the launcher."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from easyscale.backends.nursery import NurseryLauncher, NurseryWorker
from easyscale.core.spec import Target, WorkerSpec

SPEC = WorkerSpec(ests=2, threads=1)


@pytest.fixture(scope="module")
def launcher() -> Iterator[NurseryLauncher]:
    nursery = NurseryLauncher({**os.environ, "OF_THE_LAUNCHER": "yes"})
    yield nursery
    nursery.close()


def run(launcher: NurseryLauncher, folder: Path, code: str, *args: str) -> NurseryWorker:
    script = folder / "script.py"
    script.write_text(code)
    return launcher.start(SPEC, Target(str(script), args))


def text_of(worker: NurseryWorker, pipe: str = "stdout") -> str:
    """All of it, until the other end is closed."""
    fd, data = getattr(worker, pipe), b""
    while True:
        select.select([fd], [], [])
        piece = os.read(fd, 1 << 16)
        if not piece:
            return data.decode()
        data += piece


def end_of(worker: NurseryWorker) -> int:
    deadline = time.monotonic() + 30
    while (code := worker.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.close()
    return code


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_finds_its_spec_its_arguments_and_its_pipes(launcher: NurseryLauncher, tmp_path: Path) -> None:
    code = """
import json, os, sys
spec = json.loads(os.environ["EASYSCALE_WORKER"])
os.write(spec["events_fd"], b"a message")
print(sys.argv[1:], spec["ests"], os.environ["OF_THE_LAUNCHER"], __name__, os.getsid(0) == os.getpid())
print("to stderr", file=sys.stderr)
"""
    worker = run(launcher, tmp_path, code, "--lr", "0.1")
    assert text_of(worker) == "['--lr', '0.1'] 2 yes __main__ True\n"
    assert (text_of(worker, "stderr"), text_of(worker, "events")) == ("to stderr\n", "a message")
    assert end_of(worker) == 0


def test_exit_codes_and_signals_are_told(launcher: NurseryLauncher, tmp_path: Path) -> None:
    assert end_of(run(launcher, tmp_path, "import sys; sys.exit(7)")) == 7
    worker = run(launcher, tmp_path, "import time; print('there', flush=True); time.sleep(60)")
    select.select([worker.stdout], [], [])
    worker.signal(signal.SIGTERM)
    assert end_of(worker) == -signal.SIGTERM


def test_stop_kills_what_does_not_leave(launcher: NurseryLauncher, tmp_path: Path) -> None:
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"import signal, time; {ignoring}; print('there', flush=True); time.sleep(60)"
    worker = run(launcher, tmp_path, code)
    select.select([worker.stdout], [], [])
    assert worker.stop(grace=0.1) == -signal.SIGKILL
    worker.close()


def test_processes_that_a_worker_leaves_behind_end_with_it(launcher: NurseryLauncher, tmp_path: Path) -> None:
    code = "import os, time\nif os.fork() == 0: time.sleep(60)\nelse: print('left')"
    worker = run(launcher, tmp_path, code)
    assert end_of_pipe_and_code(worker) == ("left\n", 0)


def end_of_pipe_and_code(worker: NurseryWorker) -> tuple[str, int]:
    text = text_of(worker)  # the pipe closes only when the process left behind is gone as well
    return text, end_of(worker)


def test_what_nobody_seeded_differs_between_workers(launcher: NurseryLauncher, tmp_path: Path) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    texts = []
    for _ in range(2):
        worker = run(launcher, tmp_path, code)
        texts.append(text_of(worker).split())
        assert end_of(worker) == 0
    assert texts[0][0] != texts[1][0]
    assert texts[0][1] != texts[1][1]


def test_workers_end_with_the_launcher(tmp_path: Path) -> None:
    nursery = NurseryLauncher(os.environ)
    worker = run(nursery, tmp_path, "import time; print('there', flush=True); time.sleep(60)")
    select.select([worker.stdout], [], [])
    nursery.close()
    deadline = time.monotonic() + 30
    while alive(worker.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.close()
