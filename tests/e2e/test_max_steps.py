"""`--max-steps N`: the job ends after N global steps, wherever the script stands, with the bits of a longer run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from cluster import run_job, run_reference
from workloads import CNN, MLP, Vectors, mlp, with_easyscale

ESTS = 3


def run(engine: str, train: Callable[[], Any], **spec: Any) -> Any:
    if engine == "ddp":
        return run_reference(train, ESTS, **spec)
    return run_job(train, (2, 1) if engine == "two workers" else (3,), **spec)


ENGINES = ["ddp", "one worker", "two workers"]


@cache
def whole(engine: str) -> Any:
    return run(engine, with_easyscale(CNN), fingerprint_every=1)


# 45 samples for 3 ESTs in batches of 4: 4 steps in each of the 2 epochs.
@pytest.mark.parametrize("steps", [1, 3, 4, 5, 8, 99])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_model_is_that_of_a_longer_run_after_so_many_steps(engine: str, steps: int) -> None:
    job = run(engine, with_easyscale(CNN), max_steps=steps)
    expected = min(steps, whole(engine)["steps"])
    assert whole(engine)["steps"] == 8
    assert job["steps"] == expected
    assert len(job["losses"]) == expected
    assert job["fingerprint"] == whole(engine)["step_fingerprints"][str(expected)]
    assert job["code"] == 0


def leaves_its_loop(at: int, then: str) -> Callable[[], Any]:
    """Breaks out of its loop with global step `at`, and goes on in the next epoch or ends."""

    def train() -> Any:
        import easyscale as es

        es.init(seed=7)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(), batch_size=4, shuffle=True))
        for _ in es.epochs(2):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                es.log(loss=loss)
                if loader.batch_index + 1 == at and loader.completes_step:
                    break
            if then == "end":
                break
        return {"reached": "the end"}

    return train


@pytest.mark.parametrize("then", ["next epoch", "end"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_script_that_leaves_its_loop_at_that_very_step(engine: str, then: str) -> None:
    job = run(engine, leaves_its_loop(3, then), max_steps=3, fingerprint_every=1)
    longer = run(engine, leaves_its_loop(3, "next epoch"), fingerprint_every=1)
    assert job["steps"] == 3
    assert sorted(job["step_fingerprints"]) == ["1", "2", "3"]
    assert job["fingerprint"] == longer["step_fingerprints"]["3"]
    assert longer["steps"] == 6


@pytest.mark.parametrize("engine", ENGINES)
def test_an_accumulation_window_is_one_step(engine: str) -> None:
    case = replace(MLP, accumulate=2, batch=2)
    job = run(engine, with_easyscale(case), max_steps=2)
    assert job["steps"] == 2
    assert job["fingerprint"] == run(engine, with_easyscale(case), fingerprint_every=1)["step_fingerprints"]["2"]


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import easyscale as es

es.init(seed=0)
model = nn.Linear(3, 1)
data = TensorDataset(torch.randn(24, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, loader = es.prepare(model, optimizer, DataLoader(data, batch_size=2))
for _ in es.epochs(3):
    for (x,) in loader:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print("not reached")
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["est", "ddp"])
def test_the_option_of_the_command(engine: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = (
        sys.executable, "-m", "easyscale", "run", "--ests", "2", "--engine", engine, "--device", "cpu",
        "--max-steps", "4", "--report", "report.json", "train.py",
    )  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["steps"] == 4
    assert "not reached" not in done.stdout
