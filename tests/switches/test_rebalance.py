"""A worker that is slower than its peer loses ESTs to it while the job trains: another plan, the same bits."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from elasticity import spec_here
from switches.stage import PICTURES, judge, play, stock

LONG = replace(PICTURES, epochs=12)  # 48 global steps
SLEEP = 0.05  # seconds; many times a local step of this model


def slow_on_worker_1(output: Any, y: Any) -> Any:
    if torch.is_grad_enabled() and spec_here().worker == 1:
        time.sleep(SLEEP)
    return LONG.loss(output, y)


@pytest.mark.slow
def test_a_slow_worker_hands_an_est_over_and_the_bits_stay(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    played = play(
        replace(LONG, loss=slow_on_worker_1), (2, 2), limits=Limits(rebalance=True), outputs=Outputs(report=report)
    )
    judge(played, stock("pictures, 12 epochs", LONG, 4), losses=0)
    assert played.splits == [(2, 2), (3, 1)], played.run.text
    (said,) = played.run.happened("rebalance")
    assert said.startswith("worker 1 is ")
    assert "x slower than planned; ESTs move: 3+1 instead of 2+2" in said
    speeds = json.loads(report.read_text())["speeds"]
    assert speeds["workers"]["1"]["seconds"] == pytest.approx(SLEEP, rel=0.5)
    assert speeds["workers"]["0"]["seconds"] < SLEEP / 1.5  # it has waited for the other, and does not count that
    assert speeds["kinds"]["cpu"]["steps"] > 0
