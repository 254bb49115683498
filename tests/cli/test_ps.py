"""ps and top: every state of a job in a line, old entries shown once and then gone."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from easyscale.cli.main import app
from easyscale.cli.ps import age, columns
from easyscale.core.requests import Happening
from easyscale.master.registry import JobFolder, JobResult, list_jobs
from fake_master import fake_job


def easyscale(*args: str) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, args)
    assert done.exit_code == 0, done.output
    return done.stdout


def line_of(job: str, text: str) -> str:
    return next(line for line in text.splitlines() if job in line)


def ended_job(code: int, error: str | None = None) -> JobFolder:
    folder = JobFolder.create("old", ("easyscale",), 4)
    folder.write_result(JobResult(exit_code=code, steps=5, error=error))
    return folder


def dead_job() -> JobFolder:
    folder = JobFolder.create("lost", ("easyscale",), 4)
    folder.write_master(os.getpid(), "0@another-boot", "127.0.0.1", 1)
    return folder


def test_a_running_job_is_one_line() -> None:
    with fake_job() as master:
        event = Happening(step=7, what="plan", text="From step 7 on [2 workers].\nmore", time=0.0)
        master.status = replace(master.status, events=(event,), wanted=(1, 1, 1, 1))
        for command in (("ps",), ("top", "--once")):
            line = line_of(master.folder.id, easyscale(*command))
            for part in ("training", "2+2 -> 1+1+1+1", "7", "1,234", "0.2500", "From step 7 on [2 workers]."):
                assert part in line
            assert "more" not in line


def test_each_state_has_its_word() -> None:
    done, failed, stopped = ended_job(0), ended_job(1, "error: It broke.\n  why: ..."), ended_job(143)
    dead = dead_job()
    orphaned = dead_job()
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as worker:
        orphaned.write_worker(0, worker.pid)
        text = easyscale("ps")
        worker.kill()
    assert " done " in line_of(done.id, text)
    assert "failed (1)" in line_of(failed.id, text)
    assert "error: It broke." in line_of(failed.id, text)
    assert "ended (SIGTERM)" in line_of(stopped.id, text)
    assert " dead " in line_of(dead.id, text)
    assert "no master (1 alive)" in line_of(orphaned.id, text)


def test_a_master_that_does_not_answer_is_shown_as_such() -> None:
    with fake_job() as master:
        master.raw = b"nonsense\n"
        assert "no answer" in line_of(master.folder.id, easyscale("ps"))


def test_what_is_over_is_shown_once_then_with_all_then_never() -> None:
    folder, dead = ended_job(0), dead_job()
    with fake_job() as master:
        first = easyscale("ps")
        assert all(job in first for job in (master.folder.id, folder.id, dead.id))
        assert folder.id not in easyscale("ps")
        assert dead.id not in easyscale("ps")
        assert folder.id in easyscale("ps", "--all")
        easyscale("ps", "--keep", "0")
        assert list_jobs() == [master.folder]


def test_clean_shows_what_it_removes() -> None:
    folder = ended_job(0)
    with fake_job() as master:
        easyscale("ps")
        done = CliRunner().invoke(app, ["ps", "--clean"])
        assert folder.id in done.stdout
        assert done.stderr == f"removed: {folder.id}\n"
        assert list_jobs() == [master.folder]


def test_json_has_all_but_the_token() -> None:
    folder = ended_job(3, "it broke")
    with fake_job() as master:
        text = easyscale("ps", "--json")
        assert master.token not in text
        over, running = json.loads(text)
        assert (over["job"], over["entry"], over["state"]) == (folder.id, "ended", "failed (3)")
        assert over["result"]["error"] == "it broke"
        assert running["status"]["step"] == 7
        assert running["master_pid"] == os.getpid()
        assert running["command"] == ["easyscale", "run", "train.py"]


def test_without_jobs_there_is_a_word_and_no_error() -> None:
    done = CliRunner().invoke(app, ["ps"])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "No job runs.\n"
    assert json.loads(easyscale("ps", "--json")) == []
    assert "0 jobs" in easyscale("top", "--once")
    ended_job(0).mark_shown()
    assert "1 ended; --all shows them" in CliRunner().invoke(app, ["ps"]).stderr


def test_top_draws_once_where_there_is_no_terminal() -> None:
    with fake_job() as master:
        assert master.folder.id in easyscale("top")
        (told,) = json.loads(easyscale("top", "--json"))
        assert told["job"] == master.folder.id


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5.0, "0s"), (59.4, "59s"), (119.0, "119s"), (600.0, "10m"), (7200.0, "2h"), (2e5, "2d")]
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_columns_line_up() -> None:
    assert columns([("JOB", "STEP", "LAST EVENT"), ("a", "5", "x"), ("long", "100", "")]) == [
        "JOB   STEP  LAST EVENT",
        "a        5  x",
        "long   100",
    ]


def test_top_draws_on_a_terminal_until_ctrl_c() -> None:
    with fake_job() as master:
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            (sys.executable, "-m", "easyscale", "top", "--interval", "0.1"),
            stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
        ) as top:  # fmt: skip
            os.close(theirs)
            seen = b""
            while seen.count(master.folder.id.encode()) < 2:  # drawn, and drawn anew
                seen += os.read(ours, 1 << 16)
            top.send_signal(signal.SIGINT)
            while top.poll() is None:
                with contextlib.suppress(OSError):  # closed at the other end
                    os.read(ours, 1 << 16)
        os.close(ours)
        assert top.returncode == 0
        assert b"Traceback" not in seen
