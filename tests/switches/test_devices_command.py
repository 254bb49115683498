"""The real command on declared devices, driven from outside as a service would, its master killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from easyscale.client import Address, JobClient
from easyscale.core.cluster import Slot
from easyscale.core.requests import JobStatus
from easyscale.master.registry import JobFolder
from easyscale.planner.wire import speed_of_plain
from elasticity import wait_until

pytestmark = pytest.mark.slow

SECONDS = 180
STEPS = 800
SCRIPT = """
import pathlib, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es

es.init(seed=3)
g = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(3200, 6, generator=g), torch.randint(3, (3200,), generator=g))
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, loader = es.prepare(model, optimizer, DataLoader(data, batch_size=2, shuffle=True))
for epoch in es.epochs(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        es.log(loss=loss)
        if not pathlib.Path("go").exists():
            time.sleep(0.1)
"""


def named(letters: str) -> tuple[Slot, ...]:
    return tuple(Slot(id=f"cpu-{letter}", kind="v100") for letter in letters)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@contextmanager
def started(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        (sys.executable, "-m", "easyscale", *arguments), cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def stock_sha(home: Path) -> str:
    (home / "go").touch()
    done = subprocess.run(
        (sys.executable, "-m", "easyscale", "run", "--ests", "4", "--engine", "ddp", "--report", "stock.json",
         "train.py"),
        cwd=home, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (home / "go").unlink()
    sha = json.loads((home / "stock.json").read_text())["fingerprint"]
    assert isinstance(sha, str)
    return sha


class Job:
    """As a service sees it: a folder with a name of its own, and whatever answers there."""

    def __init__(self, slots: tuple[Slot, ...]) -> None:
        settings = {"slots": [asdict(slot) for slot in slots], "kinds": ["v100", "t4"]}
        self.folder = JobFolder.create("train", ("submitted",), 4, settings, id="job-1.1")
        self.client = JobClient(self.folder.id, self._find)

    def _find(self) -> Address | None:
        master, record = self.folder.master(), self.folder.record()
        assert record is not None
        return None if master is None else Address(host=master.host, port=master.port, token=record.token)

    def sits(self, letters: str) -> JobStatus:
        """It trains there, says so, and each worker's process was told so and sees no GPU."""
        wait_until(lambda: self.folder.master() is not None, SECONDS)
        ids = {slot.id for slot in named(letters)}

        def there(now: JobStatus) -> bool:
            return now.state == "training" and {seat.slot for seat in now.seats} == ids == set(now.held)

        now = self.client.wait_until(there, SECONDS)
        for seat in now.seats:
            environment = Path(f"/proc/{seat.pid}/environ").read_bytes().split(b"\0")
            assert b"CUDA_VISIBLE_DEVICES=" in environment
            told = next(entry for entry in environment if entry.startswith(b"EASYSCALE_WORKER="))
            assert f'"id": "{seat.slot}"'.encode() in told
            assert b'"device": "cpu"' in told
        return now


def test_a_submitted_job_goes_where_it_is_told_loses_a_worker_and_its_master_and_ends_with_the_same_sha(
    home: Path,
) -> None:
    sha = stock_sha(home)
    job = Job(named("ab"))
    flags = ("--ests", "4", "--rebalance", "--log-limit", "10", "--process-limit", "100", "--file-limit", "1024")
    with started(home, "run", "--internal", f"master:{job.folder.id}", *flags, "train.py") as process:
        job.sits("ab")
        job.client.scale(slots=named("bc"))
        before = job.sits("bc")
        job.client.scale(slots=named("c"))
        now = job.sits("c")
        assert now.seats[0].worker in {seat.worker for seat in before.seats}, "who sat there stayed"
        assert now.total == STEPS
        job.client.scale(slots=named("abcd"))
        now = job.sits("abcd")
        wait_until(lambda: len(job.client.status().pauses) == 3, SECONDS)  # told with the step after it
        victim = next(seat for seat in now.seats if seat.slot == "cpu-d")
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        job.sits("abc")
        process.kill()  # the master; its workers train on
        process.wait()
    with started(home, "attach", job.folder.id) as process:
        wait_until(lambda: (master := job.folder.master()) is not None and master.pid == process.pid, SECONDS)
        job.sits("abc")
        job.client.scale(slots=named("bd"))
        job.sits("bd")
        now = job.client.wait_until(lambda now: now.model is not None, SECONDS)
        assert now.model is not None
        speed = speed_of_plain(now.model["speed"])
        assert speed.rate({"v100": 2}) > 0
        assert speed.rate({"t4": 2}) > 0
        (home / "go").touch()
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    result = job.folder.result()
    assert result is not None
    assert (result.steps, result.fingerprint) == (STEPS, sha), output
