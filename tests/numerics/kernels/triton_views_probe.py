"""Runs the Triton kernel of convolutions where there is no GPU, and prints what went wrong as JSON: {check: complaint}.

    TRITON_INTERPRET=1 python triton_views_probe.py interpreted
    python triton_views_probe.py compiled

As in `triton_probe`: the interpreter's products are not fused, so it gets whole numbers; that multiply-adds are fused,
in one chain for each output, is read in the PTX.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_probe import _FLOATING, chain_lengths, complaints_of, ptx, whole_numbers  # noqa: E402

from d2_rows import assert_same  # noqa: E402  this file runs as a program of its own
from easyscale.numerics.kernels import convolutions, gpu, portable, primitives, products  # noqa: E402
from easyscale.numerics.kernels.gpu import views  # noqa: E402
from easyscale.numerics.kernels.gpu.products import TILES, Tile  # noqa: E402

Checks = dict[str, Callable[[], None]]
CAPABILITIES = (80, 90)
BLOCK, SPAN = 64, 128  # smaller than D2's, so that short sums have several of each


class Implementation:
    """Torch operators, but for the product under test."""

    tree_sum = staticmethod(portable.tree_sum)
    product = staticmethod(portable.product)
    view_product = staticmethod(gpu.view_product)


def both_ways(run: Callable[[], object]) -> None:
    """By the kernel, and by torch operators from a copy of the columns."""
    before = primitives.implementation
    found = []
    for implementation in (portable, Implementation):
        primitives.implementation = lambda _device, chosen=implementation: chosen  # type: ignore[assignment]
        try:
            found.append(run())
        finally:
            primitives.implementation = before
    assert_same(found[1], found[0])


def _convolution(shape: tuple[int, ...], out: int, kernel: tuple[int, ...], groups: int, dtype: torch.dtype) -> None:
    """Forward, gradient of the input and of the weight, with stride, padding and dilation."""
    dims = len(kernel)
    x = whole_numbers(*shape).to(dtype)
    weight = whole_numbers(out, shape[1] // groups, *kernel, seed=1).to(dtype)
    for stride, padding, dilation in ((1, 1, 1), (2, 1, 1), (2, 0, 2), (1, 2, 2)):
        options = ([stride] * dims, [padding] * dims, [dilation] * dims, False, [0] * dims, groups)
        y = convolutions.convolution(x, weight, None, *options)
        g = whole_numbers(*y.shape, seed=2).to(dtype)
        both_ways(lambda options=options: convolutions.convolution(x, weight, None, *options))
        both_ways(
            lambda g=g, options=options: convolutions.convolution_backward(
                g, x, weight, None, *options, [True, True, False]
            )
        )


def _tile(tile: Tile) -> None:
    """Every tile, several blocks and spans, lengths that end anywhere."""
    products.BLOCK, products.SPAN = BLOCK, SPAN
    for k in (1, 63, 64, 65, 128, 200, 256, 300):
        base = whole_numbers(2, k + 20, 7, seed=3)
        base[0, 5, 2] = torch.inf if k > 63 else 1.0
        base[1] = -0.0 * base[1].abs()  # every sum is a zero: its sign tells how it was made
        seen = base.unfold(1, 3, 1)[:, :k].movedim(3, 2)  # [2, k, 3, 7]: overlapping windows
        a = whole_numbers(2, 9, k, seed=4).abs()
        wanted = products.chains(a, seen.reshape(2, k, 21))
        for few in (0, 1000):  # by spans, and by blocks
            with patch.object(views, "FEW", few):
                assert_same(views.view_product(a, seen, 1, BLOCK, SPAN, tile=tile), wanted)


def _blocks_in_their_order() -> None:
    """Sums of values that are no whole numbers: another order has other bits."""
    from easyscale.numerics.kernels.gpu.view_kernels import add_blocks

    for groups, blocks, count, each in ((1, 1, 5, 2), (2, 7, 130, 3), (1, 16, 33, 16), (3, 33, 300, 16), (2, 5, 1, 8)):
        parts = torch.randn(groups, blocks, count, generator=torch.Generator().manual_seed(blocks))
        parts[0, 0], parts[0, -1, 0] = -0.0, torch.nan
        spans = -(-blocks // each)
        found, wanted = torch.full((groups, spans, count), 7.0), torch.empty(groups, spans, count)
        views._adding(groups, blocks, spans, count, each, parts.device)(parts, found)
        for span in range(spans):
            of = parts[:, span * each : span * each + each].unbind(1)
            total = of[0]
            for one in of[1:]:
                total = total + one
            wanted[:, span] = total
        assert_same(found, wanted)
    other = parts.view(2, 5, 1)[:, [1, 0, 2, 4, 3]].contiguous()
    add_blocks[(1, 1, 2)](other, found, 1, 5, EACH=8, VALUES=128)
    assert not torch.equal(found, wanted), "a negative control"


def _few_programs() -> None:
    """Blocks side by side where there are few outputs; not where there are many, nor many blocks of many."""
    cpu = torch.device("cpu")
    with patch.object(views, "processors", lambda device: 132):
        assert views._few(1, 58, 58, 100_352, 25, 256, cpu)
        assert views._few(1, 24, 27, 1_605_632, 392, 256, cpu)
        assert views._few(1, 512, 1024, 1352, 1, 256, cpu)
        assert not views._few(1, 1024, 4096, 4096, 1, 256, cpu)
        assert not views._few(1, 24, 100_352, 300, 1, 256, cpu)
        assert not views._few(1, 256, 256, 100_352, 25, 256, cpu), "their sums would take more than they save"


def interpreted() -> Checks:
    checks: Checks = {f"{t.rows} x {t.columns}": lambda t=t: _tile(t) for t in TILES}
    for dtype in (torch.float32, torch.bfloat16):
        checks[f"one dimension, {dtype}"] = lambda dtype=dtype: _convolution((2, 4, 11), 6, (3,), 2, dtype)
        checks[f"two dimensions, {dtype}"] = lambda dtype=dtype: _convolution((2, 3, 7, 8), 5, (3, 2), 1, dtype)
    checks["depthwise"] = lambda: _convolution((2, 4, 6, 7), 4, (3, 3), 4, torch.float32)
    checks |= {"blocks in their order": _blocks_in_their_order, "few programs": _few_programs}
    checks["three dimensions"] = lambda: _convolution((1, 2, 5, 6, 5), 3, (2, 3, 2), 1, torch.float32)
    return checks


def _compiled(tile: Tile) -> None:
    from easyscale.numerics.kernels.gpu.view_kernels import chain_over_view

    outputs = tile.rows * tile.columns // (32 * tile.warps)
    constants = {
        "ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth, "BLOCK": products.BLOCK,
        "SPAN": products.SPAN,
    }  # fmt: skip
    for capability in CAPABILITIES:
        for dtype in ("fp32", "bf16"):
            pointers = {"a": f"*{dtype}", "b": f"*{dtype}", "table": "*i32", "out": "*fp32"}
            text = ptx(
                chain_over_view, capability, pointers, constants, num_warps=tile.warps, num_stages=tile.stages
            )  # fmt: skip
            found = Counter(_FLOATING.findall(text))
            assert set(found) <= {"fma.rn.f32", "add.f32"}, set(found)
            assert found["fma.rn.f32"] == 2 * outputs * tile.depth, found
            assert found["add.f32"] == 2 * outputs, found
            assert chain_lengths(text) == [tile.depth] * (2 * outputs)


def _adding_compiled() -> None:
    from easyscale.numerics.kernels.gpu.view_kernels import add_blocks

    for capability in CAPABILITIES:
        pointers = {"parts": "*fp32", "out": "*fp32"}
        text = ptx(add_blocks, capability, pointers, {"EACH": 16, "VALUES": 128}, num_warps=4, enable_fp_fusion=False)
        assert Counter(_FLOATING.findall(text)) in (Counter({"add.f32": 15}), Counter({"add.rn.f32": 15}))


def compiled() -> Checks:
    checks: Checks = {f"{t.rows} x {t.columns}": lambda t=t: _compiled(t) for t in (TILES[0], TILES[4], TILES[-1])}
    return checks | {"adding blocks": _adding_compiled}


if __name__ == "__main__":
    print(json.dumps(complaints_of(interpreted() if sys.argv[1] == "interpreted" else compiled())))
