# ruff: noqa: B023  what is made in loops is called at once
"""Runs the Triton kernels of sums by place, windows and random numbers where there is no GPU; {check: complaint or ""}.

    TRITON_INTERPRET=1 python triton_places_probe.py interpreted    by Triton's interpreter, against torch operators
    python triton_places_probe.py compiled                          compiled for sm_80 and sm_90, and the PTX read

A program of its own like `triton_probe`, and for the same reason. The interpreter rounds to bf16 in a way of its own:
fp16 stands in for it, and the rounding to bf16 is read in the PTX.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_probe import complaints_of, ptx  # noqa: E402  this file runs as a program of its own
from triton_rows_probe import operations  # noqa: E402

from d2_rows import assert_same, special  # noqa: E402
from easyscale.numerics.kernels import (  # noqa: E402
    bags,
    gpu,
    indexing,
    interpolation,
    ordered,
    philox,
    pooling,
    primitives,
    randomness,
)
from easyscale.numerics.kernels.gpu import places  # noqa: E402
from easyscale.numerics.kernels.registry import FORMS  # noqa: E402

Checks = dict[str, Callable[[], None]]
CAPABILITIES = (80, 90)
FLOATS = (torch.float32, torch.float16, torch.float64)
WHOLE = (torch.int64, torch.int32, torch.uint8)


# ------------------------------------------------------------------------------------------------ interpreted


def both(make: Callable[[], Any]) -> None:
    """The same bits by torch operators and by kernels."""
    torch.manual_seed(3)
    wanted = make()
    with patch.object(primitives, "implementation", lambda device: gpu):
        torch.manual_seed(3)
        assert_same(make(), wanted)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return special(*shape, seed=seed).to(dtype) if dtype.is_floating_point else drawn(100, *shape, seed=seed).to(dtype)


def drawn(below: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def _rows(dtype: torch.dtype) -> None:
    for outer, rows, inner, count in ((1, 5, 3, 40), (1, 2, 130, 150), (3, 4, 5, 33), (1, 50, 1, 400), (2, 1, 1, 99)):
        start = numbers(outer, rows, inner, dtype=dtype)
        source, index = numbers(outer, count, inner, dtype=dtype, seed=2), drawn(rows, count)
        for operation in (torch.add, torch.mul, ordered.larger, ordered.smaller)[: 4 if inner > 1 else 1]:
            both(lambda o=operation, a=start, i=index, s=source: ordered.add_rows(a.clone(), i, s, o, dim=1))
        both(lambda a=start, i=index, s=source: ordered.add_rows(a.clone(), i.int(), s, dim=1, once=True))
        both(lambda a=start, i=index - rows, s=source: ordered.add_rows(a.clone(), i, s, dim=1, from_end=True))
        both(lambda a=start, i=index, s=source: ordered.add_rows(a.clone(), i, s, dim=1, left_out=rows - 1))
    both(lambda: ordered.add_rows(numbers(3, 4, dtype=dtype), drawn(3, 0), numbers(0, 4, dtype=dtype)))
    both(lambda: ordered.add_rows(numbers(3, 0, dtype=dtype), drawn(3, 5), numbers(5, 0, dtype=dtype)))


def _many_places() -> None:
    """More than are sorted by pairs."""
    with patch.object(places, "RANKED", 100):
        _rows(torch.float32)


def _an_index_out_of_bounds_is_seen() -> None:
    from easyscale.numerics.kernels.gpu.places_kernels import keys

    text = ptx(
        keys, 90, {"index": "*i64", "out": "*i32"}, {"FROM_END": True, "LEAVES": True, "SPREAD": False, "BLOCK": 512},
        num_warps=4, enable_fp_fusion=False, debug=True, sanitize_overflow=False,
    )  # fmt: skip
    assert "__assertfail" in text


def _operators(dtype: torch.dtype) -> None:
    x, g, at = numbers(9, 8, 7, dtype=dtype), numbers(5, 12, 7, dtype=dtype, seed=2), drawn(9, 5, 12)
    for padding in (-1, 3):
        both(lambda: indexing.embedding_backward_in_order(g, at, 9, padding))
    for dim in (0, 1, -1):
        source = numbers(*[20 if axis == dim % 3 else size for axis, size in enumerate(x.shape)], dtype=dtype, seed=3)
        both(lambda: indexing.index_add_in_order(x, dim, drawn(7, 20), source))
        index = drawn(7, *source.shape)
        rows = index[:, :1].expand(index.shape) if dim == 0 else index[:1].expand(index.shape)
        for used in (index, index[:4], rows, rows[:, :, :1].expand(index.shape) if dim != -1 else rows[:, :1]):
            both(lambda used=used: indexing.scatter_in_order(x, dim, used, source, torch.add))
    both(lambda: indexing.scatter_reduce_in_order(x, 0, drawn(9, *x.shape), g.new_ones(x.shape), "mean"))
    values = numbers(60, 7, dtype=dtype, seed=5)
    both(lambda: indexing.index_put_in_order(x, [at.view(-1) - 9, drawn(8, 60, seed=7)], values))
    both(lambda: indexing.index_put_impl_(x.clone(), [at], values[:1], True))
    both(lambda: indexing.put_(x.clone(), drawn(500, 60) - 500, values[:, 0].contiguous(), True))
    rest = (drawn(9, 30), torch.tensor([0, 5, 5]))
    for mode, padding in ((bags.SUM, -1), (bags.MEAN, 2)):
        both(lambda: bags._form_of_forward(x[:, 0], *rest, False, mode, padding_idx=padding))


def _layouts(*shape: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    x = special(*shape, seed=seed).to(dtype)
    return [x, x.to(memory_format=torch.channels_last)] if x.dim() == 4 else [x]


def _pooling(dtype: torch.dtype) -> None:
    for dims, shape in ((2, (2, 3, 9, 10)), (3, (1, 2, 3, 5, 4)))[: 2 if dtype is torch.float32 else 1]:
        for x in _layouts(*shape, dtype=dtype):
            for k, s, p, include, override in ((2, 2, 0, True, None), (3, 2, 1, False, None), (3, 1, 1, True, 5)):
                rest = ([k] * dims, [s] * dims, [p] * dims)
                outputs = pooling.average(x, *rest, True, include, override, dims).shape
                g = special(*outputs, seed=3).to(dtype)
                both(lambda: pooling.average(x, *rest, True, include, override, dims))
                both(lambda: pooling.average_backward(g, x, *rest, True, include, override, dims))
                finite = torch.nan_to_num(x.float()).to(dtype)
                forward = getattr(torch.ops.aten, f"max_pool{dims}d_with_indices")
                y, chosen = forward(finite, *rest, [1] * dims, False)
                g = special(*y.shape, seed=4).to(dtype)
                ranges = pooling.max_ranges(g, finite, *rest, [1] * dims, dims)
                both(lambda: pooling.maximum_backward(g, finite, chosen, ranges))
            for size in ((4, 7, 3), (1, 1, 2)):
                g = special(*shape[:2], *size[:dims], seed=1).to(dtype)
                with patch.object(pooling, "_kernels", lambda *sizes: None):
                    both(lambda: FORMS[f"_adaptive_avg_pool{dims}d"].function(x, list(size[:dims])))
                    both(lambda: FORMS[f"_adaptive_avg_pool{dims}d_backward"].function(g, x))


def _interpolation(name: str) -> None:
    dims = int(name.replace("_aa", "")[-2])
    shape, sizes = (2, 3, *(5, 6, 4)[:dims]), ((9, 11, 5), (3, 2, 3), (5, 6, 8))
    corners = () if "nearest" in name else (False,)
    for dtype in FLOATS[: 2 if name == _TABLES[0] else 1]:
        for x in _layouts(*shape, dtype=dtype):
            for size in sizes:
                g = special(2, 3, *size[:dims], seed=2).to(dtype)
                both(lambda: FORMS[name].function(x, list(size[:dims]), *corners))
                both(lambda: FORMS[f"{name}_backward"].function(g, list(size[:dims]), list(shape), *corners))
    picture = drawn(256, *shape).to(torch.uint8)
    both(lambda: FORMS[name].function(picture, list(sizes[0][:dims]), *corners))


def _long_tables() -> None:
    with patch.object(interpolation, "_AT_ONCE", 1):
        _interpolation("upsample_bicubic2d")


def _padding(dtype: torch.dtype) -> None:
    for dims in (1, 2, 3)[: 3 if dtype is torch.float32 else 2]:
        for padding in ([3, 4, 2, 1, 2, 3][: 2 * dims], [-1, 2, 2, 1, 2, 3][: 2 * dims]):
            for mode in ("reflect", "replicate"):
                x = special(2, 3, *(6, 5, 7)[-dims:]).to(dtype)
                g = special(*torch.nn.functional.pad(x, padding, mode=mode).shape, seed=5).to(dtype)
                both(lambda: indexing.pad_backward(g, x, padding, reflect=mode == "reflect"))
                both(lambda: indexing.pad_backward(g[0], x[0], padding, reflect=mode == "reflect"))


def _random(dtype: torch.dtype) -> None:
    makers: list[Callable[[Tensor], Tensor]] = [
        randomness.uniform_, lambda x: randomness.uniform_(x, -0.3, 1.7), lambda x: randomness.uniform_(x, 2.0, 2.0),
        lambda x: randomness.bernoulli_(x, 0.3), randomness.normal_, lambda x: randomness.normal_(x, 0.5, 2.0),
        randomness.exponential_, lambda x: randomness.exponential_(x, 0.7),
    ]  # fmt: skip
    for make in makers:
        both(lambda make=make: make(torch.empty(2503, dtype=dtype)))
        both(lambda make=make: make(torch.empty(7, 11, dtype=dtype).t()))
    x = numbers(3000, dtype=dtype)
    for p in (0.1, 0.5, 1 / 3, 1.0):
        both(lambda p=p: randomness.native_dropout(x, p, True))
        both(lambda p=p: randomness.native_dropout(x.view(50, 60).t(), p, True))
        scale = 1 / (1 - p) if p < 1 else 0.0
        for g in (x, x.view(50, 60).t(), x[:1].expand(50, 60)):
            both(lambda g=g, scale=scale: randomness.native_dropout_backward(g, g > 0, scale))


def _words() -> None:
    for count, start in ((0, 0), (1, 0), (5, 2**40), (2049, 8)):
        made = gpu.draws.philox_words(count, 0x1234_5678_9ABC_DEF1, torch.device("cpu"), start)
        assert_same(made, philox.portable_words(count, 0x1234_5678_9ABC_DEF1, torch.device("cpu"), start))


_TABLES = (
    "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa",
)  # fmt: skip


def interpreted() -> Checks:
    checks: Checks = {"words": _words, "many places": _many_places, "long tables": _long_tables}
    for dtype in (*FLOATS, *WHOLE):
        checks[f"rows of {dtype}"] = lambda dtype=dtype: _rows(dtype)
    for dtype in FLOATS:
        checks[f"operators of {dtype}"] = lambda dtype=dtype: _operators(dtype)
        checks[f"pooling of {dtype}"] = lambda dtype=dtype: _pooling(dtype)
        checks[f"padding of {dtype}"] = lambda dtype=dtype: _padding(dtype)
        checks[f"random {dtype}"] = lambda dtype=dtype: _random(dtype)
    return checks | {name: lambda name=name: _interpolation(name) for name in _TABLES}


# ------------------------------------------------------------------------------------------------ compiled


def _read(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], allowed: set[str], dtype: str) -> None:
    for capability in CAPABILITIES:
        text = ptx(kernel, capability, pointers, constants, num_warps=4, enable_fp_fusion=False)
        found = {operation.replace(".rn", "") for operation in operations(text)}
        assert found <= allowed, f"sm_{capability}: {found - allowed}"
        assert "ftz" not in text
        assert ".approx" not in text
        assert ".full." not in text
        assert dtype != "bf16" or "cvt.rn.bf16" in text


def _sums_compiled(dtype: str) -> None:
    from easyscale.numerics.kernels.gpu.places_kernels import ranks, sums

    float_type = "f64" if dtype == "fp64" else "f32"
    pointers = {"out": f"*{dtype}", "source": f"*{dtype}", "places": "*i32", "order": "*i64"}
    half = dtype in ("bf16", "fp16")
    for operation, name in ((0, "add"), (1, "mul"), (2, "")):
        constants = {
            "OPERATION": operation, "STEPWISE": half, "WIDE": half, "SEGMENTS": 1, "COLUMNS": 128, "SHORT": 2, "LONG": 8
        }  # fmt: skip
        if half:  # LLVM knows that a sum or product of two, rounded to fp32 and then to them, is rounded once
            _read(sums, pointers, constants, {f"{name}.{float_type}", "add.bf16", "fma.bf16", "mul.bf16"}, "")
        else:
            _read(sums, pointers, constants, {f"{name}.{float_type}"}, dtype)
    whole = {"unsorted": "*i32", "places": "*i32", "order": "*i32"}
    _read(ranks, whole, {"BLOCK": 32, "STEP": 128}, set(), "")


def _windows_compiled(dtype: str) -> None:
    from easyscale.numerics.kernels.gpu.windows_kernels import weighted_sums, window_sums

    float_type = "f64" if dtype == "fp64" else "f32"
    tables = {f"{kind}_{axis}": "*i32" for kind in ("places", "counts") for axis in "dhw"}
    pointers = {"x": f"*{dtype}", "out": f"*{dtype}", "chosen": "*i64", **tables}
    for window in (2, 9):  # written out, and in loops
        shape = {"KD": 1, "KH": window, "KW": window, "LAST": window == 2, "FAR": False, "BLOCK": 256}
        for each, whole, chosen in ((True, False, True), (False, True, False), (False, False, False)):
            flags = {"EACH": each, "WHOLE": whole, "CHOSEN": chosen, "STEPWISE": True}
            allowed = {f"add.{float_type}", "add.bf16", "fma.bf16"}
            allowed |= {f"div.{float_type}"} if each or whole else set()
            _read(window_sums, pointers, {**shape, **flags}, allowed, dtype)
    pointers |= {f"weights_{axis}": "*fp64" for axis in "dhw"}
    shape = {"KD": 0, "KH": 2, "KW": 2, "LAST": False, "FAR": False, "BLOCK": 256}
    _read(weighted_sums, pointers, shape, {"add.f64", "mul.f64"}, dtype)


def _random_compiled(dtype: str) -> None:
    from easyscale.numerics.kernels.gpu import draws_kernels as kernels

    float_type = "f64" if dtype == "fp64" else "f32"
    names = ("x", "g", "out")
    pointers = dict.fromkeys(names, f"*{dtype}") | {"mask": "*u8"}
    scalars = ("key", "limit", "noise", "low", "span", "top", "bottom", "mean", "std", "turn", "rate")
    pointers |= dict.fromkeys(scalars, "i64")
    product = {f"mul.{float_type}"}
    _read(kernels.dropout, pointers, {"BLOCK": 1024}, product, dtype)
    _read(kernels.dropout_backward, pointers, {"BLOCK": 1024}, product, dtype)
    bits = {"fp32": 24, "bf16": 8, "fp64": 53}[dtype]
    _read(kernels.uniform, pointers, {"BITS": bits, "BLOCK": 1024}, {"add.f64", "mul.f64"}, dtype)
    allowed = {"add.f64", "sub.f64", "mul.f64", "div.f64", "sqrt.f64"}
    _read(kernels.normal, pointers, {"BLOCK": 1024}, allowed, dtype)
    _read(kernels.exponential, pointers, {"BLOCK": 1024}, allowed, dtype)


def compiled() -> Checks:
    checks: Checks = {"an index out of bounds is seen": _an_index_out_of_bounds_is_seen}
    for dtype in ("fp32", "bf16", "fp64"):
        checks[f"sums of {dtype}"] = lambda dtype=dtype: _sums_compiled(dtype)
        checks[f"windows of {dtype}"] = lambda dtype=dtype: _windows_compiled(dtype)
        checks[f"random {dtype}"] = lambda dtype=dtype: _random_compiled(dtype)
    return checks


def main(kind: str) -> dict[str, str]:
    primitives.use_portable(True)
    with patch.multiple(places, SHORT=2, LONG=4, LONGER=8):  # so that short sums have all the steps of long ones
        return complaints_of(interpreted() if kind == "interpreted" else compiled())


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
