"""Runs the Triton kernels of convolutions without products where there is no GPU, and prints what went wrong as JSON:
{check: complaint}.

    TRITON_INTERPRET=1 python triton_direct_probe.py interpreted
    python triton_direct_probe.py compiled

The interpreter rounds the product of a fused multiply-add, so it gets whole numbers; that each output is one chain of
fused ones is read in the PTX.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import torch

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_probe import _FLOATING, CAPABILITIES, Checks, chain_lengths, complaints_of, ptx, whole_numbers  # noqa: E402

from d2_rows import assert_same  # noqa: E402  this file runs as a program of its own
from easyscale.numerics.kernels import convolutions, gpu, portable, primitives, products  # noqa: E402

CASES = ((1, 1, 1), (2, 1, 1), (3, 2, 1), (2, 0, 2), (1, 2, 2), (2, 3, 3))  # stride, padding, dilation


class Implementation:
    """Torch operators, but for the convolutions under test, which are counted."""

    tree_sum = staticmethod(portable.tree_sum)
    product = staticmethod(gpu.product)
    view_product = staticmethod(gpu.view_product)
    taken: ClassVar[Counter[str]] = Counter()

    class direct_convolutions:
        takes = staticmethod(gpu.direct_convolutions.takes)
        takes_gradient = staticmethod(gpu.direct_convolutions.takes_gradient)

        @staticmethod
        def forward(*args: Any) -> torch.Tensor:
            Implementation.taken["forward"] += 1
            return gpu.direct_convolutions.forward(*args)

        @staticmethod
        def input_gradient(*args: Any) -> torch.Tensor:
            Implementation.taken["input"] += 1
            return gpu.direct_convolutions.input_gradient(*args)

        @staticmethod
        def weight_gradient(*args: Any) -> torch.Tensor:
            Implementation.taken["weight"] += 1
            return gpu.direct_convolutions.weight_gradient(*args)


def _both(x: torch.Tensor, weight: torch.Tensor, options: tuple[Any, ...], negative: bool = False) -> None:
    """Forward and both gradients, by the kernels and by torch operators."""
    before = primitives.implementation
    found = []
    for implementation in (portable, Implementation):
        primitives.implementation = lambda _device, chosen=implementation: chosen  # type: ignore[assignment]
        try:
            y = convolutions.convolution(x, weight, None, *options)
            g = whole_numbers(*y.shape, seed=2).to(x.dtype)
            g = -0.0 * g.abs() if negative else g.contiguous(memory_format=convolutions._layout(x, weight))
            backward = convolutions.convolution_backward(g, x, weight, None, *options, [True, True, False])
            found.append([y, *backward[:2]])
        finally:
            primitives.implementation = before
    for ours, wanted in zip(found[1], found[0], strict=True):
        assert_same(ours, wanted)
        assert ours.stride() == wanted.stride()


def _convolution(
    shape: tuple[int, ...], out: int, kernel: tuple[int, int], groups: int, dtype: torch.dtype, last: bool = False,
    direct: str = "forward input weight", special: bool = False, cases: int = 6,
) -> None:  # fmt: skip
    products.BLOCK, products.SPAN = 64, 256  # several of each
    x = whole_numbers(*shape).to(dtype)
    weight = whole_numbers(out, shape[1] // groups, *kernel, seed=1).to(dtype)
    if special:
        x[0, 0, 0, 0], x[-1, -1, -1, 1], weight[0, 0, 0, 0], weight[-1, -1, -1, -1] = (
            torch.inf, torch.nan, torch.inf, torch.nan
        )  # fmt: skip
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    for stride, padding, dilation in CASES[: min(cases, 2 if dtype is not torch.float32 else 3 if last else 6)]:
        for transposed in (False, True) if groups == shape[1] == out else (False,):
            Implementation.taken.clear()
            _both(x, weight, ([stride] * 2, [padding] * 2, [dilation] * 2, transposed, [0, 0], groups))
            assert set(Implementation.taken) == set(direct.split()), Implementation.taken


def _zeros() -> None:
    """Zeros of both signs: those of the results tell how sums were made."""
    products.BLOCK, products.SPAN = 64, 256
    for sign in (1.0, -1.0):
        x, weight = torch.full((3, 2, 9, 11), -0.0), torch.full((2, 1, 3, 3), sign)
        for negative in (False, True):
            _both(x, weight, ([2, 2], [1, 1], [1, 1], False, [0, 0], 2), negative)


def _matrix(last: bool) -> None:
    """Kernels of one tap are products of matrices, image by image."""
    for stride, padding in ((1, 0), (2, 0), (1, 1)):
        x = whole_numbers(3, 5, 13, 14)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        _both(x, whole_numbers(70, 5, 1, 1, seed=1), ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1))


def interpreted() -> Checks:
    fp32, every = torch.float32, (torch.float32, torch.bfloat16, torch.float16)
    checks: Checks = {
        f"depthwise, {dtype}, {last}": lambda dtype=dtype, last=last: _convolution(
            (3, 3, 9, 11), 3, (3, 3), 3, dtype, last
        )
        for dtype in every
        for last in (False, True)
    }
    checks["two for each"] = lambda: _convolution((2, 3, 10, 7), 6, (3, 2), 3, fp32, cases=3)
    checks["two groups"] = lambda: _convolution((2, 6, 10, 9), 4, (2, 3), 2, fp32, direct="forward input")
    checks["one group"] = lambda: _convolution((2, 2, 12, 9), 3, (3, 3), 1, fp32, direct="forward input")
    checks["special"] = lambda: _convolution((2, 2, 10, 9), 2, (3, 3), 2, fp32, special=True, cases=3)
    checks["one tap"] = lambda: _convolution((2, 3, 9, 9), 3, (1, 1), 3, fp32, cases=3)
    checks["many channels"] = lambda: _convolution((1, 34, 5, 5), 34, (1, 2), 34, torch.bfloat16, cases=1)
    checks |= {f"matrices, {last}": lambda last=last: _matrix(last) for last in (False, True)}
    return checks | {"zeros": _zeros}


def _correlate(depthwise: bool, last: bool) -> None:
    from easyscale.numerics.kernels.gpu.direct_convolution_kernels import correlate

    rows, places = gpu.direct_convolutions.tile_of(64, last)
    constants = {"DEPTHWISE": depthwise, "LAST": last, "DOWN": 3, "ACROSS": 3, "ROWS": rows, "PLACES": places}
    constants |= {"x_channel": 1, "out_channel": 1} if last else {"x_column": 1, "out_column": 1}
    for capability in CAPABILITIES:
        for dtype in ("fp32", "bf16", "fp16"):
            pointers = {"x": f"*{dtype}", "w": f"*{dtype}", "out": "*fp32"}
            text = ptx(correlate, capability, pointers, constants, num_warps=4, enable_fp_fusion=False)
            assert Counter(_FLOATING.findall(text)) == {"fma.rn.f32": 9 * rows * places // 128}
            # a chain that begins in the same piece begins with a literal +0, which `chain_lengths` does not see
            assert chain_lengths(text) == [8 if depthwise else 9] * (rows * places // 128)
            assert not depthwise or text.count("0f00000000;") >= (rows * places // 128)
            assert "bar.sync" not in text  # values stay where they were loaded


def _correlate_images() -> None:
    from easyscale.numerics.kernels.gpu.direct_convolution_kernels import correlate_images

    ahead = gpu.direct_convolutions.AHEAD
    constants = {"TAPS": 16, "BLOCK": 256, "BLOCKS": 16, "AHEAD": ahead, "g_column": 1, "x_column": 1}
    for capability in CAPABILITIES:
        for dtype in ("fp32", "bf16"):
            pointers = {"grad": f"*{dtype}", "x": f"*{dtype}", "out": "*fp32"}
            text = ptx(correlate_images, capability, pointers, constants, num_warps=8, enable_fp_fusion=False)
            assert Counter(_FLOATING.findall(text)) == {"fma.rn.f32": ahead, "add.rn.f32": 15}
            assert chain_lengths(text) == [ahead]


def compiled() -> Checks:
    checks: Checks = {
        f"correlate {each}": lambda each=each: _correlate(*each)
        for each in ((True, False), (True, True), (False, False), (False, True))
    }
    return checks | {"gradient of the weight": _correlate_images}


if __name__ == "__main__":
    print(json.dumps(complaints_of(interpreted() if sys.argv[1] == "interpreted" else compiled())))
