"""The eight published models, small: every plan and the published schedule end with the bits of hand-written DDP.

At full size the same is shown on a GPU by benchmarks/gpu/zoo_parity.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.zoo import MODELS
from benchmarks.zoo.stock import train as by_hand
from benchmarks.zoo.train import train

import torchvision_shim  # noqa: F401  before anything imports torchvision
from cluster import run_job, run_reference, run_stock
from e2e.test_checkpoints import in_stages
from e2e.test_controls import without_rank_0_buffers, without_torch_state

pytestmark = pytest.mark.slow

STEPS = 6  # in two epochs of three
PLANS = {"1": (4,), "2": (2, 2), "3-uneven": (2, 1, 1), "4": (1, 1, 1, 1)}
# 4 workers, then 2, then 3 of which one has two ESTs; both changes lie inside of an epoch.
SCHEDULE: list[tuple[tuple[int, ...], int | None]] = [((1, 1, 1, 1), 2), ((2, 2), 4), ((2, 1, 1), None)]


@pytest.fixture(autouse=True, scope="module")
def imported_once() -> None:
    """torchvision and transformers in this process, not again in each forked one."""
    for work in MODELS.values():
        work.build("small")


@cache
def stock(name: str) -> dict[str, Any]:
    """Its losses must be numbers that differ between ranks and steps; otherwise the comparison would see little."""
    result = run_stock(partial(by_hand, MODELS[name], "small", STEPS, "cpu"), 4)
    losses = [loss for row in result["losses"].values() for loss in row]
    assert len(losses) == 4 * STEPS
    assert all(0 < loss < 1e6 for loss in losses)
    assert len(set(losses)) > len(losses) // 2
    return result


def with_easyscale(name: str, sabotage: Callable[[], None] = lambda: None) -> Callable[[], None]:
    def body() -> None:
        sabotage()
        train(MODELS[name], "small", STEPS)

    return body


def is_stocks(result: dict[str, Any], name: str) -> bool:
    """The sha256, and each loss of each EST at each step."""
    expected = stock(name)
    return bool(result["fingerprint"] == expected["fingerprint"] and result["losses"] == expected["losses"])


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_has_stock_ddps_bits_on_every_plan(name: str, tmp_path: Path) -> None:
    """All plans of a model in one test: stock DDP trains it once."""
    same = {plan: is_stocks(run_job(with_easyscale(name), PLANS[plan]), name) for plan in PLANS}
    same["published schedule"] = is_stocks(in_stages(with_easyscale(name), SCHEDULE, tmp_path), name)
    assert [plan for plan, agrees in same.items() if not agrees] == []


def test_the_ddp_engine_runs_the_same_script() -> None:
    assert is_stocks(run_reference(with_easyscale("neumf"), 4), "neumf")


def test_the_training_script_runs_under_the_real_command(tmp_path: Path) -> None:
    """NeuMF, because a process without the tests' shim may not be able to import torchvision."""
    script = Path(__file__).parents[2] / "benchmarks" / "zoo" / "train.py"
    options = ("--model", "neumf", "--size", "small", "--steps", str(STEPS))
    command = (sys.executable, "-m", "easyscale", "run", "--ests", "4", "--workers", "2", "-q", str(script), *options)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert stock("neumf")["fingerprint"] in done.stdout


CONTROLS = {
    "random states of ESTs: flipped pictures": ("shufflenetv2", without_torch_state),
    "random states of ESTs: dropout": ("bert", without_torch_state),
    "random states of ESTs: masked tokens": ("electra", without_torch_state),
    "rank 0's buffers": ("resnet50", without_rank_0_buffers),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_without_one_ingredient_a_published_models_bits_differ(control: str) -> None:
    name, sabotage = CONTROLS[control]
    result = run_job(with_easyscale(name, sabotage), (4,))
    assert result["fingerprint"] != stock(name)["fingerprint"]
