"""The service and its jobs as processes: killed, stopped, misused. What a job ends with is always stock DDP's bits."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from easyscale.service.models import JobLimits
from easyscale.service.store import open_store
from service.real import Service, stock, until
from service.training import SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NOSY = """
import json, os, pathlib, sys
pathlib.Path(sys.argv[1]).write_text(json.dumps(dict(os.environ)))
sys.argv = sys.argv[:1]
"""
LOUD = """
import sys
for number in range(40000):
    print(f"line {number} " + "x" * 60)
sys.stdout.flush()
"""
FORKING = """
import subprocess, sys, time
import easyscale as es
es.init(seed=0)
for _ in range(200):
    subprocess.Popen(["sleep", "300"])
    time.sleep(0.02)
time.sleep(60)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "train.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, "cpu:3") as service:
        yield service


def records(service: Service, kind: str) -> list[tuple[str | None, dict[str, object]]]:
    with open_store(service.data) as store:
        return [(record.job, dict(record.body)) for record in store.records() if record.kind == kind]


def test_the_service_is_killed_again_and_again_while_jobs_run(service: Service, script: Path) -> None:
    """No job is lost, none is started twice, and the bits are those of stock DDP."""
    args = ["--epochs", "2", "--sleep", "0.05"]
    jobs = []
    dice = random.Random(6)
    for number in range(3):
        jobs.append(service.submit(script, args, name=f"job{number}", ests=2, max_workers=1 + number % 2))
        time.sleep(dice.uniform(0.0, 1.5))
        service.kill()
        service.start()
    for _ in range(2):
        time.sleep(dice.uniform(0.5, 3.0))
        service.kill()
        service.start()
    views = [service.finished(job) for job in jobs]
    expected = stock(script, 2, args, service.environment)
    assert {view.fingerprint for view in views} == {expected}
    starts = [(job, body["run"]) for job, body in records(service, "job-starting")]
    assert len(starts) == len(set(starts))
    folders = {path.name for path in (service.data / "runs" / "easyscale" / "jobs").iterdir()}
    assert folders == {f"{job}.{run}" for job, run in starts}
    for folder in folders:  # one master each: it has written its heading once
        journal = service.data / "runs" / "easyscale" / "jobs" / folder / "journal.jsonl"
        assert sum('"first_step"' in line for line in journal.read_text().splitlines()) == 1


def test_a_job_is_paused_resumed_and_survives_the_service(service: Service, script: Path, tmp_path: Path) -> None:
    """Its devices go to another one meanwhile; a service that is ended leaves both alone, and finds them again."""
    args = ["--epochs", "3", "--sleep", "0.05"]
    one = service.submit(script, args, name="one", ests=3)
    service.until(one, lambda view: view.step >= 3)
    service.client.pause(one)
    other = service.submit(script, args, name="other", ests=3)
    service.until(one, lambda view: view.state == "paused")
    service.until(other, lambda view: view.step >= 1 and len(view.held) == 3)
    service.client.resume(one)
    assert service.stop() == 0
    assert service.pids(), "jobs go on"
    service.start()
    assert service.until(other, lambda view: view.state == "running" or view.ended is not None).run == 1
    expected = stock(script, 3, args, service.environment)
    assert service.finished(one).fingerprint == service.finished(other).fingerprint == expected
    assert service.client.job(one).run >= 2


def test_a_job_sees_no_secret_of_the_service_and_has_a_temporary_folder(service: Service, script: Path) -> None:
    told = script.parent / "environment.json"
    nosy = script.parent / "nosy.py"
    nosy.write_text(NOSY + SCRIPT)
    token = service.connection["token"]
    job = service.submit(nosy, [str(told)], ests=1, env={"MINE": "here"})
    until(told.is_file, 120, service.said)
    seen = command_lines()
    view = service.finished(job)
    environment = json.loads(told.read_text())
    assert environment["MINE"] == "here"
    assert "SECRET_OF_THE_SERVICE" not in environment
    assert not [value for value in environment.values() if token in value or "hunter2" in value]
    assert not [line for line in seen if token in line or "hunter2" in line]
    assert Path(environment["TMPDIR"]).is_relative_to(service.data / "jobs" / job)
    assert view.fingerprint
    assert token not in service.said()


def test_a_flood_of_output_is_trimmed_and_a_flood_of_processes_is_ended(service: Service, script: Path) -> None:
    """Both have a quiet neighbour that goes on."""
    loud, forking = script.parent / "loud.py", script.parent / "forking.py"
    loud.write_text(LOUD + SCRIPT)
    forking.write_text(FORKING)
    quiet = service.submit(script, ["--epochs", "2", "--sleep", "0.05"], name="quiet", ests=1)
    flood = service.submit(loud, ["--epochs", "1", "--sleep", "0.02"], ests=1, limits=JobLimits(log_mb=0.5))
    forks = service.submit(forking, ests=1, limits=JobLimits(processes=60))
    failed = service.until(forks, lambda view: view.ended is not None)
    assert failed.state == "failed"
    assert "may run 60" in str(failed.error)
    service.finished(flood)
    (log,) = [file for file in service.client.logs(flood) if file.stream == "out"]
    assert log.size > 2_000_000
    files = [*service.data.glob(f"runs/easyscale/jobs/{flood}.1/logs/worker-0.out")]
    assert files[0].stat().st_size < 1_000_000
    part = service.client.log(flood, run=1, worker=log.worker, stream="out", start=0, most=100_000)
    assert part.start > 0
    assert re.match(r"line \d+ x+\n", part.text)
    assert service.finished(quiet).fingerprint
    assert not [line for line in command_lines() if line.startswith("sleep 300")]


def test_a_second_service_a_port_in_use_and_a_store_of_tomorrow(service: Service, tmp_path: Path) -> None:
    """Each is said in three parts, and harms nothing."""
    second = service.run("up", "--port", "0", "--devices", "cpu:1", ok=False)
    assert second.returncode != 0
    assert "now:" in second.stderr
    assert service.client.ready()
    port = int(service.connection["url"].rpartition(":")[2])
    elsewhere = {**service.environment, "EASYSCALE_DATA": str(tmp_path / "other")}
    taken = subprocess.run(
        (sys.executable, "-m", "easyscale", "up", "--port", str(port)), env=elsewhere, text=True, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert taken.returncode != 0
    assert str(port) in taken.stderr
    assert "now:" in taken.stderr
    assert service.stop() == 0
    (file,) = service.data.glob("*.db")
    with sqlite3.connect(file) as store:
        store.execute("UPDATE easyscale_version SET version_num = 'tomorrow'")
    store.close()
    newer = service.run("up", "--port", "0", ok=False)
    assert newer.returncode != 0
    assert "newer" in newer.stderr
    with sqlite3.connect(file) as store:
        assert store.execute("SELECT version_num FROM easyscale_version").fetchall() == [("tomorrow",)]
    store.close()


def test_from_nothing_to_a_first_finished_job(service: Service, script: Path) -> None:
    done = service.run("submit", "--ests", "2", "--name", "first", "--workdir", str(script.parent), "--", "train.py",
                       "--epochs", "1")  # fmt: skip
    (job,) = re.findall(r"first-[0-9a-f]{6}", done.stdout)[:1]
    service.run("wait", job)
    shown = json.loads(service.run("describe", job, "--json").stdout)
    assert shown["state"] == "finished"
    assert shown["fingerprint"]


def command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found
