"""The Triton kernels of attention, as far as they can be tried without a GPU (see `triton_attention_probe`)."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.numerics.kernels.triton_attention_probe import compiled, interpreted

from easyscale.numerics.kernels import gpu, portable, primitives, scores

PROBE = Path(__file__).parent / "triton_attention_probe.py"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which is not here; the kernels ran elsewhere"
)


@functools.cache
def _complaints(kind: str) -> dict[str, str]:
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if kind == "interpreted" else {})
    done = subprocess.run(
        [sys.executable, str(PROBE), kind], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("check", interpreted())
def test_a_kernel_gives_the_bits_of_the_composition_in_the_interpreter(check: str) -> None:
    complaint = _complaints("interpreted")[check]
    if "only 0-dimensional arrays can be converted" in complaint:
        pytest.skip("this Triton's interpreter does not go with this numpy")
    assert not complaint


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("check", compiled())
def test_a_kernel_is_compiled_to_the_operations_that_are_written(check: str) -> None:
    assert not _complaints("compiled")[check]


def test_rows_that_are_too_long_for_the_kernels_are_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = torch.device("cpu")
    monkeypatch.setattr(primitives, "implementation", lambda device: gpu)
    assert scores.kernels_for(here, gpu.attention.LONGEST) is gpu.attention
    assert scores.kernels_for(here, gpu.attention.LONGEST + 1) is None
    monkeypatch.setattr(primitives, "implementation", lambda device: portable)
    assert scores.kernels_for(here, 3) is None


def test_a_factor_that_products_can_read_is_not_moved() -> None:
    x = torch.randn(2, 3, 5, 8)
    assert gpu.attention.flat(x, None).data_ptr() == x.data_ptr()
    assert gpu.attention.flat(x[:, :, ::2], None).data_ptr() == x.data_ptr()
    assert gpu.attention.flat(x[:1, :2], None).shape == (2, 5, 8)
