"""The real command and workers: the master is killed and restarted by `--restart-master`, or taken over by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from easyscale.master.registry import JobFolder, list_jobs
from elasticity import wait_until

pytestmark = pytest.mark.slow

SECONDS = 120
SCRIPT = """
import sys, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es

es.init(seed=3)
g = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(160, 6, generator=g), torch.randint(3, (160,), generator=g))
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, loader = es.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
for epoch in es.epochs(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        es.log(loss=loss)
        time.sleep(float(sys.argv[1]))
"""
STEPS = 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        (sys.executable, "-m", "easyscale", *arguments), cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        for job in list_jobs():
            for worker in job.live_workers():
                os.kill(worker.pid, signal.SIGKILL)


def report(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((folder / name).read_text()))


def judge(folder: Path) -> dict[str, Any]:
    """The same script under stock DDP."""
    with started(
        folder, "run", "--ests", "4", "--engine", "ddp", "--report", "stock.json", "train.py", "0"
    ) as process:  # fmt: skip
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    return report(folder, "stock.json")


def job_of() -> JobFolder:
    wait_until(lambda: any(job.master() is not None for job in list_jobs()), SECONDS)
    (job,) = list_jobs()
    return job


def steps_told(job: JobFolder) -> int:
    """From the master's journal."""
    return job.journal.read_text().count('"kind":"step"') if job.journal.exists() else 0


def kill_master(job: JobFolder) -> int:
    master = job.master()
    assert master is not None
    os.kill(master.pid, signal.SIGKILL)
    return master.pid


def test_restart_master(folder: Path) -> None:
    expected = judge(folder)
    with started(
        folder, "run", "--ests", "4", "--workers", "2", "--restart-master", "--report", "ours.json", "train.py", "0.1"
    ) as process:
        job = job_of()
        wait_until(lambda: steps_told(job) > 4, SECONDS)
        workers = {worker.pid for worker in job.live_workers()}
        former = kill_master(job)
        wait_until(lambda: (now := job.master()) is not None and now.pid != former, SECONDS)
        assert {worker.pid for worker in job.live_workers()} == workers, "the same workers"
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    ours = report(folder, "ours.json")
    assert ours["fingerprint"] == expected["fingerprint"], output
    assert ours["losses"] == expected["losses"]
    assert len(ours["losses"]) == STEPS
    assert ours["lost_steps"] == 0
    assert [event["what"] for event in ours["events"]].count("master-restarted") == 1
    assert "another one takes over" in output


def test_attach_after_a_while(folder: Path) -> None:
    """The master is gone, a worker dies too, and then someone comes."""
    expected = judge(folder)
    with started(
        folder, "run", "--ests", "4", "--workers", "2", "--report", "ours.json", "train.py", "0.1"
    ) as process:  # fmt: skip
        job = job_of()
        wait_until(lambda: steps_told(job) > 4, SECONDS)
        kill_master(job)
        process.wait(SECONDS)
        assert job.state() == "masterless"
        first, second = sorted(job.live_workers(), key=lambda worker: worker.worker)
        os.kill(second.pid, signal.SIGKILL)
        with started(folder, "attach", job.id) as other:
            output, _ = other.communicate(timeout=SECONDS)
    assert other.returncode == 0, output
    ours = report(folder, "ours.json")
    assert ours["fingerprint"] == expected["fingerprint"], output
    assert [row[:2] for row in ours["losses"].values()] == [row[:2] for row in expected["losses"].values()]
    assert ours["lost_steps"] == 0
    assert f"worker {second.worker} (pid {second.pid}) ended" in output
    assert first.pid != second.pid
