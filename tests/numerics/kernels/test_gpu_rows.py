"""The Triton kernels of norms, softmax and blocked chains, as far as they can be tried without a GPU (see
`triton_rows_probe`); and that the tests and benchmarks for a GPU run at all."""

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
from tests.numerics.kernels.triton_rows_probe import compiled, interpreted

from easyscale.numerics.kernels import gpu, native, portable, primitives
from easyscale.numerics.kernels.gpu import row_shapes
from easyscale.numerics.kernels.gpu.fused import LONGEST
from easyscale.numerics.kernels.gpu.row_shapes import power, row_shape
from easyscale.numerics.kernels.gpu.rows import TILE, magic_of, residues, tile_shape
from easyscale.numerics.kernels.reductions import fused

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which is not here; the kernels ran elsewhere"
)


@functools.cache
def _complaints(kind: str) -> dict[str, str]:
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if kind == "interpreted" else {})
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_rows_probe.py"), kind],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
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


@pytest.mark.parametrize("n", [1, 2, 3, 31, 768, 1024, 1025, 4608, 50_257, LONGEST])
def test_lanes_and_levels_make_up_the_padded_row(n: int) -> None:
    for count in (1, 3, 4096):
        for takes in (
            row_shapes.SOFTMAX, row_shapes.SOFTMAX_BACKWARD, row_shapes.NORM, row_shapes.NORM_BACKWARD, row_shapes.SUM,
            row_shapes.SUM_OF_FEW,
        ):  # fmt: skip
            shape, block = row_shape(n, count, takes)
            span = shape["LANES"] << shape["LEVELS"]
            assert span * shape["CHUNKS"] == power(n)
            assert span * (shape["VALID"] - 1) < n <= span * shape["VALID"]
            assert 1 <= block <= power(count)
            assert shape["num_warps"] in (1, 2, 4, 8, 16)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(("outputs", "length"), [(1, 2**26), (64, 200_704), (768, 3072), (30_522, 4096), (3, 70_000)])
def test_tiles_and_residues_make_up_the_padded_sum(outputs: int, length: int, across: bool) -> None:
    for busy in (1, 132, 264):
        left = residues(outputs, power(length), 4, across, busy)
        shape = tile_shape(length, left, min(32, power(outputs) if across else left), TILE)
        span = shape["ROWS"] * left << shape["LEVELS"]
        assert span * shape["CHUNKS"] == power(length)
        assert span * (shape["VALID"] - 1) < length <= span * shape["VALID"]


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 49, 196, 3136, 50_257, 12_345_677, 2**20, 2**31 - 1])
def test_a_division_is_a_multiplication(divisor: int) -> None:
    magic, shift = magic_of(divisor)
    for near in (0, divisor, 3 * divisor, 2**31 - divisor, 2**31 - 1, 2**30):
        for i in (near - 1, near, near + 1):
            if 0 <= i < 2**31:
                assert (i * magic) >> shift == i // divisor
                assert i * magic < 2**63


def test_rows_that_are_too_long_for_the_kernels_are_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "implementation", lambda device: gpu)
    assert fused(torch.device("cpu"), LONGEST) is gpu.fused
    assert fused(torch.device("cpu"), LONGEST + 1) is None
    monkeypatch.setattr(primitives, "implementation", lambda device: portable)
    assert fused(torch.device("cpu"), 3) is None


@pytest.mark.parametrize("k", [1, 255, 256, 257, 700, 1024])
def test_a_product_in_blocks_is_the_products_of_the_blocks_added_up(k: int) -> None:
    a, b = (torch.randn(2, *shape, generator=torch.Generator().manual_seed(k)) for shape in ((3, k), (k, 5)))
    total = portable.product(a[:, :, :256], b[:, :256])
    for start in range(256, k, 256):
        total = total + portable.product(a[:, :, start : start + 256], b[:, start : start + 256])
    for implementation in (portable, native):
        assert torch.equal(implementation.product(a, b, block=256), total)
    if k == 1024:
        assert not torch.equal(portable.product(a, b), total), "a negative control: one chain is another sum"


def _run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_benchmark_for_a_gpu_runs_on_a_cpu_at_tiny_sizes() -> None:
    only = ("--only", "products,operators,steps,curves", "--models", "neumf")
    shown = _run("benchmarks/gpu/d2.py", "--device", "cpu", "--tiny", *only)
    for part in ("products", "operators", "steps", "curves"):
        assert f"### {part}" in shown


@pytest.mark.slow
def test_the_checks_for_a_gpu_run_on_a_cpu_against_torch_operators() -> None:
    only = ("--only", "formulas,models", "--models", "neumf,mlp")
    shown = _run("tests/gpu/test_d2.py", "--device", "cpu", "--tiny", *only)
    assert "**bad**" not in shown
    assert shown.count("| good |") == 3


def test_golden_fingerprints_are_not_recorded_as_a_gpus_without_one() -> None:
    before = (ROOT / "tests" / "golden" / "d2.json").read_bytes()
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = subprocess.run(
        [sys.executable, "tests/gpu/record_golden.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Nothing was recorded" in done.stderr
    assert (ROOT / "tests" / "golden" / "d2.json").read_bytes() == before
