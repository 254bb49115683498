"""queue, describe, pause, resume, cancel, events: tables for people, models for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from easyscale.cli.remote import complete_remote
from easyscale.core.errors import UsageError
from easyscale.service import connection
from easyscale.service.errors import ConflictError, ForbiddenError, NotFoundError
from easyscale.service.models import JobPage, JobView, RecordView
from service.cli.conftest import Cluster, done, easyscale, refused, until
from service.fakes import spec


def line_of(word: str, text: str) -> str:
    return next(line for line in text.splitlines() if word in line)


def listed(*flags: str) -> JobPage:
    return JobPage.model_validate_json(done("queue", "--all", "--json", *flags).stdout)


def numbers(*flags: str) -> list[int]:
    return [json.loads(line)["seq"] for line in done("events", "--json", *flags).stdout.splitlines()]


def test_the_queue_shows_who_waits_and_why(login: Cluster) -> None:
    text = done("queue").stdout
    assert text.splitlines()[0].split() == ["JOB", "STATE", "USER", "TEAM", "PRIORITY", "ESTS", "WAITED", "WHY"]
    waiting = line_of(login.named("vision-queued"), text)
    assert "All devices that it may use are held" in waiting
    assert " ann " in waiting
    assert "running" not in text
    assert "running" in done("queue", "--all").stdout
    assert line_of(login.named("speech-failed"), done("queue", "--state", "failed").stdout).endswith("'label'")


def test_the_queue_as_json_is_the_model(login: Cluster) -> None:
    page = JobPage.model_validate_json(done("queue", "--all", "--json", "--order", "name", "--limit", "2").stdout)
    assert page.total > len(page.jobs) == 2
    assert "more; --limit" in done("queue", "--all", "--limit", "2").stderr
    assert {row.team for row in listed("--team", "speech").jobs} == {"speech"}
    assert {row.user for row in listed("--user", "ann").jobs} == {"ann"}
    assert listed("--text", "BIG").total == 1


def test_an_empty_queue_is_said(login: Cluster) -> None:
    assert done("queue", "--team", "nobody").stderr == "No job waits.\n"
    assert done("queue", "--all", "--team", "nobody").stderr == "There is no such job.\n"
    refused("queue", "--order", "colour")
    refused("queue", "--state", "sleeping")


def test_what_others_wrote_cannot_move_the_cursor(login: Cluster) -> None:
    job = login.named("vision-queued")
    login.desk._jobs[job] = login.desk.job(job).model_copy(update={"waits": "\x1b[2Jgone\nsecond\x07 line\u202e"})
    for command in (("queue",), ("describe", job), ("ps",)):
        text = done(*command).stdout
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
        assert "gone" in text


def test_describe_tells_all_of_a_job(login: Cluster) -> None:
    job = login.named("vision-running")
    text = done("describe", job).stdout
    for part in (
        f"{job}  running", "ann, team vision", "train.py", "/srv/work", "v100:2 (v100-0, v100-1)", "Plans:", "1+1",
        "Proposals:", "1.60x", "No v100 is free.", "2, 0.34 s at most", "400/2000",
    ):  # fmt: skip
        assert part in text, part
    assert JobView.model_validate_json(done("describe", job, "--json").stdout) == login.desk.job(job)
    ended = done("describe", login.named("vision-finished")).stdout
    assert "sha256" in ended
    assert "exit code" in ended


def test_values_of_variables_are_not_shown(login: Cluster) -> None:
    with login.client("ann") as client:
        (job,) = client.submit(spec(env={"API_KEY": "hunter2"})).jobs
    text = done("describe", job).stdout
    assert "API_KEY" in text
    assert "hunter2" not in text


def test_a_job_is_found_by_its_beginning_or_its_name(login: Cluster) -> None:
    job = login.named("vision-running")
    found = done("describe", "vision-running")
    assert found.stderr == f"job: {job}\n"
    assert "it could be any of job-1" in refused("describe", "job-").why
    refused("describe", "nothing-like-it", kind=NotFoundError)
    refused("describe", login.named("speech-big"), kind=ForbiddenError)
    assert complete_remote("job-1") == [one for one in complete_remote("") if one.startswith("job-1")]
    assert job in complete_remote("")


def test_nothing_is_completed_without_a_service() -> None:
    assert complete_remote("") == []
    connection.save(connection.Connection(url="http://127.0.0.1:9"))
    assert complete_remote("") == []
    connection.connection_file().chmod(0o644)
    assert complete_remote("") == []


def test_pause_resume_and_cancel(login: Cluster) -> None:
    job = login.named("vision-queued")
    assert done("pause", job).stdout == f"{job} is paused.\n"
    assert done("resume", job).stdout == f"{job} is queued. It waits its turn.\n"
    refused("resume", job, kind=ConflictError)
    assert JobView.model_validate_json(done("pause", job, "--json").stdout).state == "paused"
    other = login.named("vision-running")
    assert done("cancel", job, other).stdout == f"{job} is cancelled.\n{other} is cancelled.\n"
    refused("cancel", job, kind=ConflictError)
    assert [call[0] for call in login.desk.calls] == [
        "job-pause", "job-resume", "job-pause", "job-cancelled", "job-cancelled",
    ]  # fmt: skip


def test_a_misspelt_job_ends_none(login: Cluster) -> None:
    refused("cancel", login.named("vision-queued"), "nothing", kind=NotFoundError)
    assert login.desk.calls == []
    views = json.loads(done("cancel", login.named("vision-queued"), "--json").stdout)
    assert [view["state"] for view in views] == ["cancelled"]


# ---------------------------------------------------------------------------------------- events


def test_events_are_sentences_or_records(login: Cluster) -> None:
    job = login.named("vision-running")
    text = done("events", "-n", "3").stdout
    assert len(text.splitlines()) == 3
    assert text.splitlines()[-1].endswith("gave v100-3 to speech-big.")
    lines = [RecordView.model_validate_json(line) for line in done("events", job, "--json").stdout.splitlines()]
    assert [record.job for record in lines] == [job] * len(lines)
    assert done("events", "-n", "0").stdout == ""


def test_events_begin_where_they_are_told(login: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("easyscale.cli.queue.PAGE", 2)
    every = numbers("--after", "0")
    assert every == sorted(set(every))
    assert len(every) > 10
    assert numbers("--after", str(every[4])) == every[5:]
    with login.client() as client:
        assert len(every) < client.records(limit=1000).records[-1].seq  # another team's are left out


def follow(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-m", "easyscale", "events", "-f", *args), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_following_a_job_ends_with_it(login: Cluster) -> None:
    job = login.named("vision-running")
    with follow(job, "-n", "1", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["job"] == job
        until(lambda: login.desk._wakes)
        login.desk.tick()
        login.desk.put(job, "finished", step=500)
        login.desk.tick()
        told = [json.loads(line) for line in process.stdout.read().splitlines()]
        assert process.wait(20) == 0
    assert [record["kind"] for record in told] == ["job-progressed", "job-finished"]
    assert done("events", "-f", login.named("vision-finished")).exit_code == 0


def test_following_everything_ends_with_ctrl_c(login: Cluster) -> None:
    import signal

    with follow("-n", "0") as process:
        assert process.stdout is not None
        until(lambda: login.desk._wakes)
        login.desk.write("device-drain", None, "t4-3 is drained.", id="t4-3")
        assert process.stdout.readline().endswith("  t4-3 is drained.\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_bad_numbers_are_refused(login: Cluster) -> None:
    for args in (("events", "-n", "-1"), ("events", "--after", "x"), ("queue", "--limit", "0")):
        assert easyscale(*args).exit_code == 2


def test_each_command_says_that_no_service_is_known() -> None:
    commands: tuple[tuple[Any, ...], ...] = (
        ("queue",), ("describe", "a"), ("pause", "a"), ("resume", "a"), ("cancel", "a"), ("events",), ("devices",),
        ("devices", "drain", "x"), ("whatif", "--policy", "fifo"), ("team", "list"), ("user", "list"),
        ("token", "list"), ("audit",), ("whoami",), ("ps", "--service"), ("wait", "a", "--service"),
    )  # fmt: skip
    for command in commands:
        assert "No service is known" in refused(*command, kind=UsageError).what
