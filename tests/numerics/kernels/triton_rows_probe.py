"""Runs the Triton kernels of norms, softmax and blocked chains where there is no GPU; prints {check: complaint or ""}.

    TRITON_INTERPRET=1 python triton_rows_probe.py interpreted    by Triton's interpreter against `norms` and `softmax`
    python triton_rows_probe.py compiled                          compiled for sm_80 and sm_90, and the PTX read

A program of its own like `triton_probe`, and for the same reason.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_probe import complaints_of, ptx  # noqa: E402  this file runs as a program of its own

from d2_rows import assert_same, special  # noqa: E402
from easyscale.numerics.kernels import batches, gpu, losses, norms, primitives, reductions  # noqa: E402
from easyscale.numerics.kernels import softmax as softmaxes  # noqa: E402
from easyscale.numerics.kernels.gpu import channels, fused, products, row_shapes, rows  # noqa: E402
from easyscale.numerics.kernels.gpu import launch as launching  # noqa: E402
from easyscale.numerics.kernels.gpu import losses as at_once  # noqa: E402
from easyscale.numerics.kernels.gpu.launch import launch  # noqa: E402

Checks = dict[str, Callable[[], None]]
CAPABILITIES = (80, 90)
LENGTHS = (1, 2, 5, 33, 40)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """With special values; without subnormal bf16, of which the interpreter (not a GPU) makes zeros."""
    x = special(*shape, seed=seed).to(dtype)
    return torch.where(x.abs() < 2.0**-126, 0, x) if dtype is torch.bfloat16 else x


# ------------------------------------------------------------------------------------------------ interpreted


_FEW_LANES = (row_shapes.Take(4, 4, 1, 1, together=8), row_shapes.Take(8, 4, 2, 1), row_shapes.Take(1024, 4, 2, 1))
FEW: dict[Any, dict[str, Any]] = {
    rows: {"FEW_LANES": 4, "AT_ONCE": 32, "TILE": 16, "SEGMENT": 16, "BUSY": 5, "CHUNKS": 2},
    row_shapes: dict.fromkeys(("SOFTMAX", "SOFTMAX_BACKWARD", "NORM", "NORM_BACKWARD", "SUM", "SUM_OF_FEW"), _FEW_LANES)
    | {"LONGEST": 64},
    channels: {"TILE": 16, "LONG_TILE": 16, "SEGMENT": 16, "BUSY": 5, "WIDEST": 8, "SPANS": 3, "UNROLL": 2},
}  # fmt: skip
REAL = {module: {name: getattr(module, name) for name in few} for module, few in FEW.items()}


@contextmanager
def sizes(of: dict[Any, dict[str, Any]]) -> Iterator[None]:
    """FEW lanes and small tiles give short rows all the levels of long ones, and few values many parts."""
    with ExitStack() as stack:
        for module, values in of.items():
            stack.enter_context(patch.multiple(module, **values))
        plans = [value for module in (rows, row_shapes, fused, channels) for value in vars(module).values()]
        for kept in (value for value in plans if hasattr(value, "cache_clear")):
            kept.cache_clear()
            stack.callback(kept.cache_clear)
        yield


def _real_sizes() -> None:
    with sizes(REAL):
        _softmax(torch.float32, (255, 1000))
        _row_norms(torch.float16, (257,))
        _weights_of_many_rows()
        _group_norm()
        _forms()


def _softmax(dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS) -> None:
    for n in lengths:
        x, g = numbers(3, n, dtype=dtype), numbers(3, n, dtype=dtype, seed=1)
        x[1] = -torch.inf
        x[2] = torch.linspace(-3, 2, n)
        # The interpreter rounds to bf16 in a way of its own.
        result = torch.float32 if dtype is torch.bfloat16 else dtype
        for logarithm in (False, True):
            y = softmaxes._softmax_of(x, 1, result, logarithm)
            assert_same(fused.softmax(x, logarithm, result), y)
            wanted = softmaxes._gradient(g, y, 1, result, logarithm)
            assert_same(fused.softmax_backward(g, y, logarithm, result), wanted)


def _row_norms(dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS) -> None:
    saved = torch.float64 if dtype is torch.float64 else torch.float32
    for n in lengths:
        x, g = numbers(3, n, dtype=dtype), numbers(3, n, dtype=dtype, seed=1)
        x[2] = torch.linspace(-3, 2, n)
        w, b = torch.randn(n).to(dtype), torch.randn(n)
        for weight, bias, centred in ((w, b, True), (None, None, True), (w, None, False), (None, None, False)):
            y, mean, rstd = norms._rows_forward(x, weight, bias, 3, 1, 1, 1e-5, centred)
            assert_same(fused.row_norm(x, weight, bias, 3, 1, 1, 1e-5, centred, saved), (y, mean, rstd))
            center = mean if centred else None
            assert_same(
                fused.row_norm_backward(g, x, weight, center, rstd, 1, 1),
                norms._rows_backward(g, x, weight, center, rstd, 1, 1),
            )
            wanted = norms._row_weights(g, x, center, rstd, saved, True)
            assert_same(fused.row_norm_weights(g, x, center, rstd, saved, True), wanted)
            assert_same(fused.row_norm_weights(g, x, center, rstd, saved, False)[0], wanted[0])


def _weights_of_many_rows() -> None:
    for count in (1, 2, 33, 255, 257):
        x, g = (numbers(count, 6, dtype=torch.float32, seed=seed) for seed in (0, 1))
        _, mean, rstd = norms._rows_forward(x, None, None, count, 1, 1, 1e-5, True)
        wanted = norms._row_weights(g, x, mean, rstd, torch.float32, True)
        assert_same(fused.row_norm_weights(g, x, mean, rstd, torch.float32, True), wanted)


def _group_norm() -> None:
    for samples, count, pixels, groups in ((2, 6, 5, 3), (3, 4, 16, 1), (2, 2, 1, 2), (1, 4, 7, 2), (5, 2, 12, 1)):
        x, g = (numbers(samples, count, pixels, dtype=torch.float32, seed=seed) for seed in (0, 1))
        x[-1] = torch.randn(count, pixels)
        w, b = torch.randn(count), torch.randn(count)
        shape = (samples * groups, groups, pixels)
        y, mean, rstd = norms._rows_forward(x, w, b, *shape, 1e-5, True)
        assert_same(fused.row_norm(x, w, b, *shape, 1e-5, True, torch.float32), (y, mean, rstd))
        place = (groups, pixels)
        assert_same(
            fused.row_norm_backward(g, x, w, mean, rstd, *place), norms._rows_backward(g, x, w, mean, rstd, *place)
        )
        sizes = (samples, count, pixels, torch.float64)
        assert_same(fused.group_norm_weights(g, x, mean, rstd, *sizes), norms._group_weights(g, x, mean, rstd, *sizes))


def _batch_norm(dtype: torch.dtype) -> None:
    for shape in ((2, 3, 5, 7), (4, 6, 1, 1), (5, 3), (3, 2, 4, 8), (1, 2, 3, 3), (9, 5, 2, 6), (1, 1, 1)):
        x, g = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
        x[:, 0] = torch.randn(x[:, 0].shape).to(dtype)
        layouts = [x, x.to(memory_format=torch.channels_last)] if len(shape) == 4 else [x]
        for image in layouts:
            _batch_norm_of(image, g, dtype)


def _batch_norm_of(x: Tensor, g: Tensor, dtype: torch.dtype) -> None:
    count, saved = x.shape[1], torch.float64 if dtype is torch.float64 else torch.float32
    w, b = torch.randn(count), torch.randn(count).to(dtype)
    dense, last = batches.dense_of(x)
    there = torch.empty_like(dense).copy_(g)
    for weight, bias, known, training in ((w, b, True, True), (None, None, False, True), (w, None, True, False)):
        before = [torch.randn(count), torch.rand(count)] if known else [None, None]
        ours = [None if p is None else p.clone() for p in before]
        wanted = norms.batch_norm(x, weight, bias, *before, training, 0.3, 1e-5)
        running = ours if known else None
        found = fused.batch_norm_updating(dense, weight, bias, running, training, 0.3, 1e-5, last, saved)
        assert_same(found, wanted)
        assert_same([p for p in ours if p is not None], [p for p in before if p is not None])
        statistics = wanted[1:] if training else (before[0], before[1])
        for wish in (True, False):
            rest = (weight, *statistics, training, 1e-5, wish)
            gradients = batches.batch_backward(g, x, *rest, torch.float64)
            found = fused.batch_norm_gradients(there, dense, *rest, last, torch.float64)
            assert_same([p for p in found if p is not None], [p for p in gradients if p is not None])


def _sums(dtype: torch.dtype) -> None:
    shapes = [((5,), (0,)), ((7, 33), (1,)), ((7, 33), (0,)), ((3, 4, 5, 6), (0, 2, 3)), ((3, 4, 8, 6), (1,)),
              ((2, 300), (1,)), ((300, 3), (0,)), ((1, 1), (0, 1)), ((2, 257), (1,)), ((255,), (0,)), ((4, 40), (0, 1)),
              ((2, 3, 4, 5, 6), (0, 2, 4)), ((3, 4, 33), (1,))]  # fmt: skip
    for shape, dims in shapes:
        x = numbers(*shape, dtype=dtype)
        y = torch.randn(shape).to(dtype)
        for values in (x, y, torch.full(shape, -0.0, dtype=dtype)):
            assert_same(rows.tree_sum(values, dims), primitives.tree_sum(values, dims))
        squares = primitives.tree_sum(y.double() * y.double(), dims)
        divided = (squares / torch.full((), 7.0, dtype=torch.float64)).float()
        assert_same(rows.tree_sum(y, dims, torch.float32, 7.0, square=True), divided)
        assert_same(rows.tree_sum(y, dims, square=True, root=True), reductions.root_of(squares))


def _likelihood(dtype: torch.dtype) -> None:
    for count, classes in ((1, 1), (3, 7), (40, 33), (257, 5)):
        x = numbers(count, classes, dtype=dtype)
        target = torch.randint(classes, (count,))
        target[count // 2] = -100 if count > 1 else 0
        for weight in (None, torch.rand(classes).to(dtype)):
            for mean in (False, True):
                kind = (weight, 1 if mean else 2, -100)
                wanted = losses.nll_loss_forward(x, target, *kind)
                assert_same(at_once.nll_loss(x, target, weight, mean, -100), wanted)
                g = torch.randn(()).to(dtype)
                gradient = losses.nll_loss_backward(g, x, target, *kind, wanted[1])
                assert_same(at_once.nll_loss_backward(g, x, target, weight, mean, -100), gradient)
            each = numbers(count, dtype=dtype, seed=3)
            gradient = losses.nll_loss_backward(each, x, target, weight, 0, -100, wanted[1])
            assert_same(at_once.nll_loss_backward(each, x, target, weight, False, -100), gradient)


def _forms() -> None:
    """The forms themselves as on a GPU: what they hand to the kernels, and how many launches they take."""
    x, g, w = numbers(8, 30, dtype=torch.float32), torch.randn(8, 30), torch.randn(30)
    image, channel = x.view(4, 2, 5, 6), torch.randn(2)
    target, strided = torch.arange(8) % 5, torch.rand(4)[::2]
    _, mean, rstd = norms.layer_norm(x, [30], w, w, 1e-5)
    cases: list[tuple[int, Callable[[], Any]]] = [
        (1, lambda: norms.layer_norm(x, [30], w, w, 1e-5)),
        (3, lambda: norms.layer_norm_backward(g, x, [30], mean, rstd, w, w, [True] * 3)),
        (1, lambda: norms.layer_norm_backward(g, x, [30], mean, rstd, w, w, [True, False, False])),
        (3, lambda: norms.rms_norm_backward(g, x, [30], rstd, w, [True, True])),
        (1, lambda: norms.group_norm(image, channel, None, 4, 2, 30, 2, 1e-5)),
        (3, lambda: norms.group_norm_backward(g, image, mean, rstd, channel, 4, 2, 30, 2, [True] * 3)),
        (3, lambda: norms.batch_norm(image, channel, None, strided.clone()[:2], strided.clone(), True, 0.1, 1e-5)),
        (1, lambda: norms.batch_norm(image, channel, None, strided, strided, False, 0.1, 1e-5)),
        (1, lambda: softmaxes.softmax(x, 0, False)),
        (1, lambda: reductions.vector_norm(x, dim=1)),
        (1, lambda: reductions.mean_dims(x, [0], True)),
        (1, lambda: losses.nll_loss_forward(x, target, None, 1, 3)),
        (2, lambda: losses.nll_loss_backward(torch.ones(()), x, target, None, 1, 3, torch.ones(()))),
    ]
    made: list[Any] = []

    def counted(*args: Any, **named: Any) -> None:
        made.append(args[0])
        launch(*args, **named)

    for launches, run in cases:
        wanted = run()
        made.clear()
        with ExitStack() as stack:
            stack.enter_context(patch.object(primitives, "implementation", lambda device: gpu))
            for module in (launching, at_once):  # those that are kept are launched by the former
                stack.enter_context(patch.object(module, "launch", counted))
            assert_same(_all_of(run()), _all_of(wanted))
        assert len(made) == launches, f"{len(made)} launches, not {launches}"


def _all_of(result: Any) -> list[Tensor]:
    return [p for p in (result if isinstance(result, tuple) else [result]) if p is not None]


def _order_is_seen() -> None:
    """A negative control: the same values in another order have other sums (but not backwards: the same tree)."""
    x = torch.randn(20, 100, dtype=torch.float64)
    orders = (x, x.flip(1), x.sort(1)[0])
    means = [fused.row_norm(y.contiguous(), None, None, 20, 1, 1, 1e-5, True, x.dtype)[1] for y in orders]
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
    checks["real sizes"] = _real_sizes
    checks["weights of many rows"] = _weights_of_many_rows
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        checks[f"softmax of {dtype}"] = lambda dtype=dtype: _softmax(dtype)
        checks[f"sums of {dtype}"] = lambda dtype=dtype: _sums(dtype)
    # The interpreter rounds to bf16 in a way of its own, and norms write the dtype of their input: fp16 stands in for
    # it, and the rounding to bf16 is read in the PTX.
    for dtype in (torch.float32, torch.float16, torch.float64):
        checks[f"row norms of {dtype}"] = lambda dtype=dtype: _row_norms(dtype)
    for dtype in (torch.float32, torch.float16):
        checks[f"likelihood of {dtype}"] = lambda dtype=dtype: _likelihood(dtype)
        checks[f"batch norm of {dtype}"] = lambda dtype=dtype: _batch_norm(dtype)
    return checks


# ------------------------------------------------------------------------------------------------ compiled

NUMBERS = dict.fromkeys(("size", "eps", "magic", "kept", "taken", "unbiased"), "i64")
WIDE = {"mean": "*fp64", "rstd": "*fp64", **NUMBERS}
ROUNDING = re.compile(
    r"\b((?:fma|mad|mul|add|sub|div|sqrt|rsqrt|rcp|ex2|lg2|tanh)\.[a-z0-9_.]*f(?:64|32|16)[a-z0-9.]*)"
)
PLAIN = {"add.rn.f64", "sub.rn.f64", "mul.rn.f64"}
POWER = {"fma.rn.f32", "add.rn.f32", "sub.rn.f32", "sub.f32", "mul.rn.f32"}  # of e^x in fp32


def operations(text: str) -> set[str]:
    """Floating-point instructions that round, by their names in PTX."""
    return set(ROUNDING.findall(text))


def _compiled(kernel: Any, pointers: dict[str, str], shape: dict[str, Any], allowed: set[str]) -> None:
    constants = {name: value for name, value in shape.items() if name in kernel.arg_names}
    options = {"num_warps": shape.get("num_warps", 4), "enable_fp_fusion": False}
    for capability in CAPABILITIES if "*fp32" in pointers.values() else CAPABILITIES[-1:]:
        text = ptx(kernel, capability, pointers, constants, **options)
        found = operations(text)
        assert found <= allowed, f"sm_{capability}: {found - allowed}"
        assert found, "no arithmetic at all"
        assert "ftz" not in text
        if "out" in kernel.arg_names and pointers["out"] != "*fp64":  # by way of fp32, each rounded to the nearest
            assert "cvt.rn.f32.f64" in text
            assert pointers["out"] != "*bf16" or "cvt.rn.bf16" in text


def _rows_compiled(dtype: str, n: int) -> None:
    from easyscale.numerics.kernels.gpu import fused_kernels as kernels

    of = dict.fromkeys(("x", "g", "y", "out", "w", "b"), f"*{dtype}") | WIDE
    for logarithm in (False, True):
        kind = {"LOGARITHM": logarithm}
        powers = set() if dtype == "fp64" else POWER
        shape = shape_of(n, row_shapes.SOFTMAX)
        _compiled(kernels.softmax, of, kind | shape, PLAIN | powers | {"div.rn.f64"})
        slope = kind | shape_of(n, row_shapes.SOFTMAX_BACKWARD)
        _compiled(kernels.softmax_backward, of, slope, PLAIN | powers if logarithm else PLAIN)
    for centred in (False, True):
        kind = {"CENTRED": centred, "WEIGHT": True, "FLAT": centred}
        norm = kind | shape_of(n, row_shapes.NORM) | {"BIAS": centred}
        _compiled(kernels.row_norm, of, norm, PLAIN | {"div.rn.f64", "sqrt.rn.f64"})
        shape = shape_of(n, row_shapes.NORM_BACKWARD)
        _compiled(kernels.row_norm_backward, of, kind | shape, PLAIN | {"div.rn.f64"})


def shape_of(n: int, takes: row_shapes.Takes) -> dict[str, int]:
    shape, block = row_shapes.row_shape(n, 100_000, takes)
    return shape | {"ROWS": block}


def _channels_compiled(dtype: str, *memory: int | bool) -> None:
    from easyscale.numerics.kernels.gpu import channel_kernels as kernels

    names = dict.fromkeys(("x", "g", "out", "w", "b"), f"*{dtype}") | WIDE
    names |= dict.fromkeys(("part", "squares", "saved_mean", "saved_rstd", "running_mean", "running_var"), "*fp64")
    names |= dict.fromkeys(("dw", "db", "first", "second"), "*fp32")
    of = channels.Layout(*memory, itemsize=2 if dtype == "bf16" else 4, busy=132)
    left, _, shape = channels._sums_plan(of, True)
    for kind in range(5):
        divides = {"div.rn.f64"} if kind == channels.SQUARE else set()
        _compiled(kernels.sums, names, shape | {"KIND": kind, "LEFT": left}, PLAIN | divides)
    _compiled(
        kernels.finish, names, {"PAIR": True, "LAST": of.last, "LEFT": 64, "COLUMNS": 16 if of.last else 1}, PLAIN
    )
    shape = channels._tiles_plan(of)[2] | {"LEFT": left, "WEIGHT": True}
    for training in (False, True):
        kind = {"TRAINING": training, "RUNNING": training, "BIAS": True, "WANTED": True}
        _compiled(kernels.normalize, names, shape | kind, PLAIN | {"div.rn.f64", "sqrt.rn.f64"})
        _compiled(kernels.gradient, names, shape | kind, PLAIN | {"div.rn.f64", "sqrt.rn.f64"})


def _likelihood_compiled() -> None:
    from easyscale.numerics.kernels.gpu import loss_kernels as kernels

    names = dict.fromkeys(("x", "g", "out", "w"), "*fp32") | {"weighed": "*fp64", "target": "*i64"}
    shape = row_shapes.row_shape(1000, 1, row_shapes.SUM_OF_FEW)[0]
    kind = {"MEAN": True, "WEIGHT": True}
    _compiled(kernels.total, names, shape | kind | {"LOSS": True}, PLAIN | {"div.rn.f64"})
    _compiled(kernels.gradient, names, kind | {"EACH": False, "COLUMNS": 1024}, PLAIN | {"div.rn.f64"})


def _fusion_is_seen() -> None:
    """A negative control: left to itself, the compiler does fuse."""
    from easyscale.numerics.kernels.gpu import fused_kernels as kernels

    names = dict.fromkeys(("x", "out", "g", "y"), "*fp32") | WIDE
    constants = {"LOGARITHM": True, **shape_of(64, row_shapes.SOFTMAX_BACKWARD)}
    options = {"num_warps": constants.pop("num_warps")}
    assert "fma.rn.f64" in operations(ptx(kernels.softmax_backward, 90, names, constants, **options))


def compiled() -> Checks:
    checks: Checks = {"fusion is seen": _fusion_is_seen, "likelihood": _likelihood_compiled}
    for dtype in ("fp32", "bf16", "fp64"):
        checks[f"short rows of {dtype}"] = lambda dtype=dtype: _rows_compiled(dtype, 32)
        checks[f"channels of {dtype}"] = lambda dtype=dtype: _channels_compiled(dtype, 64, 64, 3136, False)
        checks[f"channels of {dtype}, last"] = lambda dtype=dtype: _channels_compiled(dtype, 64, 64, 49, True)
    return checks | {
        "odd channels": lambda: _channels_compiled("fp32", 64, 512, 49, False),
        "long rows": lambda: _rows_compiled("fp32", 50_257),
        "rows": lambda: _rows_compiled("fp32", 1000),
    }


def main(kind: str) -> dict[str, str]:
    torch.manual_seed(0)
    primitives.use_portable(True)
    if kind == "compiled":
        return complaints_of(compiled())
    with sizes(FEW):
        return complaints_of(interpreted())


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
