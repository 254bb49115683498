"""Whole training runs at D2: one sha256 under every instruction set, thread count and implementation: the golden one.

The runs are those of tests/d2_runs.py: a CNN, a transformer, a recommender and an RNN, with SGD and AdamW, in fp32 and
under bf16 autocast. The golden fingerprints are in tests/golden/d2.json, with the device and command that made them.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from d2_runs import RUNS
from easyscale.numerics.kernels import install

TESTS = Path(__file__).parents[2]
GOLDEN = json.loads((TESTS / "golden" / "d2.json").read_text())

_PROGRAM = """
import json, sys
import torch
from d2_runs import fingerprints
from easyscale.numerics.kernels import install, primitives
threads, implementation, control = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(threads)
primitives.use_portable(implementation == "portable")
if control != "none":
    import d2_controls
    d2_controls.CONTROLS[control]()
with install.installed():
    runs = fingerprints()
capability = torch.backends.cpu.get_cpu_capability()
print(json.dumps({"runs": runs, "library": install.status()["cpu"], "capability": capability}))
"""

# name -> (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA, threads, implementation, library that is expected)
PLACES = {
    "oldest CPU, one thread": ("default", "SSE41", 1, "native", "base"),
    "AVX2, two threads": ("avx2", "AVX2", 2, "native", "avx2"),
    "AVX-512, two threads": ("avx512", "AVX512_CORE", 2, "native", "avx512"),
    "AVX-512, one thread": ("avx512", "AVX512_CORE", 1, "native", "avx512"),
    "oldest CPU, torch operators": ("default", "SSE41", 2, "portable", "base"),
    "AVX2, torch operators": ("avx2", "AVX2", 1, "portable", "avx2"),
}


def has_avx512() -> bool:
    return "avx512" in torch.backends.cpu.get_cpu_capability().lower() or torch.cpu._is_avx512_supported()


def run_in(capability: str, onednn: str, threads: int, implementation: str, control: str = "none") -> dict[str, Any]:
    environment = {
        **os.environ, "ATEN_CPU_CAPABILITY": capability, "ONEDNN_MAX_CPU_ISA": onednn, "PYTHONPATH": str(TESTS),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(threads), implementation, control],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_runs_have_the_golden_bits(place: str) -> None:
    capability, onednn, threads, implementation, library = PLACES[place]
    if capability == "avx512" and not has_avx512():
        pytest.skip("this CPU has no AVX-512")
    found = run_in(capability, onednn, threads, implementation)
    assert found["library"] == library, "the C library follows ATEN_CPU_CAPABILITY"
    assert found["runs"] == GOLDEN["runs"]


@pytest.mark.parametrize("control", ["plain matmul", "unfused multiply-add", "vendor exp", "vendor sums"])
def test_an_ingredient_left_out_is_seen(control: str) -> None:
    """Negative controls: with one stock kernel let through, at least one fingerprint is another."""
    found = run_in("avx2", "AVX2", 1, "native", control)
    differing = {name for name, value in found["runs"].items() if value != GOLDEN["runs"][name]}
    assert differing, f"nobody noticed: {control}"


@pytest.mark.parametrize("name", RUNS)
def test_the_losses_are_those_of_stock_but_for_rounding(name: str) -> None:
    """The fingerprints are those of a model that trains as it should. Without dropout: random numbers are others."""
    torch.manual_seed(5)
    model, batches = RUNS[name].build(), [RUNS[name].batch() for _ in range(6)]
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    twin = copy.deepcopy(model)
    stock = RUNS[name].losses(model, batches)
    with install.installed():
        ours = RUNS[name].losses(twin, batches)
    assert ours == pytest.approx(stock, rel=1e-4)
