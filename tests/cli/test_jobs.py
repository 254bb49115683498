"""scale, checkpoint, stop, wait, attach: which job is meant, what is asked of it, and how it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from easyscale.cli.finding import complete_job
from easyscale.cli.main import app
from easyscale.core.errors import EasyScaleError, PlanError, UsageError
from easyscale.core.requests import (
    Accepted,
    AskCheckpoint,
    AskScale,
    AskStatus,
    AskStop,
    Happening,
    Refused,
    Reply,
    Request,
    Seat,
)
from easyscale.master.registry import JobFolder, JobResult
from fake_master import FakeMaster, fake_job


def easyscale(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def refused(*args: str, kind: type[EasyScaleError] = UsageError) -> EasyScaleError:
    """The error that a user would see in three parts."""
    done = easyscale(*args)
    assert isinstance(done.exception, kind), done.output
    assert done.exception.why
    assert done.exception.now
    return done.exception


def ended_job(name: str = "train", code: int = 0, error: str | None = None) -> JobFolder:
    folder = JobFolder.create(name, ("easyscale",), 4)
    folder.write_result(JobResult(exit_code=code, steps=5, error=error))
    return folder


@contextmanager
def masterless_job() -> Iterator[tuple[JobFolder, subprocess.Popen[bytes]]]:
    folder = JobFolder.create("train", ("easyscale",), 4)
    folder.write_master(os.getpid(), "0@another-boot", "127.0.0.1", 1)
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as worker:
        folder.write_worker(0, worker.pid)
        yield folder, worker
        worker.kill()


# ---------------------------------------------------------------------------------------- which job


def test_the_only_job_need_not_be_named_but_is_told() -> None:
    ended_job()
    with fake_job() as master:
        done = easyscale("checkpoint")
        assert done.exit_code == 0
        assert done.stdout == "accepted ask-checkpoint\n"
        assert done.stderr == f"job: {master.folder.id}\n"
        assert master.requests == [AskCheckpoint()]


def test_the_beginning_of_an_id_is_enough_while_it_is_clear() -> None:
    with fake_job("resnet") as resnet, fake_job("bert") as bert:
        assert easyscale("checkpoint", "res").stderr == f"job: {resnet.folder.id}\n"
        assert easyscale("checkpoint", bert.folder.id).stderr == ""
        assert "2 jobs run" in refused("checkpoint").what
        assert f"{resnet.folder.id}, {bert.folder.id}" in refused("checkpoint").why
        with fake_job("resnet"):
            assert "'resnet-' is the beginning of 2 jobs" in refused("stop", "resnet-").what
        assert "There is no job 'vgg'" in refused("scale", "vgg", "--workers", "1").what


def test_a_job_that_runs_is_meant_before_one_that_ended() -> None:
    over = ended_job()
    with fake_job() as master:
        assert easyscale("checkpoint", "train").stderr == f"job: {master.folder.id}\n"
        assert f"{over.id} does not run" in refused("checkpoint", over.id).what
        assert easyscale("wait", over.id).exit_code == 0


def test_no_job_at_all_is_said() -> None:
    for command in ("checkpoint", "stop", "wait", "logs", "attach"):
        assert "No job runs." in refused(command).what


def test_the_shell_completes_ids() -> None:
    over = ended_job("bert")
    with fake_job("resnet") as resnet:
        assert complete_job("") == [over.id, resnet.folder.id]
        assert complete_job("res") == [resnet.folder.id]
        assert complete_job("vgg") == []


def test_an_unsafe_registry_completes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    os.symlink("/", os.path.join(tmp_path, "easyscale"))
    assert complete_job("") == []


# ---------------------------------------------------------------------------------------- scale


def test_scale_asks_for_what_was_said() -> None:
    with fake_job() as master:
        assert easyscale("scale", "--workers", "3").stdout == "accepted ask-scale\n"
        easyscale("scale", "--split", "2,1,1")
        easyscale("scale", "--leave", "1")
        assert master.requests == [AskScale(workers=3), AskScale(split=(2, 1, 1)), AskScale(leave=1)]


@pytest.mark.parametrize(
    "flags",
    [("--workers", "5"), ("--split", "2,1"), ("--split", "some"), ("--split", "4,0")],
)
def test_a_plan_that_does_not_fit_never_reaches_the_master(flags: tuple[str, ...]) -> None:
    with fake_job() as master:
        refused("scale", *flags, kind=PlanError)
        assert master.requests == []


def test_a_wish_is_exactly_one() -> None:
    with fake_job():
        assert "not clear" in refused("scale").what
        assert "not clear" in refused("scale", "--workers", "2", "--leave", "0").what
    assert easyscale("scale", "--workers", "0").exit_code == 2


def test_what_the_master_refuses_is_shown_as_it_says() -> None:
    with fake_job() as master:
        master.answer = lambda _: Refused(what="Not more than 2.", why="--workers 1:2 was given.", now="ask for less.")
        assert "Not more than 2." in refused("scale", "--workers", "4", kind=EasyScaleError).what


def switching(master: FakeMaster, after: int, split: tuple[int, ...], *events: Happening) -> None:
    """Answers a wish for (1, 1, 1, 1); after so many looks the plan is `split`."""
    looks = 0

    def answer(request: Request) -> Reply:
        nonlocal looks
        if isinstance(request, AskScale):
            master.status = replace(master.status, state="switching", wanted=(1, 1, 1, 1))
            return Accepted(text="4 workers are wanted.", split=(1, 1, 1, 1))
        looks += isinstance(request, AskStatus)
        if looks > after:
            seats = tuple(Seat(worker=n, pid=n, first=0, count=count) for n, count in enumerate(split))
            master.status = replace(master.status, state="training", wanted=None, seats=seats, events=events)
        return master.status

    master.answer = answer


def test_scale_waits_until_the_plan_is_in_force() -> None:
    with fake_job() as master:
        switching(master, 2, (1, 1, 1, 1))
        done = easyscale("scale", "--workers", "4", "--wait")
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines() == [
            "4 workers are wanted.",
            f"{master.folder.id}: 4 workers (1+1+1+1), at step 7",
        ]


def test_a_cancelled_switch_is_exit_code_1_with_the_reason() -> None:
    with fake_job() as master:
        event = Happening(step=7, what="switch-cancelled", text="worker 3 was not ready in 120 s.", time=0.0)
        switching(master, 1, (2, 2), event)
        done = easyscale("scale", "--workers", "4", "--wait")
        assert done.exit_code == 1
        assert "worker 3 was not ready in 120 s." in done.stderr
        assert "2 workers (2+2)" in done.stderr


def test_a_job_that_ends_before_its_switch_is_exit_code_1() -> None:
    with fake_job() as master:
        switching(master, 10**9, ())
        answer = master.answer

        def done_at_the_third_look(request: Request) -> Reply:
            nonlocal looks
            looks += isinstance(request, AskStatus)
            reply = answer(request)
            return replace(master.status, state="done") if looks > 2 else reply

        looks, master.answer = 0, done_at_the_third_look
        done = easyscale("scale", "--workers", "4", "--wait")
        assert done.exit_code == 1
        assert "the job is done" in done.stderr


def test_a_job_that_is_gone_before_its_switch_is_exit_code_1() -> None:
    with fake_job() as master:

        def answer(request: Request) -> Reply:
            if isinstance(request, AskStatus):
                master.folder.write_result(JobResult(exit_code=0))
                master.raw = b"\n"
            return Accepted(text="4 workers are wanted.", split=(1, 1, 1, 1))

        master.answer = answer
        done = easyscale("scale", "--workers", "4", "--wait")
        assert done.exit_code == 1
        assert "the job has ended" in done.stderr


def test_a_switch_that_takes_too_long_is_told() -> None:
    with fake_job() as master:
        switching(master, 10**9, ())
        wish = ("scale", "--workers", "4", "--wait", "--timeout", "0")
        assert "has not got there" in refused(*wish, kind=EasyScaleError).what


def test_scale_prints_json_for_programs() -> None:
    with fake_job() as master:
        switching(master, 1, (1, 1, 1, 1))
        plain = json.loads(easyscale("scale", "--workers", "4", "--wait", "--json").stdout)
        assert [seat["count"] for seat in plain["seats"]] == [1, 1, 1, 1]
        assert plain["wanted"] is None
        assert plain["job"] == master.folder.id


# ---------------------------------------------------------------------------------------- stop and wait


def test_stop_asks_and_waits() -> None:
    with fake_job() as master:
        assert easyscale("stop").stdout == "accepted ask-stop\n"

        def answer(request: Request) -> Reply:
            master.folder.write_result(JobResult(exit_code=143))
            return Accepted(text="stopping")

        master.answer = answer
        assert easyscale("stop", "--now", "--wait").exit_code == 0
        assert master.requests == [AskStop(), AskStop(now=True)]


def test_stop_waits_with_a_limit() -> None:
    with fake_job():
        assert "has not ended" in refused("stop", "--wait", "--timeout", "0", kind=EasyScaleError).what


def test_a_job_without_a_master_can_be_ended_or_taken_over() -> None:
    with masterless_job() as (folder, worker):
        assert "attach" in refused("stop", kind=EasyScaleError).now
        assert "attach" in refused("scale", "--workers", "2", kind=EasyScaleError).now
        done = easyscale("stop", "--now", "--wait")
        assert done.exit_code == 0, done.output
        assert "1 worker killed" in done.stdout
        assert worker.wait(10) == -9
        assert folder.state() == "dead"


@pytest.mark.parametrize("code", [0, 1, 3, 143])
def test_wait_ends_as_the_job_did(code: int) -> None:
    folder = ended_job(code=code, error="it broke" if code else None)
    done = easyscale("wait", folder.id)
    assert done.exit_code == code
    assert done.stderr == ("it broke\n" if code else "")


def test_wait_waits() -> None:
    with fake_job() as master:
        ending = threading.Timer(1.0, lambda: master.folder.write_result(JobResult(exit_code=5)))
        ending.start()
        began = time.monotonic()
        assert easyscale("wait").exit_code == 5
        assert time.monotonic() - began >= 0.2
        ending.join()


def test_wait_gives_up_and_says_so() -> None:
    with fake_job():
        assert "has not ended in 0 seconds" in refused("wait", "--timeout", "0", kind=EasyScaleError).what


def test_a_job_that_dies_while_it_is_waited_for_is_exit_code_1() -> None:
    with masterless_job() as (folder, worker):
        threading.Timer(1.0, worker.kill).start()
        waiter = threading.Thread(target=worker.wait)  # someone has to reap it
        waiter.start()
        done = easyscale("wait", folder.id)
        waiter.join()
        assert done.exit_code == 1
        assert "has no master now" in done.stderr
        assert "died" in done.stderr


def test_a_job_that_needs_no_master_is_not_taken_over() -> None:
    with fake_job():
        assert "it has one" in refused("attach").why
    assert "it has ended" in refused("attach", ended_job().id).why
    with masterless_job() as (folder, _):
        assert "before it began" in refused("attach", folder.id).why


def test_the_shell_really_completes() -> None:
    over = ended_job("bert")
    code = "import sys; sys.argv[0] = 'easyscale'; from easyscale.cli.main import main; main()"
    asked = {"_EASYSCALE_COMPLETE": "complete_bash", "COMP_WORDS": "easyscale logs be", "COMP_CWORD": "2"}
    done = subprocess.run(
        (sys.executable, "-c", code), env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [over.id], done.stderr


def test_a_wish_before_the_first_step_is_waited_for() -> None:
    with fake_job() as master:
        switching(master, 2, (1, 1, 1, 1))
        wished = master.answer

        def answer(request: Request) -> Reply:
            reply = wished(request)
            if isinstance(request, AskScale):
                master.status = replace(master.status, state="starting", wanted=None, seats=())
            return reply

        master.answer = answer
        assert easyscale("scale", "--workers", "4", "--wait").exit_code == 0
