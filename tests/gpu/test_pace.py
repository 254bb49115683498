"""What the master learns of workers on a GPU: the device's own time, and ESTs that leave a worker whose device is slow.

Two workers share the one GPU. Worker 1 asks it for more work in each local step and never waits for it, so its host
clock shows nothing: only the events in the stream do. Run by pytest with `-m gpu`, or as a script.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# ruff: noqa: E402  the two lines above come first

from cluster import run_stock
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from elasticity import run_with_master, spec_here
from workloads import CNN, by_hand, with_easyscale

pytestmark = pytest.mark.gpu

LONG = replace(CNN, device="cuda", epochs=30)
CYCLES = 200_000_000  # of the device's clock: some 0.1 s


def slow_on_worker_1(output: Any, y: Any) -> Any:
    if torch.is_grad_enabled() and spec_here().worker == 1:
        torch.cuda._sleep(CYCLES)
    return LONG.loss(output, y)


def played() -> tuple[bool, list[tuple[int, ...]], dict[str, Any]]:
    """Whether the bits are stock DDP's, the plans, and the speeds of the report."""
    judge = run_stock(by_hand(LONG), 4)["fingerprint"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        run = run_with_master(
            with_easyscale(replace(LONG, loss=slow_on_worker_1)), (2, 2), device="cuda", timeout=60,
            limits=Limits(rebalance=True), outputs=Outputs(report=report),
        )  # fmt: skip
        speeds = json.loads(report.read_text())["speeds"]
    return run.fingerprint == judge, [plan.split for _, plan in run.state.plans], speeds


def test_a_slow_device_is_seen_and_hands_an_est_over() -> None:
    same, plans, speeds = played()
    assert same
    assert plans == [(2, 2), (3, 1)]
    workers = speeds["workers"]
    assert workers["1"]["seconds"] > 3 * workers["0"]["seconds"]


if __name__ == "__main__":
    same, plans, speeds = played()
    print(f"bits of stock DDP: {same}; plans {plans}; device {torch.cuda.get_device_name()}")
    print(json.dumps(speeds, indent=1))
    sys.exit(not same)
