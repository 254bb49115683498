"""A job on GPUs by name, as the service gives them: found through NVML, handed to workers by UUID, changed in flight.

The one GPU stands for two devices. Run by pytest with `-m gpu`, or as a script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
sys.path[:0] = [str(SRC)]

# ruff: noqa: E402  the line above comes first

from easyscale.client import Address, JobClient, UnreachableError
from easyscale.core.cluster import Slot
from easyscale.core.requests import JobStatus
from easyscale.master.registry import JobFolder
from easyscale.service.devices import discover

pytestmark = pytest.mark.gpu

SCRIPT = """
import os, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import easyscale as es

es.init(seed=3)
g = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(960, 3, 8, 8, generator=g), torch.randint(3, (960,), generator=g))
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2))
model = model.append(nn.Linear(288, 3)).to(es.device())
assert es.device().type == "cuda", es.device()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, loader = es.prepare(model, optimizer, DataLoader(data, batch_size=2, shuffle=True))
for epoch in es.epochs(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(es.device())), y.to(es.device()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        es.log(loss=loss)
        time.sleep(float(os.environ.get("PAUSE", "0")))
"""


def slots() -> tuple[Slot, Slot]:
    (gpu,) = [found for found in discover() if found.slot.uuid is not None]
    assert gpu.memory_gb is not None
    assert gpu.memory_gb > 8
    return replace(gpu.slot, id="first"), replace(gpu.slot, id="second")


def trained(home: Path) -> tuple[str, str, list[tuple[str | None, ...]], str]:
    """The fingerprints of stock DDP and of a job that moved, the devices of each plan, and the type's name."""
    (home / "train.py").write_text(SCRIPT)
    runtime = home / "runtime"
    runtime.mkdir(mode=0o700)
    environment = {**os.environ, "PYTHONPATH": str(SRC), "XDG_RUNTIME_DIR": str(runtime)}
    easyscale = (sys.executable, "-m", "easyscale", "run", "--ests", "4", "--device", "cuda", "--quiet")
    subprocess.run((*easyscale, "--engine", "ddp", "--report", "stock.json", "train.py"), cwd=home, env=environment, check=True)  # noqa: E501
    first, second = slots()
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    folder = JobFolder.create("job", ("test",), 4, {"slots": [asdict(first)]}, id="job-1", cwd=home)
    process = subprocess.Popen(
        (*easyscale, "--internal", "master:job-1", "--workers", "1:4", "--report", "ours.json", "train.py"), cwd=home,
        env={**environment, "PAUSE": "0.02"},
    )  # fmt: skip
    seen: list[tuple[str | None, ...]] = []
    for wanted in ((first,), (first, second), (second,)):
        if wanted != (first,):
            client(folder).scale(slots=wanted)
        seen.append(tuple(seat.slot for seat in settled(folder, len(wanted)).seats))
    assert process.wait(300) == 0
    stock, ours = (json.loads((home / f"{name}.json").read_text())["fingerprint"] for name in ("stock", "ours"))
    return stock, ours, seen, first.kind


def client(folder: JobFolder) -> JobClient:
    def find() -> Address | None:
        record, master = folder.record(), folder.master()
        return Address(host=master.host, port=master.port, token=record.token) if record and master else None

    return JobClient(folder.id, find)


def settled(folder: JobFolder, workers: int) -> JobStatus:
    ends = time.monotonic() + 120
    while time.monotonic() < ends:
        try:
            status = client(folder).status()
        except UnreachableError:
            time.sleep(0.2)
            continue
        if status.state == "training" and len(status.seats) == workers and status.wanted is None and status.step > 2:
            return status
        time.sleep(0.1)
    raise AssertionError("the plan did not come")


def test_a_job_moves_over_gpus_by_name(tmp_path: Path) -> None:
    stock, ours, seen, kind = trained(tmp_path)
    assert stock == ours
    assert seen == [("first",), ("first", "second"), ("second",)]
    assert kind


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        stock, ours, seen, kind = trained(Path(folder))
    print(f"type {kind}: stock {stock[:16]}, ours {ours[:16]}, plans {seen}, same: {stock == ours}")
    sys.exit(stock != ours)
