"""ps, top, scale, logs, wait, stop: local jobs first and as ever, the service's where none is meant."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from easyscale.cli.finding import complete_job
from easyscale.core.errors import UsageError
from easyscale.core.requests import AskScale, AskStop
from easyscale.service import connection
from easyscale.service.client import TooLongError
from easyscale.service.errors import ConflictError, NotFoundError
from easyscale.service.models import JobRow, JobView, LogFile, LogPart
from easyscale.service.wire import ServiceUnreachableError
from fake_master import fake_job
from service.cli.conftest import Cluster, Relay, done, easyscale, refused

AWAY = connection.Connection(url="http://127.0.0.1:9", token="est_a")


# ---------------------------------------------------------------------------------------- ps and top


def test_ps_shows_the_services_jobs_under_the_local_ones(login: Cluster) -> None:
    with fake_job() as master:
        text = done("ps").stdout
        here, there = text.split(login.url)
        assert master.folder.id in here
        assert login.named("vision-running") in there
        assert login.named("vision-finished") not in there
        assert login.named("vision-finished") in done("ps", "--all").stdout
        assert login.url not in done("ps", "--local").stdout
        only = done("ps", "--service").stdout
        assert master.folder.id not in only
        assert "v100:2" in only


def test_ps_as_json_keeps_its_shape_and_the_services_has_the_models(login: Cluster) -> None:
    with fake_job() as master:
        assert [entry["job"] for entry in json.loads(done("ps", "--json").stdout)] == [master.folder.id]
        rows = [JobRow(**row) for row in json.loads(done("ps", "--json", "--service").stdout)]
        assert login.named("speech-big") in {row.id for row in rows}
        assert json.loads(done("ps", "--json", "--server", login.url).stdout)


def test_a_service_that_is_away_costs_a_line_on_stderr_only() -> None:
    connection.save(AWAY)
    with fake_job() as master:
        for command in (("ps",), ("ps", "--all")):
            result = done(*command)
            assert master.folder.id in result.stdout
            assert "does not answer" in result.stderr
            assert "--local" in result.stderr
        assert "does not answer" in done("top", "--once").stdout
        assert done("ps", "--local").stderr == ""
        assert done("ps", "--json").stderr == ""
    refused("ps", "--service", kind=ServiceUnreachableError)


def test_a_damaged_connection_file_does_not_hide_local_jobs() -> None:
    path = connection.save(AWAY)
    path.write_text("{")
    with fake_job() as master:
        result = done("ps")
        assert master.folder.id in result.stdout
        assert "cannot be used" in result.stderr
        assert done("stop", master.folder.id).exit_code == 0


def test_ps_says_when_there_are_more(login: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("easyscale.cli.verbs.MOST", 2)
    assert "jobs more; `easyscale queue --all`" in done("ps", "--service").stderr
    for job in list(login.desk._jobs):
        login.desk.put(job, "finished")
    assert done("ps", "--service").stderr == f"No job waits or runs at {login.url}.\n"


def test_top_has_both_tables(login: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with fake_job() as master:
        both = done("top", "--once").stdout
        assert master.folder.id in both
        assert login.named("vision-running") in both
        assert login.named("vision-running") not in done("top", "--once", "--local").stdout
        assert master.folder.id not in done("top", "--once", "--service").stdout
        assert [one["job"] for one in json.loads(done("top", "--json").stdout)] == [master.folder.id]
        assert json.loads(done("top", "--json", "--service").stdout)[0]["id"].startswith("job-")


# ---------------------------------------------------------------------------------------- which job


def test_a_local_job_is_meant_before_the_services(login: Cluster) -> None:
    with fake_job("vision-running") as master:
        done("stop", "vision-running")
        assert master.requests[-1] == AskStop()
    assert login.desk.calls == []


def test_nothing_named_means_a_local_job(login: Cluster) -> None:
    assert "No job runs." in refused("stop").what
    assert "No job is named" in refused("stop", "--service").what
    assert "opposite" in refused("stop", "x", "--local", "--service").why
    with fake_job() as master:
        done("scale", "--workers", "1")
        assert master.requests[0] == AskScale(workers=1)


def test_a_name_that_nobody_knows(login: Cluster) -> None:
    for verb in (("stop",), ("wait",), ("logs",), ("scale", "--workers", "1")):
        refused(*verb, "nothing", kind=NotFoundError)
    assert "no job of this user on this machine" in refused("stop", "nothing", "--local", kind=UsageError).why
    connection.forget()
    assert "no job of this user on this machine" in refused("stop", "nothing", kind=UsageError).why


def test_the_shell_completes_both(login: Cluster) -> None:
    with fake_job("job") as master:
        found = complete_job("job-")
        assert found[0] == master.folder.id
        assert login.named("vision-running") in found


# ---------------------------------------------------------------------------------------- scale, stop, wait


def test_scale_sets_the_limits_of_a_services_job(login: Cluster) -> None:
    job = login.named("vision-running")
    told = done("scale", job, "--workers", "2").stdout
    assert told == f"{job} may use 1 to 2 workers; it is running on 2 devices now.\n"
    assert login.desk.job(job).spec.max_workers == 2
    done("scale", job, "--min-workers", "2", "--max-workers", "4")
    assert (login.desk.job(job).spec.min_workers, login.desk.job(job).spec.max_workers) == (2, 4)
    done("scale", job, "--workers", "1")  # the least goes down with the most
    assert (login.desk.job(job).spec.min_workers, login.desk.job(job).spec.max_workers) == (1, 1)
    view = JobView.model_validate_json(done("scale", job, "--workers", "3", "--wait", "--json").stdout)
    assert view.spec.max_workers == 3
    refused("scale", job, "--workers", "1", "--wait", "--timeout", "0.1", kind=TooLongError)


@pytest.mark.parametrize(
    "flags",
    [
        (), ("--split", "2,2"), ("--leave", "0"), ("--workers", "2", "--max-workers", "3"), ("--workers", "99"),
    ],
)  # fmt: skip
def test_a_plan_that_a_services_job_cannot_have_is_refused(login: Cluster, flags: tuple[str, ...]) -> None:
    refused("scale", login.named("vision-running"), *flags)
    assert login.desk.calls == []


def test_limits_are_for_jobs_of_a_service() -> None:
    with fake_job() as master:
        refused("scale", master.folder.id, "--max-workers", "3")
        assert master.requests == []


def test_stop_cancels_and_waits(login: Cluster) -> None:
    job = login.named("vision-running")
    assert "not killed" in refused("stop", job, "--now").what
    assert done("stop", job, "--wait").stdout == f"{job} is cancelled.\n"
    refused("stop", job, kind=ConflictError)


def test_wait_gives_the_exit_code(login: Cluster) -> None:
    assert done("wait", login.named("vision-finished")).stdout == ""
    cancelled = easyscale("wait", login.named("vision-cancelled"))
    assert cancelled.exit_code == 1
    assert "is cancelled" in cancelled.stderr
    job = login.named("vision-running")
    refused("wait", job, "--timeout", "0", kind=TooLongError)
    threading.Timer(0.3, lambda: login.desk.put(job, "failed", step=3)).start()
    failed = easyscale("wait", job)
    assert failed.exit_code == 1
    assert "is failed. ValueError: the data has no column" in failed.stderr


# ---------------------------------------------------------------------------------------- logs


class Output:
    """Logs of a job that the test writes."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[tuple[int, int, str], bytearray] = {}
        self.gone = 0
        monkeypatch.setattr(cluster.desk, "logs", self._logs)
        monkeypatch.setattr(cluster.desk, "log", self._log)
        self._cluster = cluster

    def _logs(self, job: str) -> list[LogFile]:
        return [
            LogFile(run=run, worker=worker, stream=stream, size=len(data))  # type: ignore[arg-type]
            for (run, worker, stream), data in self.files.items()
        ]

    def _log(self, job: str, run: int, worker: int, stream: Any, start: int, most: int) -> LogPart:
        data = self.files[run, worker, stream]
        start = max(start, self.gone)
        part = bytes(data[start : start + most])
        ended = self._cluster.desk.job(job).state in ("finished", "failed", "cancelled")
        end = ended and start + len(part) >= len(data)
        return LogPart(
            worker=worker, stream=stream, text=part.decode(), start=start, next=start + len(part), end=end
        )


@pytest.fixture
def output(login: Cluster, monkeypatch: pytest.MonkeyPatch) -> Output:
    return Output(login, monkeypatch)


def test_logs_keep_their_stream_and_their_worker(login: Cluster, output: Output) -> None:
    output.files = {
        (1, 0, "out"): bytearray(b"old run\n"),
        (2, 1, "out"): bytearray(b"one\ntwo\nno end"),
        (2, 0, "out"): bytearray(b"\x1b[31mred\x1b[0m\x1b[2J\n"),
        (2, 0, "err"): bytearray(b"oh\n"),
    }
    job = login.named("vision-running")
    result = done("logs", job)
    assert result.stdout == "[worker 0] \x1b[31mred\x1b[0m[2J\n[worker 1] one\n[worker 1] two\n[worker 1] no end\n"
    assert result.stderr == "[worker 0] oh\n"
    assert done("logs", job, "--worker", "1", "--tail", "1").stdout == "[worker 1] two\n[worker 1] no end\n"
    assert done("logs", job, "--run", "1").stdout == "[worker 0] old run\n"
    assert "logs of worker 0 of run 1" in refused("logs", job, "--worker", "7").why
    output.files = {}
    assert "printed nothing yet" in refused("logs", job).what


def test_the_last_lines_are_found_however_long_they_are(login: Cluster, output: Output) -> None:
    lines = [f"{number} {'x' * 3000}" for number in range(500)]
    output.files = {(1, 0, "out"): bytearray("".join(f"{line}\n" for line in lines).encode())}
    job = login.named("vision-running")
    for tail in (0, 1, 3, 499, 1000):
        shown = done("logs", job, "--tail", str(tail)).stdout.splitlines()
        assert shown == [f"[worker 0] {line}" for line in lines[len(lines) - min(tail, 500) :]]
    assert len(done("logs", job).stdout.splitlines()) == 500


def test_logs_are_followed_to_the_end_across_runs_and_a_broken_wire(
    login: Cluster, output: Output, relay: Relay
) -> None:
    connection.save(connection.Connection(url=relay.url, token=login.tokens["ann"]))
    job = login.named("vision-running")
    output.files = {(1, 0, "out"): bytearray(b"first\npart of ")}
    with subprocess.Popen(
        (sys.executable, "-m", "easyscale", "logs", "-f", job), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[worker 0] first\n"
        relay.cut()
        output.files[1, 0, "out"] += b"a line\n"
        output.files[2, 0, "out"] = bytearray(b"second run\n")
        assert process.stdout.readline() == "[worker 0] part of a line\n"
        assert process.stdout.readline() == "[run 2 · worker 0] second run\n"
        relay.cut()
        output.files[2, 0, "out"] += b"last words"
        login.desk.put(job, "finished", step=9)
        assert process.stdout.read() == "[run 2 · worker 0] last words\n"
        assert process.wait(20) == 0


def test_a_log_that_lost_its_oldest_part_says_so(
    login: Cluster, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("easyscale.cli.service_logs.PART", 10)
    output.files = {(1, 0, "out"): bytearray(b"0123456789" * 10 + b"\nend\n")}
    read = output._log

    def later(*args: Any) -> LogPart:
        part = read(*args)
        output.gone = 50
        return part

    monkeypatch.setattr(login.desk, "log", later)
    assert "(40 bytes are gone: the log was full)" in done("logs", login.named("vision-running")).stdout
