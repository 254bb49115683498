"""Whole jobs across the nodes of a real Ray cluster end with stock DDP's bits, whatever happens to the nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from easyscale.client import Address, JobClient
from easyscale.core.requests import JobStatus
from easyscale.master.registry import JobFolder, list_jobs
from elasticity import wait_until
from raycluster import SOURCE, RayCluster

pytestmark = pytest.mark.slow
STEPS = 160
SCRIPT = f"""
import os, sys, time, torch
import torch.nn.functional as F
import easyscale as es

es.init(seed=int(sys.argv[1]))
nn = torch.nn
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
made = torch.Generator().manual_seed(1)
count = 4 * {STEPS} // 2 * 2
data = torch.utils.data.TensorDataset(torch.randn(count, 8, generator=made), torch.randint(2, (count,), generator=made))
model, optimizer, loader = es.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=2, shuffle=True))
for epoch in es.epochs(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        es.log(loss=loss)
        if not os.path.exists("finish"):
            time.sleep(0.25)  # slowly, until the test has done to the job what it wanted
"""


@dataclass
class Running:
    """`easyscale run` as a process."""

    process: subprocess.Popen[str]
    folder: JobFolder
    place: Path

    def status(self) -> JobStatus:
        return client(self.folder).status(events=50)

    def split(self) -> tuple[int, ...]:
        return self.status().split

    def scale(self, workers: int) -> None:
        client(self.folder).scale(workers=workers)

    def wait(self, condition: Callable[[JobStatus], bool]) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.said()
            return condition(self.status())

        wait_until(look, 90.0)

    def said(self) -> str:
        return (self.place / "said").read_text()

    def end(self) -> dict[str, Any]:
        (self.place / "finish").touch()
        assert self.process.wait(120) == 0, self.said()
        return report(self.place / "report.json")


def client(folder: JobFolder) -> JobClient:
    def find() -> Address | None:
        record, master = folder.record(), folder.master()
        if record is None or master is None:
            return None
        return Address(host=master.host, port=master.port, token=record.token)

    return JobClient(folder.id, find)


def report(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE)}


def command(*args: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "easyscale", *args)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path


@cache
def stock(seed: int = 3) -> str:
    """What stock DDP makes of the script, here and now."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "train.py").write_text(SCRIPT)
        (place / "finish").touch()
        args = command("run", "--engine", "ddp", "--ests", "4", "--report", "ddp.json", "train.py", str(seed))
        subprocess.run(args, cwd=place, env=environment(), check=True, capture_output=True, timeout=300)
        return str(report(place / "ddp.json")["fingerprint"])


def start(place: Path, cluster: RayCluster, *flags: str, seed: int = 3) -> Running:
    args = command(
        "run", "--ests", "4", "--backend", "ray", "--ray-address", cluster.address, "--report", "report.json",
        "--types", "v100", *flags, "train.py", str(seed),
    )  # fmt: skip
    with (place / "said").open("w") as said:
        process = subprocess.Popen(args, cwd=place, env=environment(), stdout=said, stderr=said, text=True)
    wait_until(lambda: process.poll() is not None or any(job.master() for job in list_jobs()), 60.0)
    assert process.poll() is None, (place / "said").read_text()
    return Running(process, list_jobs()[0], place)


@pytest.fixture
def running(place: Path, ray_cluster: RayCluster) -> Iterator[Callable[..., Running]]:
    jobs: list[Running] = []

    def begin(*flags: str, seed: int = 3) -> Running:
        jobs.append(start(place, ray_cluster, *flags, seed=seed))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.send_signal(signal.SIGTERM)
            job.process.wait(60)
    ray_cluster.restore()


def seats_by_node(job: Running, cluster: RayCluster) -> dict[str, int]:
    """Which worker of the plan runs on which node, by what Ray says of their keepers."""
    from easyscale.backends.ray.cluster import connect
    from easyscale.backends.ray.launcher import find

    connect(cluster.address)
    found: dict[str, int] = {}
    for record in job.folder.workers():
        process = find(record.started, watch=False)
        if process is not None:
            found[cluster.name_of(process.facts["node"])] = record.worker
            process.close()
    return found


def test_a_job_over_two_then_three_nodes_loses_one_and_grows_onto_a_new_one(
    running: Callable[..., Running], place: Path, ray_cluster: RayCluster
) -> None:
    expected = stock()
    job = running("--workers", "2")
    job.wait(lambda status: status.split == (2, 2) and status.step > 0)
    assert len(seats_by_node(job, ray_cluster)) == 2
    job.scale(3)
    job.wait(lambda status: len(status.split) == 3)
    before = seats_by_node(job, ray_cluster)
    assert len(before) == 3, "each worker on a node of its own"
    ray_cluster.remove("two")
    job.wait(lambda status: len(status.split) == 2 and any(e.what == "worker-lost" for e in status.events))
    step = job.status().step
    job.wait(lambda status: status.step > step)
    assert "two" not in seats_by_node(job, ray_cluster)
    ray_cluster.add("four", v100=1)
    job.scale(3)
    job.wait(lambda status: len(status.split) == 3)
    assert set(seats_by_node(job, ray_cluster)) == {"one", "three", "four"}
    assert not list(job.folder.path.glob("rendezvous-*")), "machines share no file to meet in"
    ended = job.end()
    assert ended["fingerprint"] == expected
    assert ended["steps"] == STEPS * 2 // 2
    lost = [event["text"] for event in ended["events"] if event["what"] == "worker-lost"]
    assert len(lost) == 1
    assert f"worker {before['two']} " in lost[0]
    assert "0 steps lost" in lost[0]


def test_a_master_that_is_killed_is_followed_by_one_that_finds_the_workers(
    running: Callable[..., Running], place: Path, ray_cluster: RayCluster
) -> None:
    expected = stock()
    job = running("--workers", "2")
    job.wait(lambda status: status.step > 2)
    workers = [record.started for record in job.folder.workers()]
    assert all(word.startswith("ray:") for word in workers)
    job.process.kill()
    job.process.wait()
    assert job.folder.state() == "masterless"
    with (place / "said").open("a") as said:
        args = command("attach", job.folder.id)
        job.process = subprocess.Popen(args, cwd=place, env=environment(), stdout=said, stderr=said, text=True)
    wait_until(lambda: "was started again" in job.said(), 60.0)
    assert [record.started for record in job.folder.workers()] == workers
    assert job.end()["fingerprint"] == expected


def test_a_master_on_the_cluster_is_started_once_and_found_again(place: Path, ray_cluster: RayCluster) -> None:
    from easyscale.backends.ray.masters import RayMasters

    argv = ("--ests", "4", "--backend", "ray", "--types", "v100", "--report", "report.json", "train.py", "3")
    folder = JobFolder.create("train", ("easyscale", "run", *argv), 4)
    masters = RayMasters(ray_cluster.address)
    given = {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"], "PYTHONPATH": str(SOURCE)}
    whole = command("run", "--internal", f"master:{folder.id}", *argv)
    begun = [masters.start(folder.id, whole, given, place, place / "master.log") for _ in range(2)]
    wait_until(lambda: folder.master() is not None, 60.0)
    record = folder.master()
    assert record is not None
    assert record.started == begun[0].started == begun[1].started
    assert record.host != "0.0.0.0"
    assert folder.state() == "running"
    wait_until(lambda: client(folder).status(events=1).step > 0, 60.0)
    found = RayMasters(ray_cluster.address).find(folder.id)
    assert found is not None
    assert found.facts["pid"] == record.pid
    (place / "finish").touch()
    wait_until(lambda: all(master.gone() for master in (found, *begun)), 120.0)
    assert 0 in {master.code for master in (found, *begun)}, (place / "master.log").read_text()
    assert masters.find(folder.id) is None
    assert folder.state() == "ended"
    assert report(place / "report.json")["fingerprint"] == stock()
    for master in (found, *begun):
        master.close()


def test_another_seed_gives_another_model_so_the_comparison_can_fail() -> None:
    assert stock(seed=3) != stock(seed=4)
