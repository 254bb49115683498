"""logs: lines with their worker, on their stream, from files that may still grow."""

from __future__ import annotations

import threading

import pytest
from typer.testing import CliRunner, Result

from easyscale.cli.main import app
from easyscale.core.errors import UsageError
from easyscale.master.registry import JobFolder, JobResult
from easyscale.master.trimming import trim
from fake_master import fake_job


@pytest.fixture
def folder() -> JobFolder:
    folder = JobFolder.create("train", ("easyscale",), 4)
    folder.log(0, "out").write_bytes(b"a\nb\nc\n")
    folder.log(0, "err").write_bytes(b"warning\n")
    folder.log(1, "out").write_bytes("é 50%\r 100%\nunfinished".encode() + b"\xff")
    folder.write_result(JobResult(exit_code=0))
    return folder


def logs(*args: str) -> Result:
    return CliRunner().invoke(app, ["logs", *args])


def test_lines_have_their_worker_and_keep_their_stream(folder: JobFolder) -> None:
    done = logs(folder.id)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "[worker 0] a", "[worker 0] b", "[worker 0] c",
        "[worker 1] é 50%", "[worker 1]  100%", "[worker 1] unfinished\N{REPLACEMENT CHARACTER}",
    ]  # fmt: skip
    assert done.stderr == "[worker 0] warning\n"


def test_one_worker_and_its_last_lines(folder: JobFolder) -> None:
    done = logs(folder.id, "--worker", "0", "--tail", "2")
    assert done.stdout.splitlines() == ["[worker 0] b", "[worker 0] c"]
    assert logs(folder.id, "--worker", "0", "--tail", "0").stdout == ""


def test_a_worker_that_printed_nothing_is_an_error(folder: JobFolder) -> None:
    error = logs(folder.id, "--worker", "7").exception
    assert isinstance(error, UsageError)
    assert "workers 0, 1" in error.why


def test_following_shows_what_comes_until_the_job_ends() -> None:
    with fake_job() as master:
        job = master.folder
        job.log(0, "out").write_bytes(b"first\nhal")

        def go_on() -> None:
            with job.log(0, "out").open("ab") as out:
                out.write(b"f\n")
            job.log(1, "out").write_bytes(b"a new worker\n")
            job.write_result(JobResult(exit_code=0))

        later = threading.Timer(0.3, go_on)
        later.start()
        done = logs(job.id, "--follow")
        later.join()
        assert done.stdout.splitlines() == ["[worker 0] first", "[worker 0] half", "[worker 1] a new worker"]


def test_following_goes_on_behind_what_was_dropped() -> None:
    with fake_job() as master:
        job = master.folder
        job.log(0, "out").write_bytes(b"first\n")

        def go_on() -> None:
            with job.log(0, "out").open("ab") as out:
                out.write(b"".join(b"line %d\n" % number for number in range(1000)))
            assert trim(job.log(0, "out"), 100)
            job.write_result(JobResult(exit_code=0))

        later = threading.Timer(0.5, go_on)
        later.start()
        done = logs(job.id, "--follow")
        later.join()
        lines = done.stdout.splitlines()
        assert lines[0] == "[worker 0] first"
        assert lines[-1] == "[worker 0] line 999"
        rest = logs(job.id).stdout.splitlines()
        assert rest[-1] == "[worker 0] line 999"
        assert 1 < len(rest) < 20


def test_a_job_without_output_is_no_error() -> None:
    folder = JobFolder.create("train", ("easyscale",), 4)
    done = logs(folder.id)
    assert (done.exit_code, done.stdout) == (0, "")
