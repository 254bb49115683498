"""Runs forms that keep what they launch where there is no GPU; prints what went wrong as JSON: {check: complaint}.

    TRITON_INTERPRET=1 python triton_plans_probe.py

Each form by the kernels, again and again with other tensors of the same key, against torch operators (`portable`). As
in `triton_probe`: the interpreter does not fuse, so chains get whole numbers; slices have all bits of any number. It
rounds to bf16 in a way of its own, so where a kernel writes that, fp16 stands in for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product as pairs
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_probe import Checks, complaints_of, whole_numbers  # noqa: E402

from d2_rows import assert_same  # noqa: E402  this file runs as a program of its own
from easyscale.core.errors import UnsupportedError  # noqa: E402
from easyscale.numerics.kernels import catalogue, convolutions, gpu, portable, primitives, products  # noqa: E402
from easyscale.numerics.kernels.gpu import elementwise, slices  # noqa: E402

FORMS = catalogue.FORMS
HALVES = (torch.bfloat16, torch.float16)


@contextmanager
def by(implementation: Any) -> Iterator[None]:
    with patch.object(primitives, "implementation", lambda _device: implementation):
        yield


@contextmanager
def small(**settings: int) -> Iterator[None]:
    """Short blocks and spans, so that short sums have several of each; or all by slices."""
    kept = [value for module in (products, gpu.products) for value in vars(module).values()]
    plans = [convolutions._pointwise, *(value for value in kept if hasattr(value, "cache_clear"))]
    with ExitStack() as stack:
        for name, value in ({"BLOCK": 64, "SPAN": 128} | settings).items():
            stack.enter_context(patch.object(products, name, value))
        for plan in plans:
            plan.cache_clear()
            stack.callback(plan.cache_clear)
        yield


SLICED = {"SLICED_FROM": 1, "SLICED_SIDE": 1, "SLICED_STEPS": 1}


def both(run: Callable[[], Any]) -> None:
    with by(portable):
        wanted = run()
    with by(gpu):
        for _ in range(2):  # the second time by what was kept
            assert_same(run(), wanted)


def planned(*operands: Tensor | None) -> Any:
    with by(gpu):
        return products._planned(*operands)


def layouts(rows: int, columns: int, seed: int, dtype: torch.dtype) -> list[Tensor]:
    """One matrix, laid out in several ways; two of them begin 4 bytes (of fp32) past a multiple of 16."""
    base = whole_numbers(rows, columns, seed=seed).to(dtype)
    wide = torch.zeros(rows, columns + 3, dtype=dtype)
    wide[:, 1 : columns + 1] = base
    tall = torch.zeros(columns * rows + 1, dtype=dtype)[1:].view(columns, rows)
    tall.copy_(base.t())
    return [base, base.t().contiguous().t(), wide[:, 1 : columns + 1], tall.t()]


# ------------------------------------------------------------------------------------------------ matrices


def _products(dtype: torch.dtype, m: int, n: int, k: int) -> None:
    bias = whole_numbers(n, seed=9).to(dtype)
    for a, b in pairs(layouts(m, k, 1, dtype), layouts(k, n, 2, dtype)):
        assert planned(a, b, None) is not None
        assert planned(a, b, bias) is not None
        both(lambda a=a, b=b: FORMS["mm"].function(a, b))
        both(lambda a=a, b=b: FORMS["addmm"].function(bias, a, b))


def _chains(dtype: torch.dtype) -> None:
    with small():
        for k in (1, 5, 64, 70, 128, 131, 256, 300):
            _products(dtype, 5, 9, k)
        _products(dtype, gpu.products.TRANSPOSED_FROM + 1, 3, 200)


def _batches(dtype: torch.dtype) -> None:
    with small(), by(gpu):
        for m, n, k in ((5, 9, 70), (66, 3, 20), (1, 2, 128)):
            a, b = whole_numbers(6, m, k, seed=1).to(dtype), whole_numbers(6, k, n, seed=2).to(dtype)
            wide = torch.zeros(6 * k * n + 1, dtype=dtype)[1:].view(6, k, n).copy_(b)
            for left, right in pairs(
                (a, a.mT.contiguous().mT, a.transpose(0, 1).contiguous().transpose(0, 1), a[:1].expand(6, -1, -1)),
                (b, b.mT.contiguous().mT, wide, b[:, :, :1].expand(-1, -1, n)),
            ):  # fmt: skip
                given = gpu, left.shape, left.stride(), dtype, right.shape, right.stride(), dtype, left.device
                assert products._batch_plan(*given) is not None
                both(lambda left=left, right=right: FORMS["bmm"].function(left, right))
        long, other = whole_numbers(2, 3, 200), whole_numbers(2, 200, 4, seed=1)
        given = gpu, long.shape, long.stride(), torch.float32, other.shape, other.stride(), torch.float32, long.device
        assert products._batch_plan(*given) is None  # of several spans
        both(lambda: FORMS["bmm"].function(long, other))
        both(lambda: FORMS["bmm"].function(long[:0], other[:0]))
        both(lambda: FORMS["bmm"].function(long.long(), other.long()))
    with small(**SLICED):
        both(lambda: FORMS["bmm"].function(whole_numbers(2, 3, 20), whole_numbers(2, 20, 4, seed=1)))


def _slices(dtype: torch.dtype) -> None:
    with small(**SLICED):
        for m, n, k in ((3, 5, 7), (40, 33, 70)):
            _products(dtype, m, n, k)


def _any_number_by_slices() -> None:
    generator = torch.Generator().manual_seed(5)
    a, b, bias = (torch.randn(shape, generator=generator) for shape in ((20, 50), (50, 30), (30,)))
    a[3, 4], b[7, 2], bias[1], bias[2] = torch.inf, torch.nan, -0.0, torch.nan
    a[:, :] = torch.where(torch.arange(20)[:, None] == 5, 0.0, a)
    with small(**SLICED):
        both(lambda: FORMS["mm"].function(a[4:], b[:, 3:]))
        both(lambda: FORMS["addmm"].function(bias[3:], a[4:], b[:, 3:]))  # a bias that begins anywhere
        both(lambda: FORMS["addmm"].function(bias, a[4:], b.clone().nan_to_num_()))


def _other_sums_go_the_long_way() -> None:
    """Biases of other shapes and layouts, factors, dtypes; results are the same, complaints too."""
    a, b = whole_numbers(6, 70, seed=1), whole_numbers(70, 8, seed=2)
    several = whole_numbers(6, 16, seed=3)
    with small():
        for bias in (several[:, :8], several[0, ::2], several[:, :1], several[:1, :8], several[0, 0], several[0, :1]):
            assert planned(a, b, bias) is None
            both(lambda bias=bias: FORMS["addmm"].function(bias, a, b))
        for beta, alpha in ((0, 1), (1, 2), (0.5, 1)):
            both(lambda beta=beta, alpha=alpha: FORMS["addmm"].function(several[0, :8], a, b, beta=beta, alpha=alpha))
        both(lambda: FORMS["mm"].function(a.long(), b.long()))
        both(lambda: FORMS["mm"].function(a[:0], b))
        both(lambda: FORMS["mm"].function(a[:, :0], b[:0]))
        for wrong, kind in (((a, b.bfloat16()), RuntimeError), ((a, a), RuntimeError), ((a[0], b), RuntimeError),
                            ((a.double(), b.double()), UnsupportedError)):  # fmt: skip
            assert planned(*wrong, None) is None
            with by(gpu):
                try:
                    FORMS["mm"].function(*wrong)
                except kind:
                    continue
                raise AssertionError(f"{[x.dtype for x in wrong]} of {[x.shape for x in wrong]} were multiplied")


def _shapes_in_turn() -> None:
    """Plans that share nothing but the workspace, in turn."""
    with small(**SLICED):
        cases = [(whole_numbers(m, 40, seed=m), whole_numbers(40, m + 1, seed=3)) for m in (3, 17, 3, 40, 17)]
        for a, b in cases * 2:
            both(lambda a=a, b=b: FORMS["mm"].function(a, b))
        assert slices.sliced_plan.cache_info().hits


# ------------------------------------------------------------------------------------------------ convolutions


def _of_one_tap(shape: tuple[int, ...], out: int, dtype: torch.dtype) -> None:
    dims = len(shape) - 2
    x = whole_numbers(*shape).to(dtype)
    weight = whole_numbers(out, shape[1], *(1,) * dims, seed=1).to(dtype)
    wide = whole_numbers(*shape[:-1], shape[-1] + 3, seed=4).to(dtype)
    views = [x, wide[..., 1:-2], x.transpose(0, 1).contiguous().transpose(0, 1)]
    if dims == 2:
        views.append(x.contiguous(memory_format=torch.channels_last))
    weights = [weight, weight.transpose(0, 1).contiguous().transpose(0, 1)]
    for seen, matrix in pairs(views, weights):
        for stride, padding, transposed in ((1, 0, False), (1, 0, True), (2, 0, False), (1, 1, False)):
            given = matrix.transpose(0, 1) if transposed else matrix
            options = ([stride] * dims, [padding] * dims, [1] * dims, transposed, [0] * dims, 1)
            with by(portable):
                y = convolutions.convolution(seen, given, None, *options)
            g = whole_numbers(*y.shape, seed=2).to(dtype)
            both(lambda seen=seen, given=given, o=options: convolutions.convolution(seen, given, None, *o))
            both(
                lambda seen=seen, given=given, o=options, g=g: convolutions.convolution_backward(
                    g, seen, given, None, *o, [True, True, False]
                )
            )


def _convolutions(dtype: torch.dtype) -> None:
    few = {"MOST_ROWS": 0, "MOST_PAIRS": 0}  # else groups of so few channels have kernels of their own
    with small(), patch.multiple(gpu.direct_convolutions, **few):
        _of_one_tap((3, 5, 6, 7), 4, dtype)
        _of_one_tap((2, 70, 40), 3, dtype)
        _of_one_tap((2, 3, 2, 3), 4, dtype)  # few places of each image
        x = whole_numbers(2, 5, 6, 7).to(dtype)
        with by(gpu):
            assert convolutions._pointwise.cache_info().currsize
            options = (convolutions.Window((1, 1), (1, 1), (0, 0), (1, 1)), 1, dtype, x.device)
            assert convolutions._pointwise(x.shape, x.stride(), 4, 5, 1, *options) is not None
            assert convolutions._pointwise(x.shape, x[..., ::2].stride(), 4, 5, 1, *options) is None
            last = x.contiguous(memory_format=torch.channels_last).stride()
            assert convolutions._pointwise(x.shape, last, 70, 5, 1, *options) is None  # worth a copy


# ------------------------------------------------------------------------------------------------ other operators


def _sums() -> None:
    x = whole_numbers(6, 5, 4, 3)
    shapes = [x, x.permute(3, 1, 0, 2), x[:, 1:, :, 1:], x[1:], x.flatten()[1:], x[0, 0, 0, 0], x[:0], x[:, :, :0]]
    for seen in shapes:
        for dims in ([], None, [0], [-1], [0, -1], list(range(seen.dim()))[1:3]):
            if dims and seen.dim() < len(dims):
                continue
            for keep in (False, True):
                for dtype in (None, torch.float64, torch.bfloat16):
                    both(lambda s=seen, d=dims, k=keep, t=dtype: FORMS["sum.dim_IntList"].function(s, d, k, dtype=t))
        both(lambda s=seen: FORMS["mean"].function(s.half()))
    both(lambda: primitives.tree_sum(x > 0, (0, 2)))


def _elementwise() -> None:
    x = whole_numbers(5, 6, 7, 8)
    views = [x, x.contiguous(memory_format=torch.channels_last), x.flatten()[1:], x[:, ::2], x[:0], x[0, 0, 0, 0]]
    for seen, dtype in pairs(views, (torch.float32, torch.float16, torch.float64)):
        given, g = seen.to(dtype), seen.float()
        both(lambda s=given: FORMS["gelu"].function(s))
        both(lambda s=given, g=g: FORMS["gelu_backward"].function(g, s))
        both(lambda s=given: FORMS["softplus"].function(s, 2.0, 3.0))
    assert elementwise._plan.cache_info().hits


def _norms() -> None:
    x = whole_numbers(4, 6, 10)
    one, other = whole_numbers(10, seed=1), whole_numbers(10, seed=2).half()
    for weight, bias in ((one, one), (one, other), (other, one), (one, None), (None, None)):
        for seen in (x, x.flatten()[10:].view(-1, 10), x.flatten()[1:231].view(23, 10), x.transpose(0, 1)):
            both(lambda s=seen, w=weight, b=bias: FORMS["native_layer_norm"].function(s, [10], w, b, 1e-5))
            with by(portable):
                _, mean, rstd = FORMS["native_layer_norm"].function(seen, [10], weight, bias, 1e-5)
            for statistics in (mean, mean.double()):
                both(
                    lambda s=seen, w=weight, b=bias, m=statistics, r=rstd: FORMS["native_layer_norm_backward"].function(
                        s, s, [10], m, r, w, b, [True, True, True]
                    )
                )


def _factors() -> None:
    """Of multiplication, by a number: as torch's type promotion has it."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.bool):
        for x in (whole_numbers(4, 5).to(dtype), whole_numbers(1).to(dtype)[0]):
            for number in (2, 0.3, -0.0, True):
                made = FORMS["mul.Tensor"].function(x, number)
                assert_same(made, torch.mul(x, number))
                assert made.dtype is torch.result_type(x, number)


def interpreted() -> Checks:
    checks: Checks = {}
    for dtype in (torch.float32, *HALVES):
        checks[f"chains of {dtype}"] = lambda dtype=dtype: _chains(dtype)
        checks[f"batches of {dtype}"] = lambda dtype=dtype: _batches(dtype)
        checks[f"slices of {dtype}"] = lambda dtype=dtype: _slices(dtype)
    for dtype in (torch.float32, torch.bfloat16):
        checks[f"convolutions of {dtype}"] = lambda dtype=dtype: _convolutions(dtype)
    return checks | {
        "any number by slices": _any_number_by_slices, "other sums": _other_sums_go_the_long_way,
        "several shapes": _shapes_in_turn, "sums": _sums, "elementwise": _elementwise, "norms": _norms,
        "factors": _factors,
    }  # fmt: skip


def main() -> None:
    print(json.dumps(complaints_of(interpreted())))


if __name__ == "__main__":
    main()
