"""Runs the Triton kernels of exact slices where there is no GPU; prints what went wrong as JSON: {check: complaint}.

    TRITON_INTERPRET=1 python triton_slices_probe.py interpreted    products and convolutions, against `portable`
    python triton_slices_probe.py compiled                          compiled for sm_80 and sm_90, PTX and SASS read

A program of its own like `triton_probe`, and for the same reason. Sums of whole numbers are exact, so the interpreter
has all bits; only the chains of `repair`, which it does not fuse, get whole numbers.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_probe import _FLOATING, CAPABILITIES, Checks, build, complaints_of, whole_numbers  # noqa: E402

from d2_rows import assert_same  # noqa: E402  this file runs as a program of its own
from easyscale.numerics.kernels import convolutions, gpu, portable, primitives, products, weights  # noqa: E402
from easyscale.numerics.kernels import sliced_convolutions as by_slices  # noqa: E402
from easyscale.numerics.kernels.gpu import sliced_convolutions, slices  # noqa: E402
from easyscale.numerics.kernels.gpu.slices import TILES, Tile  # noqa: E402
from easyscale.numerics.kernels.sliced_convolutions import Correlation  # noqa: E402

ALL_TILES = (*TILES, sliced_convolutions.SMALL)


def name_of(tile: Tile) -> str:
    return f"{tile.rows} x {tile.columns} by {tile.depth}, {tile.stages} stages"


def numbers(*shape: int, spread: float = 1.0, seed: int = 0) -> Tensor:
    """Values of many magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.exp(spread * torch.randn(shape, generator=generator))


def uneven(*shape: int, seed: int = 0) -> Tensor:
    """Pictures of which each channel of each image has a size of its own."""
    return numbers(*shape, seed=seed) * torch.exp(2 * numbers(*shape[:2], 1, 1, spread=0, seed=seed + 50))


@contextmanager
def tuned(tile: Tile | None = None, **settings: Any) -> Iterator[None]:
    """Other numbers of what only speed depends on. Plans that were made with the usual ones are forgotten."""
    plans = [
        slices.sliced_plan, slices._cutting, sliced_convolutions._convolving, sliced_convolutions._weighing,
        sliced_convolutions.groups_of,
    ]  # fmt: skip
    with ExitStack() as stack:
        for name, value in settings.items():
            for module in (slices, sliced_convolutions):
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, value))
        if tile is not None:
            stack.enter_context(patch.object(slices, "tile_for", lambda device: tile))
            stack.enter_context(patch.object(sliced_convolutions, "_tile", lambda channels, device: tile))
        for plan in plans:
            plan.cache_clear()
        try:
            yield
        finally:
            for plan in plans:
                plan.cache_clear()


# Many parts of k, each of one step or a few.
IN_PARTS = {"LEAST_STEPS": 64, "processors": lambda device: 64}


# ------------------------------------------------------------------------------------------------ products


def _product(m: int, n: int, k: int, dtype: torch.dtype, count: int, tile: Tile | None = None) -> None:
    a, b = numbers(m, k, spread=4).to(dtype), numbers(k, n, seed=1).to(dtype)
    if m > 5 and k > 3:
        a[1], a[0, 2], a[:, 1], a[2] = 0, 1e-44, -0.0, 1e-44
        if dtype is torch.float32:
            a[3] *= 1e-38  # subnormal, but for some
            a[4, 0], b[0, 0] = 3e38, 127 / 128
    wanted = portable.sliced_product(a, b, count)
    for left, right in ((a, b), (a.t().contiguous().t(), b.t().contiguous().t())):
        assert_same(slices.sliced_product(left, right, count, tile=tile), wanted)


def _products(dtype: torch.dtype) -> None:
    for m, n, k in [(1, 1, 1), (40, 24, 64), (33, 70, 100), (5, 130, 17), (0, 3, 4), (3, 0, 4), (3, 4, 0), (9, 7, 300)]:
        for count in (3, 4):
            _product(m, n, k, dtype, count)


def _tile(tile: Tile) -> None:
    """Rows, columns and steps that fill tiles, and not; several of them."""
    for m, n, k in [(5, 70, 300), (2 * tile.rows + 3, tile.columns, tile.depth), (tile.rows, 9, 2 * tile.depth)]:
        _product(m, n, k, torch.float32, 4, tile)
    _product(tile.rows + 1, tile.columns + 1, tile.depth + 1, torch.float32, 3, tile)


def _rows_too_long_for_one_program() -> None:
    """Their largest values are found by one kernel, slices cut by another."""
    with tuned(AT_ONCE=32):
        for m, n, k in [(40, 24, 64), (6, 9, 5000)]:
            for dtype, count in ((torch.float32, 4), (torch.bfloat16, 3)):
                _product(m, n, k, dtype, count)


def _not_finite() -> None:
    a, b = whole_numbers(70, 20), whole_numbers(20, 150, seed=1)
    a[3, 4], a[69, 0], b[1, 9], b[19, 149] = torch.inf, torch.nan, torch.nan, -torch.inf
    for count in (3, 4):
        wanted = portable.sliced_product(a, b, count)
        assert_same(slices.sliced_product(a, b, count), wanted)
        with tuned(AT_ONCE=8, **IN_PARTS):
            assert_same(slices.sliced_product(a, b, count), wanted)


def _parts() -> None:
    """Any split of k into parts has the same bits."""
    a, b = numbers(20, 700), numbers(700, 30, seed=1)
    wanted = portable.sliced_product(a, b, 4)
    tile = TILES[-1]
    for least, many in ((64, 64), (128, 64), (200, 2), (64, 1)):
        with tuned(LEAST_STEPS=least, processors=lambda device, many=many: many):
            number, each = slices.parts_of(1, 700, tile, a.device)
            assert number == max(1, min(2 * many, 700 // least, -(-700 // each))), (number, each)
            assert_same(slices.sliced_product(a, b, 4), wanted)
    with tuned(MOST_STEPS=128):
        assert slices.parts_of(1, 700, tile, a.device) == (6, 128)
        assert_same(slices.sliced_product(a, b, 4), wanted)


def _bias() -> None:
    """Added in fp32 after all else, to chains too."""
    a, b, bias = whole_numbers(70, 200), whole_numbers(200, 90, seed=1), numbers(90, seed=2)
    a[3, 4], b[1, 9] = torch.inf, torch.nan
    wanted = portable.sliced_product(a, b, 4) + bias
    assert_same(slices.sliced_product(a, b, 4, bias=bias), wanted)
    with tuned(**IN_PARTS):
        assert_same(slices.sliced_product(a, b, 4, bias=bias), wanted)
    empty = slices.sliced_product(a[:, :0], b[:0], 4, bias=bias)
    assert_same(empty, bias.expand(70, 90))


LOWEST = -0x7E808080 / 2**31  # its digits are -126, -128, -128, -128: sums of them are as large as sums can be


def _long_sums() -> None:
    """Sums that do not fit into 32 bits."""
    a, b = torch.full((2, 40_000), LOWEST), torch.full((40_000, 3), LOWEST)
    assert_same(slices.sliced_product(a, b, 4), portable.sliced_product(a, b, 4))
    x, w = torch.full((1, 1400, 5, 6), LOWEST), torch.full((2, 1400, 5, 5), LOWEST)
    over = Correlation((5, 5), (0, 0), (1, 2), (1, 1), (1, 1))
    assert 4 * 2**14 * 1400 * 25 > 2**31
    with tuned(TILES[-1]):
        found = sliced_convolutions.sliced_convolution(x, w, over, 4)
    with by_portable():
        assert_same(found, by_slices.forward(x, w, over, 4))


@contextmanager
def _with_a_pair_lost() -> Iterator[None]:
    from easyscale.numerics.kernels.gpu import sliced_convolution_kernels, slices_kernels

    whole = slices_kernels.pairs

    def three_only(*args: Any) -> Any:
        return *whole(*args)[:3], args[-2]  # the sum of the pairs of the last group, as it was

    with ExitStack() as stack:
        for kernel in (slices_kernels.multiply, sliced_convolution_kernels._over_taps):
            stack.enter_context(patch.dict(kernel.fn.__globals__, {"pairs": three_only}))
        yield


def _a_lost_pair_is_seen() -> None:
    """A negative control."""
    a, b = numbers(9, 40), numbers(40, 8, seed=1)
    x, w = uneven(2, 5, 4, 4), numbers(3, 5, 1, 1)
    over = Correlation((1, 1), (0, 0), (4, 4), (1, 1), (1, 1))
    right = slices.sliced_product(a, b, 4), sliced_convolutions.sliced_convolution(x, w, over, 4)
    with _with_a_pair_lost():
        wrong = slices.sliced_product(a, b, 4), sliced_convolutions.sliced_convolution(x, w, over, 4)
    for ours, theirs in zip(right, wrong, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
        assert not torch.equal(ours, theirs)


# ------------------------------------------------------------------------------------------------ convolutions


class Implementation:
    """Torch operators, but for the convolutions under test."""

    tree_sum = staticmethod(portable.tree_sum)
    product = staticmethod(portable.product)
    sliced_convolution = staticmethod(gpu.sliced_convolution)
    sliced_weight_gradient = staticmethod(gpu.sliced_weight_gradient)


@contextmanager
def by_portable() -> Iterator[None]:
    primitives.use_portable(True)
    try:
        yield
    finally:
        primitives.use_portable(False)


def both_ways(run: Callable[[], Any]) -> None:
    """By the kernels, and by torch operators; every convolution by slices."""
    with patch.object(products, "SLICED_FROM", 1), patch.object(by_slices, "SLICED_CHANNELS", 1):
        with by_portable():
            wanted = run()
        with patch.object(primitives, "implementation", lambda device: Implementation):
            found = run()
    assert_same(found, wanted)


# images, channels in and out, height, width, taps, dilation, padding, stride
CASES = [
    (2, 5, 7, 6, 5, 3, 1, 1, 1), (3, 4, 6, 7, 9, 3, 1, 0, 1), (2, 8, 40, 5, 5, 1, 1, 0, 1),
    (1, 6, 4, 9, 8, 3, 2, 2, 1), (2, 3, 5, 6, 6, 5, 1, 2, 1), (2, 70, 33, 4, 4, 3, 1, 1, 1),
    (2, 4, 6, 5, 6, 3, 1, 3, 1), (2, 5, 7, 9, 8, 3, 1, 1, 2), (2, 5, 7, 9, 8, 1, 1, 0, 2),
    (2, 4, 6, 11, 10, 3, 2, 1, 3), (2, 4, 6, 12, 12, 5, 1, 0, 2), (2, 4, 3, 6, 5, 1, 1, 1, 1),
    (2, 3, 4, 17, 2, 3, 1, 1, 1), (1, 2, 3, 7, 33, 3, 4, 3, 1), (2, 3, 4, 7, 7, 2, 3, 1, 2),
    (1, 4, 4, 9, 9, 3, 1, 0, 4),
]  # fmt: skip


def _all_three(case: tuple[int, ...], dtype: torch.dtype = torch.float32, layout: str = "plain") -> None:
    """Forward, gradient of the input and of the weight."""
    images, inner, out, height, width, taps, dilation, padding, stride = case
    x, w = uneven(images, inner, height, width).to(dtype), numbers(out, inner, taps, taps, seed=1).to(dtype)
    if layout == "channels last":
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
    elif layout == "views":
        x = uneven(images, inner, 2 * height, 3 * width).to(dtype)[:, :, 1::2, ::3]
        w = numbers(inner, out, taps, taps + 1, seed=1).to(dtype).transpose(0, 1)[..., 1:]
    args = ([stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], 1)
    both_ways(lambda: convolutions.convolution(x, w, None, *args))
    grad = uneven(*torch.ops.aten.convolution(x.float(), w.float(), None, *args).shape, seed=2).to(dtype)
    both_ways(lambda: convolutions.convolution_backward(grad, x, w, None, *args, [True, True, False]))


def _cropped() -> None:
    """A phase may begin inside the picture, and end there."""
    x, w = uneven(2, 5, 8, 9), numbers(6, 5, 2, 3, seed=1)
    for low in ((-1, -2), (-3, 1), (2, -1), (0, -4)):
        for stride in ((1, 1), (2, 1), (1, 3)):
            over = Correlation((2, 3), low, (3, 2), stride, (1, 2))
            with by_portable():
                wanted = by_slices.forward(x, w, over, 4)
            assert_same(sliced_convolutions.sliced_convolution(x, w, over, 4), wanted)


def _transposed() -> None:
    x, w = uneven(2, 5, 4, 5), numbers(5, 6, 3, 3, seed=1)
    args = ([2, 2], [1, 1], [1, 1], True, [1, 0], 1)
    both_ways(lambda: convolutions.convolution(x, w, None, *args))
    grad = uneven(2, 6, 8, 9, seed=2)
    both_ways(lambda: convolutions.convolution_backward(grad, x, w, None, *args, [True, True, False]))


def _one_infinity() -> None:
    for odd in (torch.inf, torch.nan):
        for stride in (1, 2):
            args = ([stride] * 2, [1, 1], [1, 1], False, [0, 0], 1)
            x, w = uneven(3, 4, 7, 6), numbers(5, 4, 3, 3, seed=1)
            grad = uneven(*torch.ops.aten.convolution(x, w, None, *args).shape, seed=2)
            for spoilt in (x, w, grad):
                before = spoilt.clone()
                spoilt[1, 2, 0, 1] = odd
                both_ways(lambda x=x, w=w, args=args: convolutions.convolution(x, w, None, *args))
                both_ways(lambda x=x, w=w, grad=grad, args=args: convolutions.convolution_backward(
                    grad, x, w, None, *args, [True, True, False]))  # fmt: skip
                spoilt.copy_(before)
    with tuned(**IN_PARTS):  # parts are joined by another kernel
        x[1, 2, 0, 1], grad[0, 4, 1, 1] = torch.nan, torch.inf
        both_ways(lambda: convolutions.convolution_backward(grad, x, w, None, *args, [False, True, False]))


def _convolutions_in_parts() -> None:
    """Places of a weight gradient in parts, loads of a convolution joined in 64 bits now and then."""
    for tile in (TILES[-1], Tile(32, 32, 32, 4, 2)):
        for settings in (IN_PARTS, {"MOST_STEPS": 64}, {**IN_PARTS, "LEAST_STEPS": 128, "MOST_STEPS": 192}):
            with tuned(tile, **settings):
                _all_three((2, 70, 33, 9, 8, 3, 1, 1, 1))
                _all_three((2, 5, 40, 12, 11, 3, 1, 1, 2))
    with tuned(TILES[-1], **IN_PARTS):
        found = sliced_convolutions._divided(40, 5, 9, 700, TILES[-1], torch.device("cpu"))
        assert found[0] == 6, "and there were parts"


@contextmanager
def in_groups(size: int, **settings: Any) -> Iterator[list[int]]:
    """Images in groups of so many, the last one of what is left; how many groups there were each time."""
    found: list[int] = []

    @functools.cache
    def groups(images: int, each: int) -> tuple[tuple[int, int], ...]:
        made = tuple((first, min(images, first + size)) for first in range(0, images, size))
        found.append(len(made))
        return made

    with tuned(**settings), patch.object(sliced_convolutions, "groups_of", groups):
        yield found


def _groups_of_images() -> None:
    """Groups that begin at aligned images and at others, whose last is smaller; in one part of places, and in many."""
    many: dict[str, Any] = {**IN_PARTS, "tile": TILES[-1]}
    for size, images, settings, stride, layout in (
        (1, 3, {}, 1, "plain"), (2, 5, many, 1, "channels last"), (4, 6, many, 2, "plain"), (2, 3, {}, 2, "views"),
    ):  # fmt: skip
        with in_groups(size, **settings) as found:
            _all_three((images, 5, 7, 6, 5, 3, 1, 1, stride), layout=layout)
        assert found, "it was asked"
        assert set(found) == {-(-images // size)}, found
    with in_groups(2):
        _all_three((3, 66, 33, 4, 4, 3, 2, 2, 1), torch.bfloat16, "views")
        _kept_weights()
        x, w, grad = uneven(3, 4, 5, 6), numbers(5, 4, 3, 3, seed=1), uneven(3, 5, 5, 6, seed=2)
        x[2, 2, 0, 1], grad[0, 4, 1, 1] = torch.nan, torch.inf
        args = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        both_ways(lambda: convolutions.convolution(x, w, *args))
        both_ways(lambda: convolutions.convolution_backward(grad, x, w, *args, [True, True, False]))


def _groups_by_their_bytes() -> None:
    """The bound itself: what is cut at a time stays below it, but for zeros behind the last image, and the bits are the
    same."""
    stock, cut = sliced_convolutions.cut_image, []

    def counting(*args: Any) -> Tensor:
        made = stock(*args)
        cut.append(made.numel())
        return made

    with patch.object(sliced_convolutions, "cut_image", counting):
        for most, case in ((1, (2, 5, 7, 6, 5, 3, 1, 1, 1)), (100_000, (9, 5, 7, 9, 8, 3, 1, 1, 2))):
            cut.clear()
            with tuned(MOST_BYTES=most):
                _all_three(case)
            assert len(cut) >= 8, "two images forward, two of the input's gradient, and each factor of the weight's"
            assert most == 1 or max(cut) <= 1.1 * most, (most, cut)
    assert [end - first for first, end in sliced_convolutions.groups_of(32, 12_960_000)] == [8, 8, 8, 8]


def _a_lost_group_is_seen() -> None:
    """A negative control: each group's sums in the place of those before it."""
    stock = sliced_convolutions._weighing
    x, grad = uneven(5, 4, 6, 5), uneven(5, 6, 6, 5, seed=2)
    over = Correlation((3, 3), (1, 1), (6, 5), (1, 1), (1, 1))
    right = sliced_convolutions.sliced_weight_gradient(grad, x, over, 4)
    with in_groups(2):
        assert_same(sliced_convolutions.sliced_weight_gradient(grad, x, over, 4), right)
    with in_groups(2), patch.object(sliced_convolutions, "_weighing", lambda *args: stock(*args[:-1], False)):
        assert not torch.equal(sliced_convolutions.sliced_weight_gradient(grad, x, over, 4), right)


def _copies_for_taps() -> None:
    """Taps that begin at no multiple of 16 have copies of the pictures that do; tables of all sorts."""
    for height, width, taps in ((6, 5, 3), (5, 20, 3), (9, 31, 5), (5, 16, 1), (5, 16, 3)):
        over = Correlation((taps,) * 2, (taps // 2,) * 2, (height, width), (1, 1), (1, 1))
        layout = sliced_convolutions.layout_of(torch.Size((2, 4, height, width)), over, taps > 1)
        copies, table = sliced_convolutions._shifted(over, layout.pitch, torch.device("cpu"))
        assert len(copies) == len({*map(tuple, copies.tolist())}) <= taps**2
        assert (copies[:, 2] < 16).all()
        assert (table[1] % 16 == 0).all()
        shifts = copies[table[0], 2] + table[1]
        assert shifts.tolist() == [y * layout.pitch + x for y in range(taps) for x in range(taps)]
        _all_three((2, 4, 6, height, width, taps, 1, taps // 2, 1))


def _kept_weights() -> None:
    """Slices of a parameter are cut once, and again when it has changed."""
    x, w = uneven(2, 5, 6, 6), numbers(6, 5, 3, 3, seed=1)
    args = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    cut: list[torch.Size] = []
    stock = sliced_convolutions._cut_taps

    def counting(weight: Tensor, *rest: Any) -> Any:
        cut.append(weight.shape)
        return stock(weight, *rest)

    with patch.object(sliced_convolutions, "_cut_taps", counting):
        weights.declare([w])
        for change in (0.0, 1.0):
            if change:
                w[2, 3, 1, 1] += change
            for _ in range(2):
                both_ways(lambda: convolutions.convolution(x, w, *args))
        weights.end()
    assert len(cut) == 2, cut


def _another_scale_is_seen() -> None:
    """A negative control: the largest value of all images in the place of each image's."""
    stock = sliced_convolutions.largest

    def of_all(x: Tensor, by_image: bool) -> Tensor:
        found = stock(x, by_image)
        return found.amax().expand(found.shape).contiguous()

    x, w = uneven(3, 4, 6, 5), numbers(6, 4, 3, 3, seed=1)
    over = Correlation((3, 3), (1, 1), (6, 5), (1, 1), (1, 1))
    grad = uneven(3, 6, 6, 5, seed=2)

    def run() -> list[Tensor]:
        return [
            sliced_convolutions.sliced_convolution(x, w, over, 4),
            sliced_convolutions.sliced_weight_gradient(grad, x, over, 4),
        ]  # fmt: skip

    right = run()
    with patch.object(sliced_convolutions, "largest", of_all):
        wrong = run()
    for ours, theirs in zip(right, wrong, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        assert not torch.equal(ours, theirs)


def interpreted() -> Checks:
    checks: Checks = {f"tile {name_of(tile)}": lambda tile=tile: _tile(tile) for tile in ALL_TILES}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        checks[f"products of {dtype}"] = lambda dtype=dtype: _products(dtype)
    checks |= {
        "long rows": _rows_too_long_for_one_program, "not finite": _not_finite, "parts": _parts, "bias": _bias,
        "long sums": _long_sums, "a lost pair is seen": _a_lost_pair_is_seen,
    }  # fmt: skip
    for number, case in enumerate(CASES):
        layout = ("plain", "channels last", "views")[number % 3]
        checks[f"convolution {case}, {layout}"] = lambda case=case, layout=layout: _all_three(case, layout=layout)
    for layout in ("channels last", "views"):
        checks[f"convolution, {layout}"] = lambda layout=layout: _all_three(CASES[7], layout=layout)
    for dtype in (torch.bfloat16, torch.float16):
        for case in (CASES[0], CASES[7]):
            checks[f"convolution {case}, {dtype}"] = lambda case=case, dtype=dtype: _all_three(case, dtype)
    for tile in ALL_TILES:
        checks[f"convolution by {name_of(tile)}"] = lambda tile=tile: _by_tile(tile)
    return checks | {
        "cropped": _cropped, "transposed": _transposed, "one infinity": _one_infinity,
        "convolutions in parts": _convolutions_in_parts, "copies for taps": _copies_for_taps,
        "kept weights": _kept_weights, "another scale is seen": _another_scale_is_seen,
        "groups of images": _groups_of_images, "groups by their bytes": _groups_by_their_bytes,
        "a lost group is seen": _a_lost_group_is_seen,
    }  # fmt: skip


def _by_tile(tile: Tile) -> None:
    with tuned(tile):
        _all_three((2, 70, 66, 7, 6, 3, 1, 1, 2))


# ------------------------------------------------------------------------------------------------ compiled

CUTTING = {"add.rn.f32", "sub.rn.f32", "mul.rn.f32"}
BOTH = {"SLICES": 4, "ROWS_A": 4, "DEPTH_A": 512, "TIMES_A": 2, "ROWS_B": 64, "DEPTH_B": 64, "TIMES_B": 4}
FINISH = {"SLICES": 3, "ROWS_A": 4, "DEPTH_A": 512, "PARTS_A": 8, "ROWS_B": 64, "DEPTH_B": 64, "PARTS_B": 16}


def _cutting_compiled() -> None:
    """Each operation is rounded by itself; left to itself, the compiler would fuse some."""
    from easyscale.numerics.kernels.gpu import sliced_convolution_kernels, slices_kernels

    pointers = dict.fromkeys(("most", "found", "copies", "most_a", "most_b"), "*i32")
    pointers |= {"v": "*fp32", "out": "*i8", "bias": "*fp32"}
    pointers |= {f"{name}_{factor}": kind for factor in "ab" for name, kind in (("found", "*i32"), ("out", "*i8"))}
    found, picture = slices_kernels, sliced_convolution_kernels
    plane = {"BY_IMAGE": True, "CHANNELS": 32, "PLACES": 128}
    cases: list[tuple[Any, dict[str, Any], set[str]]] = [
        (found.cut_rows, {"SLICES": 4, "ROWS": 4, "DEPTH": 1024}, CUTTING),
        (found.cut_tiles, {"SLICES": 3, "ROWS": 64, "DEPTH": 64, "PARTS": 8}, CUTTING),
        (found.find_most, {"ROWS": 4, "DEPTH": 512, "TIMES": 4}, set()),
        (found.begin_both, BOTH | {"WHOLE_A": True, "WHOLE_B": True}, CUTTING),
        (found.begin_both, BOTH | {"WHOLE_A": True, "WHOLE_B": False}, CUTTING),
        (found.begin_both, BOTH | {"WHOLE_A": False, "WHOLE_B": False}, set()),
        (found.finish_both, FINISH, CUTTING),
        (picture.cut_image, {"SLICES": 4, **plane}, CUTTING),
        (picture.cut_image, {"SLICES": 3, **plane, "BY_IMAGE": False}, CUTTING),
        (picture.find_plane_most, {"BY_IMAGE": False, "DENSE": False, "CHANNELS": 4, "BLOCK": 1024}, set()),
        (found.join, {"SLICES": 4, "MASKED": True, "BIAS": False, "BLOCK": 512}, {"mul.rn.f64"}),
        (found.join, {"SLICES": 4, "MASKED": False, "BIAS": True, "BLOCK": 512}, {"mul.rn.f64", "add.rn.f32"}),
    ]  # fmt: skip
    for capability in CAPABILITIES:
        for kernel, constants, allowed in cases:
            for dtype in ("fp32", "bf16", "fp16"):
                known = pointers | dict.fromkeys(("v", "a", "b"), f"*{dtype}")
                known |= {"parts": "*i64", "out": "*fp32"} if kernel is found.join else {}
                text = build(kernel, capability, known, constants, num_warps=4, enable_fp_fusion=False).asm["ptx"]
                assert set(_FLOATING.findall(text)) == allowed, (kernel.__name__, set(_FLOATING.findall(text)))
                assert "ftz" not in text
        fused = build(found.cut_rows, capability, pointers, cases[0][1], num_warps=4).asm["ptx"]
        assert "fma.rn.f32" in fused, "a negative control"
        known = {"a": "*fp32", "b": "*fp32", "most_a": "*i32", "most_b": "*i32", "bias": "*fp32", "out": "*fp32"}
        sizes = {"ROWS": slices.CHECKED, "COLUMNS": slices.CHECKED, "DEPTH": 16, "EACH": 2}
        for biased in (False, True):
            constants = {"BIAS": biased, **sizes}
            text = build(found.repair, capability, known, constants, num_warps=4, num_stages=1).asm["ptx"]
            assert set(_FLOATING.findall(text)) == ({"fma.rn.f32", "add.f32"} if biased else {"fma.rn.f32"})


def _wide_loads_compiled() -> None:
    """Several values are loaded at once only where they lie side by side, whatever else is known of the strides."""
    from easyscale.numerics.kernels.gpu.sliced_convolution_kernels import cut_image, find_plane_most

    pointers = {"v": "*fp32", "most": "*i32", "out": "*i8", "copies": "*i32"}
    wide = re.compile(r"ld\.global[.\w:]*\.v\d")
    names = [name for name in find_plane_most.arg_names if not name.isupper()]
    for dense in (True, False):
        constants = {"BY_IMAGE": True, "DENSE": dense, "CHANNELS": 4, "BLOCK": 1024}
        found = build(find_plane_most, 90, pointers, constants, tuple(names), num_warps=4, enable_fp_fusion=False)
        assert bool(wide.search(found.asm["ptx"])) == dense
    names = [name for name in cut_image.arg_names if not name.isupper()]
    for by_image in (True, False):
        constants = {"SLICES": 4, "BY_IMAGE": by_image, "CHANNELS": 32, "PLACES": 128}
        found = build(cut_image, 90, pointers, constants, tuple(names), num_warps=4, enable_fp_fusion=False)
        assert not wide.search(found.asm["ptx"])


def _kernels(tile: Tile, capability: int, count: int) -> Iterator[tuple[str, Any]]:
    """Each kernel that multiplies slices, with and without parts."""
    from easyscale.numerics.kernels.gpu.sliced_convolution_kernels import convolve, convolve_weights
    from easyscale.numerics.kernels.gpu.slices_kernels import multiply

    pointers = {
        "a": f"tensordesc<i8[{tile.rows}, {tile.depth}]>", "b": f"tensordesc<i8[{tile.columns}, {tile.depth}]>",
        "most_a": "*i32", "most_b": "*i32", "table": "*i32", "bias": "*fp32",
    }  # fmt: skip
    forms: list[tuple[Any, dict[str, Any]]] = [
        (multiply, {"PARTS": False, "BIAS": False}), (multiply, {"PARTS": False, "BIAS": True}),
        (multiply, {"PARTS": True, "BIAS": False}), (convolve_weights, {"PARTS": False, "MORE": False}),
        (convolve_weights, {"PARTS": True, "MORE": False}), (convolve_weights, {"PARTS": True, "MORE": True}),
        (convolve, {"AT_ONCE": 0}), (convolve, {"AT_ONCE": 128}),
    ]  # fmt: skip
    for kernel, constants in forms:
        known = pointers | {"out": "*i64" if constants.get("PARTS") else "*fp32"}
        options = tile.options()
        given = {"SLICES": count, **constants, **{name: options[name] for name in ("ROWS", "COLUMNS", "DEPTH")}}
        rest = {name: value for name, value in options.items() if name not in given}
        name = f"{kernel.__name__} {constants} for sm_{capability}"
        yield name, build(kernel, capability, known, given, enable_fp_fusion=False, **rest)


def _products_compiled(tile: Tile, capability: int) -> None:
    """One scaling and no other floating-point operation; whole numbers on tensor cores, each pair of slices once."""
    for count, pairs in ((3, 6), (4, 10)):
        for name, found in _kernels(tile, capability, count):
            text = found.asm["ptx"]
            allowed = set() if "'PARTS': True" in name else {"mul.rn.f64"}
            allowed |= {"add.rn.f32"} if "'BIAS': True" in name else set()
            assert set(_FLOATING.findall(text)) == allowed, (name, set(_FLOATING.findall(text)))
            if allowed:
                assert "cvt.rn.f64.s64" in text, name
                assert "cvt.rn.f32.f64" in text, name
            assert found.metadata.shared <= tile.memory, name
            each = 64 * tile.columns * 32 if capability == 90 else 16 * 8 * 32
            work = tile.rows * tile.columns * tile.depth // each
            groups = tile.warps // 4 if capability == 90 else tile.warps
            form = r"wgmma\.mma_async\S*\.s32\.s8\.s8" if capability == 90 else r"mma\.sync\S*\.s32\.s8\.s8\.s32"
            assert len(re.findall(form, text)) * groups == pairs * work, name


def _loops_keep_sums_in_registers() -> None:
    """With the tiles that an H200 takes: nothing is spilt within the loop over k."""
    for tile in (TILES[0], sliced_convolutions.SMALL):
        for name, found in _kernels(tile, 90, 4):
            # the shortest loop that multiplies; longer ones are jumps back from where it waits, after all else
            loop = min((lines for lines in _loops(found.asm["cubin"]) if any("GMMA" in x for x in lines)), key=len)
            assert sum("GMMA" in line for line in loop) == 10 * tile.depth // 32, name
            assert not [line for line in loop if re.search(r"\b(STL|LDL)\b", line)], name


def _loops(cubin: bytes) -> Iterator[list[str]]:
    """The instructions of each loop."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-sass", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [(int(at, 16), line) for at, line in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", text)]
    for at, line in lines:
        jump = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", line)
        if jump and int(jump[1], 16) < at:
            yield [inner for place, inner in lines if int(jump[1], 16) <= place <= at]


def compiled() -> Checks:
    checks: Checks = {"cutting": _cutting_compiled, "wide loads": _wide_loads_compiled}
    for tile in (TILES[0], sliced_convolutions.SMALL):
        checks[f"{name_of(tile)} for sm_90"] = lambda tile=tile: _products_compiled(tile, 90)
    checks[f"{name_of(TILES[1])} for sm_80"] = lambda: _products_compiled(TILES[1], 80)
    return checks | {"loops": _loops_keep_sums_in_registers}


if __name__ == "__main__":
    print(json.dumps(complaints_of(interpreted() if sys.argv[1] == "interpreted" else compiled())))
