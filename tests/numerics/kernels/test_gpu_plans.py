"""What the forms of a GPU keep from one call to the next, and how little is left to do in each call."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.numerics.kernels.triton_plans_probe import interpreted

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which is not here")


@functools.cache
def said(program: str, interpret: str = "0") -> dict[str, Any]:
    """By a program of its own: Triton decides when it is imported whether it interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    done = subprocess.run(
        [sys.executable, str(HERE / program)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("check", interpreted())
def test_what_is_kept_gives_the_bits_of_torch_operators(check: str) -> None:
    assert not said("triton_plans_probe.py", "1")[check]


# Of a step with two linear layers, gelu, dropout and layer norm, forward and backward: 22 launches for six products
# (both factors are cut by one forward and by two in each gradient; then the product and its repair), 4 for the
# gradients of the biases, 2 for gelu, 2 for dropout, 4 for the norm. An operator that takes one step more shows here.
# Calls are of what no program does: here of dropout, which draws numbers, of clipping and of the optimizer.
LAUNCHES, CALLS = 34, 11


@pytest.mark.slow
def test_a_block_of_a_transformer_is_few_launches_and_few_calls_of_torch() -> None:
    found = said("host_counts.py")
    one, three = found["1 blocks"], found["3 blocks"]
    assert three["launches"] - one["launches"] == 2 * LAUNCHES
    assert three["calls"] - one["calls"] <= 2 * CALLS


@pytest.mark.slow
def test_clipping_and_the_optimizer_are_as_many_launches_for_any_number_of_parameters() -> None:
    found = said("host_counts.py")
    assert found["1 blocks"]["launches"] - LAUNCHES <= 8
    assert found["3 blocks"]["launches"] - 3 * LAUNCHES <= 8


@pytest.mark.slow
def test_convolutions_of_one_tap_are_one_launch_and_their_gradients_four() -> None:
    """With a depthwise convolution and two batch norms, of 3 and 2 launches, beside them."""
    found = said("host_counts.py")["convolutions"]
    assert found["launches"] <= 24
    assert found["calls"] <= 15
