"""Runs the Triton kernels of norms, softmax and blocked chains where there is no GPU; prints {check: complaint or ""}.

    TRITON_INTERPRET=1 python triton_rows_probe.py interpreted    by Triton's interpreter against `norms` and `softmax`
    python triton_rows_probe.py compiled                          compiled for sm_80 and sm_90, and the PTX read

A program of its own like `triton_probe`, and for the same reason.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_probe import complaints_of, ptx  # noqa: E402  this file runs as a program of its own

from d2_rows import assert_same, special  # noqa: E402
from easyscale.numerics.kernels import norms, primitives  # noqa: E402
from easyscale.numerics.kernels import softmax as softmaxes  # noqa: E402
from easyscale.numerics.kernels.gpu import fused, products  # noqa: E402

Checks = dict[str, Callable[[], None]]
CAPABILITIES = (80, 90)
LENGTHS = (1, 5, 40)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """With special values; without subnormal bf16, of which the interpreter (not a GPU) makes zeros."""
    x = special(*shape, seed=seed).to(dtype)
    return torch.where(x.abs() < 2.0**-126, 0, x) if dtype is torch.bfloat16 else x


# ------------------------------------------------------------------------------------------------ interpreted


def narrow() -> AbstractContextManager[Any]:
    """Few lanes, so that short rows have all the levels of long ones."""
    return patch.multiple(fused, LANES=8, AT_ONCE=16)


def _softmax(dtype: torch.dtype) -> None:
    for n in LENGTHS:
        x, g = numbers(3, n, dtype=dtype), numbers(3, n, dtype=dtype, seed=1)
        x[1] = -torch.inf
        x[2] = torch.linspace(-3, 2, n)
        result = torch.float64 if dtype is torch.float64 else torch.float32
        for logarithm in (False, True):
            y = softmaxes._softmax_of(x, 1, result, logarithm)
            assert_same(fused.softmax(x, logarithm), y)
            assert_same(fused.softmax_backward(g, y, logarithm), softmaxes._gradient(g, y, 1, result, logarithm))


def _row_norms(dtype: torch.dtype) -> None:
    for n in LENGTHS:
        x, g = numbers(3, n, dtype=dtype), numbers(3, n, dtype=dtype, seed=1)
        x[2] = torch.linspace(-3, 2, n)
        w, b = torch.randn(n).to(dtype), torch.randn(n)
        for weight, bias, centred in ((w, b, True), (None, None, True), (w, None, False), (None, None, False)):
            y, mean, rstd = norms._rows_forward(x, weight, bias, 3, 1, 1, 1e-5, centred)
            assert_same(fused.row_norm(x, weight, bias, 3, 1, 1, 1e-5, centred), (y, mean, rstd))
            center = mean if centred else None
            assert_same(
                fused.row_norm_backward(g, x, weight, center, rstd, 1, 1),
                norms._rows_backward(g, x, weight, center, rstd, 1, 1),
            )
            assert_same(fused.row_norm_weights(g, x, center, rstd), norms._row_weights(g, x, center, rstd, [n]))


def _group_norm() -> None:
    for samples, channels, pixels, groups in ((2, 6, 5, 3), (3, 4, 16, 1), (2, 2, 1, 2)):
        x, g = (numbers(samples, channels, pixels, dtype=torch.float32, seed=seed) for seed in (0, 1))
        x[1] = torch.randn(channels, pixels)
        w, b = torch.randn(channels), torch.randn(channels)
        shape = (samples * groups, groups, pixels)
        y, mean, rstd = norms._rows_forward(x, w, b, *shape, 1e-5, True)
        assert_same(fused.row_norm(x, w, b, *shape, 1e-5, True), (y, mean, rstd))
        place = (groups, pixels)
        assert_same(
            fused.row_norm_backward(g, x, w, mean, rstd, *place), norms._rows_backward(g, x, w, mean, rstd, *place)
        )
        sizes = (samples, channels, pixels)
        assert_same(fused.group_norm_weights(g, x, mean, rstd, *sizes), norms._group_weights(g, x, mean, rstd, *sizes))


def _batch_norm(dtype: torch.dtype) -> None:
    for shape in ((2, 3, 5, 7), (4, 6, 1, 1), (5, 3)):
        x, g = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
        x[:, 0] = torch.randn(x[:, 0].shape).to(dtype)
        w, b = torch.randn(shape[1]), torch.randn(shape[1]).to(dtype)
        known = torch.randn(shape[1]).double(), torch.rand(shape[1]).double()
        layouts = [x, x.to(memory_format=torch.channels_last)] if len(shape) == 4 else [x]
        for image in layouts:
            dense, last = norms._dense(image)
            there = torch.empty_like(dense).copy_(g)
            for weight, bias, statistics in ((w, b, None), (None, None, None), (w, None, known)):
                wanted = norms._batch_forward(image, weight, bias, statistics, 1e-5)
                assert_same(fused.batch_norm(dense, weight, bias, statistics, 1e-5, last), wanted)
                for training in (True, False):
                    dx, dw, db = norms._batch_backward(g, image, weight, wanted[1], wanted[3], training, True)
                    assert dx is not None
                    found = fused.batch_norm_backward(there, dense, weight, wanted[1], wanted[3], training, True, last)
                    assert_same(found, (norms.rounded(dx, dtype), dw, db))


def _order_is_seen() -> None:
    """A negative control: the same values in another order have other sums (but not backwards: the same tree)."""
    x = torch.randn(20, 100, dtype=torch.float64)
    means = [fused.row_norm(y.contiguous(), None, None, 20, 1, 1, 1e-5, True)[1] for y in (x, x.flip(1), x.sort(1)[0])]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])


def _blocks() -> None:
    """One chain would lose both ones beside 2^24; in blocks they are added to each other first."""
    a, b = torch.zeros(1, 3, 150), torch.ones(1, 150, 5)
    a[:, :, 0], a[:, :, 70], a[:, :, 71] = 2.0**24, 1, 1
    for tile in products.TILES:
        found = products.product(a, b, 64, tile=tile)
        assert_same(found, torch.full((1, 3, 5), 2.0**24 + 2))
        assert_same(found, primitives.product(a, b, 64))
    assert_same(primitives.product(a, b), torch.full((1, 3, 5), 2.0**24))


def interpreted() -> Checks:
    checks: Checks = {"order is seen": _order_is_seen, "blocks": _blocks, "group norm": _group_norm}
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        checks[f"softmax of {dtype}"] = lambda dtype=dtype: _softmax(dtype)
    # The interpreter rounds to bf16 in a way of its own, and norms write the dtype of their input: fp16 stands in for
    # it, and the rounding to bf16 is read in the PTX.
    for dtype in (torch.float32, torch.float16, torch.float64):
        checks[f"row norms of {dtype}"] = lambda dtype=dtype: _row_norms(dtype)
    for dtype in (torch.float32, torch.float16):
        checks[f"batch norm of {dtype}"] = lambda dtype=dtype: _batch_norm(dtype)
    return checks


# ------------------------------------------------------------------------------------------------ compiled

WIDE = {"mean": "*fp64", "rstd": "*fp64", "size": "i64", "eps": "i64"}
ROUNDING = re.compile(
    r"\b((?:fma|mad|mul|add|sub|div|sqrt|rsqrt|rcp|ex2|lg2|tanh)\.[a-z0-9_.]*f(?:64|32|16)[a-z0-9.]*)"
)
PLAIN = {"add.rn.f64", "sub.rn.f64", "mul.rn.f64"}


def operations(text: str) -> set[str]:
    """Floating-point instructions that round, by their names in PTX."""
    return set(ROUNDING.findall(text))


def _compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], allowed: set[str]) -> None:
    for capability in CAPABILITIES if "*fp32" in pointers.values() else CAPABILITIES[-1:]:
        text = ptx(kernel, capability, pointers, constants, num_warps=4, enable_fp_fusion=False)
        found = operations(text)
        assert found <= allowed, f"sm_{capability}: {found - allowed}"
        assert found, "no arithmetic at all"
        assert "ftz" not in text
        if "out" in kernel.arg_names and pointers["out"] != "*fp64":  # by way of fp32, each rounded to the nearest
            assert "cvt.rn.f32.f64" in text
            assert pointers["out"] != "*bf16" or "cvt.rn.bf16" in text


def _rows_compiled(dtype: str, lanes: int, levels: int) -> None:
    from easyscale.numerics.kernels.gpu import fused_kernels as kernels

    shape: dict[str, Any] = {"ROWS": 256 // lanes or 1, "LANES": lanes, "LEVELS": levels}
    of = dict.fromkeys(("x", "g", "y", "out", "w", "b"), f"*{dtype}") | WIDE
    for logarithm in (False, True):
        divides = set() if logarithm else {"div.rn.f64"}
        # log divides
        _compiled(kernels.softmax, of, {"LOGARITHM": logarithm, **shape}, PLAIN | {"div.rn.f64"})
        _compiled(kernels.softmax_backward, of, {"LOGARITHM": logarithm, **shape}, PLAIN | divides)
    for centred in (False, True):
        kind = {"CENTRED": centred, "WEIGHT": True, **shape}
        _compiled(kernels.row_norm, of, {**kind, "BIAS": centred}, PLAIN | {"div.rn.f64", "sqrt.rn.f64"})
        _compiled(kernels.row_norm_backward, of, kind, PLAIN | {"div.rn.f64"})


def _channels_compiled(dtype: str) -> None:
    from easyscale.numerics.kernels.gpu import channel_kernels as kernels

    names = dict.fromkeys(("x", "g", "out", "w", "b"), f"*{dtype}") | WIDE
    sums = dict.fromkeys(("total", "variance", "first", "second", "shift", "slope", "scale", "dw"), "*fp64")
    for kind in range(4):
        shape = {"KIND": kind, "OUTPUTS": 4, "LANES": 32, "LEVELS": 4}
        _compiled(kernels.fold, {**names, "out": "*fp64"}, shape, PLAIN)
    _compiled(kernels.scales, {**names, **sums}, {"BLOCK": 128}, PLAIN | {"div.rn.f64", "sqrt.rn.f64"})
    _compiled(kernels.slopes, {**names, **sums}, {"WEIGHT": True, "BLOCK": 128}, PLAIN | {"div.rn.f64"})
    _compiled(kernels.apply, names, {"WEIGHT": True, "BIAS": True, "WIDE": False, "BLOCK": 1024}, PLAIN)
    for training in (False, True):
        place = {"TRAINING": training, "WIDE": True, "BLOCK": 1024}
        _compiled(kernels.apply_backward, {**names, **sums}, place, PLAIN)


def _fusion_is_seen() -> None:
    """A negative control: left to itself, the compiler does fuse."""
    from easyscale.numerics.kernels.gpu import channel_kernels as kernels

    names = dict.fromkeys(("x", "out", "w", "b"), "*fp32") | WIDE
    constants = {"WEIGHT": True, "BIAS": True, "WIDE": False, "BLOCK": 1024}
    assert "fma.rn.f64" in operations(ptx(kernels.apply, 90, names, constants, num_warps=4))


def compiled() -> Checks:
    checks: Checks = {"fusion is seen": _fusion_is_seen}
    for dtype in ("fp32", "bf16", "fp64"):
        checks[f"short rows of {dtype}"] = lambda dtype=dtype: _rows_compiled(dtype, 32, 0)
        checks[f"channels of {dtype}"] = lambda dtype=dtype: _channels_compiled(dtype)
    return checks | {
        "long rows": lambda: _rows_compiled("fp32", 1024, 7),
        "rows": lambda: _rows_compiled("fp32", 1024, 0),
    }


def main(kind: str) -> dict[str, str]:
    torch.manual_seed(0)
    primitives.use_portable(True)
    with narrow():
        return complaints_of(interpreted() if kind == "interpreted" else compiled())


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
