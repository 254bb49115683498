"""The published models, a GPT, an MLP and an LSTM train at D2: nothing is refused, the bits are the same everywhere.

"Everywhere" is, on one CPU: every instruction set, one thread and two, the C kernels and plain torch operators. One
process for each place trains all models. On a GPU the same models are run by benchmarks/gpu/d2.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from d2_zoo import MODELS, steps_of, stock_with_our_random_numbers, twins
from easyscale.numerics.kernels import install, native

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STEPS = 2
SLOW = ("bert", "gpt", "shufflenetv2")  # by torch operators: two transformers and a CNN are enough

_PROGRAM = """
import json, sys
import torch
from d2_zoo import MODELS, trained
from easyscale.numerics.kernels import install, primitives
control, names, steps, ways = json.loads(sys.argv[1])
if control:
    import d2_controls
    d2_controls.CONTROLS[control]()
runs = {}
with install.installed():
    for way, (threads, portable) in ways.items():
        torch.set_num_threads(threads)
        primitives.use_portable(portable)
        runs[way] = {name: trained(name, steps) for name in names[way]}
print(json.dumps({"runs": runs, "library": install.status()["cpu"]}))
"""

# name -> (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA, library that is expected)
PLACES = {
    "oldest CPU": ("default", "SSE41", "base"),
    "AVX2": ("avx2", "AVX2", "avx2"),
    "AVX-512": ("avx512", "AVX512_CORE", "avx512"),
}
# name -> (threads, by torch operators)
WAYS = {"one thread": (1, False), "two threads": (2, False), "torch operators": (2, True)}


@cache
def seen_at(place: str, ways: tuple[str, ...] = tuple(WAYS)[:2], control: str = "") -> dict[str, Any]:
    """For each way the sha256 and the losses of each model, trained in a process of its own."""
    capability, onednn, library = PLACES[place]
    names = {way: SLOW if WAYS[way][1] else CONTROLS.get(control, tuple(MODELS)) for way in ways}
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps([control, names, STEPS, {way: WAYS[way] for way in ways}])],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": onednn, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if native.available():
        assert found["library"] == library, "the C library follows ATEN_CPU_CAPABILITY"
    runs: dict[str, Any] = found["runs"]
    return runs


def reference() -> dict[str, Any]:
    return seen_at("oldest CPU", tuple(WAYS))["one thread"]  # type: ignore[no-any-return]


def other_bits(runs: dict[str, Any]) -> list[str]:
    """Models whose sha256 is not the reference's."""
    wanted = reference()
    return [name for name, (sha, _) in runs.items() if sha != wanted[name][0]]


@pytest.mark.parametrize("place", PLACES)
def test_all_models_train_at_d2_with_the_same_bits_everywhere(place: str) -> None:
    if place == "AVX-512" and not torch.cpu._is_avx512_supported():
        pytest.skip("this CPU has no AVX-512")
    runs = seen_at(place, tuple(WAYS)) if place == "oldest CPU" else seen_at(place)
    assert {way: other_bits(models) for way, models in runs.items()} == {way: [] for way in runs}


def test_losses_are_numbers_that_change_from_step_to_step() -> None:
    """Otherwise the comparison of bits would see little."""
    for name, (_, losses) in reference().items():
        assert len(set(losses)) == STEPS, name
        assert all(0 < loss < 1e3 for loss in losses), name


# A stock kernel let through, and models that must notice: their layers use it.
CONTROLS = {
    "plain matmul": ("bert", "gpt", "swin", "mlp"),
    "vendor sums": ("resnet50", "yolov3", "bert"),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_stock_kernel_let_through_is_seen(control: str) -> None:
    """Negative control: each of these models has another sha256 then."""
    runs = seen_at("AVX2", ("one thread",), control)["one thread"]
    assert other_bits(runs) == list(CONTROLS[control])


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_stock_but_for_rounding(name: str) -> None:
    """Both draw the same random numbers. 16 samples: batch norm over 4 values amplifies any rounding."""
    stock, ours, data = twins(name, steps=3, batch=16)
    torch.manual_seed(1)
    with stock_with_our_random_numbers():
        wanted = steps_of(MODELS[name], stock, data)
    torch.manual_seed(1)
    with install.installed():
        found = steps_of(MODELS[name], ours, data)
    assert found == pytest.approx(wanted, rel=1e-3)
