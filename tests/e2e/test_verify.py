"""The real command: `python -m easyscale verify` on scripts that keep the promise, break it, or are broken.

Two ESTs, two steps and one plan each: what is tested is the command, not the promise.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from easyscale.master.verify.certificate import checksum

pytestmark = pytest.mark.slow
SECONDS = 300

SCRIPT = """
import os, random, sys
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
import easyscale as es

es.init(seed=0)
g = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(48, 8, generator=g), torch.randint(3, (48,), generator=g))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.bn, self.d, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3)

    def forward(self, x):
        return self.b(self.d(torch.relu(self.bn(self.a(x)))))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
{before}
model, optimizer, loader = es.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
for epoch in es.epochs(3):
    for x, y in loader:
        {body}
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        es.log(loss=loss)
"""


def script(folder: Path, before: str = "", body: str = "pass") -> str:
    """Returns the line of the body, as `file:line`."""
    text = SCRIPT.format(before=before, body=body)
    (folder / "train.py").write_text(text)
    return f"train.py:{text.splitlines().index('        ' + body) + 1}"


def verify(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "easyscale", "verify", "--device", "cpu", *options)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


PLANS = ("--ests", "2", "--steps", "2", "--plan", "1")


def certificate_of(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "certificate.json").read_text())
    assert checksum(facts) == facts["checksum"]
    return facts


def test_a_script_that_keeps_the_promise(tmp_path: Path) -> None:
    script(tmp_path)
    done = verify(tmp_path, *PLANS, "--json", "--certificate", "certificate.json", "train.py")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts == certificate_of(tmp_path)
    assert facts["verdict"] == "same"
    assert [run["verdict"] for run in facts["runs"]] == ["reference", "same", "same"]
    assert len({run["fingerprints"]["1"] for run in facts["runs"]}) == 1
    assert facts["steps"] == 2
    assert facts["diagnosis"] is None
    assert facts["depends_on"] == []


def test_state_that_the_ests_of_a_worker_share(tmp_path: Path) -> None:
    line = script(tmp_path, "calls = [0]", "calls[0] += 1; x = x * (1 + 0.01 * calls[0])")
    done = verify(tmp_path, *PLANS, "--certificate", "certificate.json", "train.py")
    assert done.returncode == 1, done.stderr
    finding = certificate_of(tmp_path)["diagnosis"]["finding"]
    assert (finding["kind"], finding["step"], finding["est"], finding["line"]) == ("value", 0, 1, line)
    assert finding["operator"] == "aten.mul.Tensor"
    for word in ("NO", "global step", "EST", "aten.mul.Tensor", line, "es.register"):
        assert word in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_generator_without_a_seed(tmp_path: Path) -> None:
    script(tmp_path, "rng = np.random.default_rng()", "x = x + float(rng.normal())")
    done = verify(tmp_path, *PLANS, "--certificate", "certificate.json", "train.py")
    assert done.returncode == 1, done.stderr
    lines = (tmp_path / "train.py").read_text().splitlines()
    causes = certificate_of(tmp_path)["diagnosis"]["causes"]
    assert [(c["name"], c["shown"]) for c in causes] == [("a generator without a seed", True)]
    assert causes[0]["places"] == [f"train.py:{lines.index('rng = np.random.default_rng()') + 1}"]
    assert "Cause: a generator without a seed at train.py:" in done.stdout


def test_the_order_of_a_folder_is_a_dependence_and_with_strict_a_failure(tmp_path: Path) -> None:
    before = "os.makedirs('d', exist_ok=True); [open(f'd/{n}', 'w').close() for n in 'abc']; first = os.listdir('d')[0]"
    script(tmp_path, before, "x = x * (1 + ord(first))")
    done = verify(tmp_path, *PLANS, "--strict", "--certificate", "certificate.json", "train.py")
    assert done.returncode == 1, done.stderr
    facts = certificate_of(tmp_path)
    assert (facts["verdict"], [cause["name"] for cause in facts["depends_on"]]) == ("same", ["the order of a folder"])
    assert "depends on: the order of a folder (train.py:" in done.stdout


PLAIN = """
import random
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(64, 8)
for i in range(4):
    keep = {keep}
    loss = model(x[keep]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
NO_OPTIMIZER = """
import torch

torch.manual_seed(0)
x = torch.randn(8, 8)
scratch = torch.empty(8, 8)
scratch[torch.arange(8).flip(0)] = x
print((x @ scratch).sum().item(){more})
"""


def test_two_plain_runs_of_a_reproducible_script(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN.format(keep="list(range(32))"))
    done = verify(tmp_path, "--twice", "--steps", "3", "--json", "plain.py")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["mode"], facts["verdict"], facts["steps"]) == ("twice", "same", 3)


def test_two_plain_runs_of_a_script_that_draws_without_a_seed(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN.format(keep="random.sample(range(64), 32) if i else list(range(32))"))
    done = verify(tmp_path, "--twice", "--steps", "3", "--certificate", "certificate.json", "plain.py")
    assert done.returncode == 1, done.stderr
    diagnosis = certificate_of(tmp_path)["diagnosis"]
    assert diagnosis["step"] == 1
    assert [cause["name"] for cause in diagnosis["causes"]] == ["a generator without a seed"]


UNSEEDED = ", torch.rand(3, generator=torch.Generator().manual_seed(torch.Generator().seed() % 9999)).sum().item()"


@pytest.mark.parametrize(("more", "code"), [("", 0), (UNSEEDED, 1)], ids=["same", "different"])
def test_a_plain_script_without_an_optimizer(more: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(NO_OPTIMIZER.format(more=more))
    done = verify(tmp_path, "--twice", "--json", "plain.py")
    assert done.returncode == code, done.stdout + done.stderr
    assert json.loads(done.stdout)["steps"] == 0


def test_planted_differences_are_found(tmp_path: Path) -> None:
    script(tmp_path)
    done = verify(tmp_path, "--ests", "2", "--steps", "2", "--negative-control", "--json", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["found_all"] is True
    assert [control["plant"]["kind"] for control in facts["controls"]] == ["operator", "random", "batch"]


def test_a_script_that_raises_is_shown_once_and_without_our_frames(tmp_path: Path) -> None:
    script(tmp_path, body="raise ValueError('the data are broken')")
    done = verify(tmp_path, *PLANS, "train.py")
    assert done.returncode == 2
    shown = done.stdout + done.stderr
    assert shown.count("ValueError: the data are broken") == 1
    assert shown.count("Traceback") == 1
    assert "easyscale/runtime" not in shown


def test_a_script_that_trains_nothing_has_nothing_to_prove(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    done = verify(tmp_path, *PLANS, "train.py")
    assert done.returncode == 2, done.stdout
    assert "nothing to compare" in done.stdout
    assert "Same bits" not in done.stdout


def test_what_cannot_be_run_is_refused_at_once(tmp_path: Path) -> None:
    assert verify(tmp_path, "missing.py").returncode == 2
    script(tmp_path)
    for options in (("--twice", "--plan", "1"), ("--ests", "2", "--plan", "5"), ("--ests", "2", "--plan", "1+2")):
        done = verify(tmp_path, *options, "train.py")
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_ctrl_c_ends_the_whole_verification_and_all_its_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\npathlib.Path(f'pid-{os.getpid()}').touch()\ntime.sleep(200)\n"
    )
    command = (sys.executable, "-m", "easyscale", "verify", "--ests", "2", "--device", "cpu", "train.py")
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + SECONDS
    while len(list(tmp_path.glob("pid-*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    for path in tmp_path.glob("pid-*"):
        assert not Path("/proc", path.name.removeprefix("pid-")).exists()
