"""Random numbers on a GPU: one kernel draws the words of a stream and makes the numbers of them.

Relies on `philox` and `randomness` for the definitions and guarantees their bits. Tensors are contiguous: element i is
at place i of the memory.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import Launch, bits, ceil_div, launch

BLOCK = 1024
DTYPES = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
_TURN = 2 * math.pi / 2.0**32


def _run(kernel: Any, count: int, *args: Any, **constants: Any) -> None:
    launch(kernel, (ceil_div(count, BLOCK),), *args, **constants, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False)


def philox_words(count: int, key: int, device: torch.device, start: int) -> Tensor:
    """`philox.words`."""
    from easyscale.numerics.kernels.gpu.draws_kernels import philox_words as kernel

    out = torch.empty(count, dtype=torch.int64, device=device)
    if count:
        _run(kernel, count, out, count, key, start)
    return out


def bernoulli(out: Tensor, key: int, limit: int) -> Tensor:
    """1 where the word is below the limit."""
    from easyscale.numerics.kernels.gpu.draws_kernels import bernoulli as kernel

    if out.numel():
        _run(kernel, out.numel(), out, out.numel(), key, limit)
    return out


def uniform(out: Tensor, key: int, low: float, high: float, number: int) -> Tensor:
    """From low to high, by `number` bits."""
    from easyscale.numerics.kernels.gpu.draws_kernels import uniform as kernel

    if out.numel():
        ends = torch.tensor([low, high], dtype=torch.float64).to(out.dtype).tolist()
        top = math.inf if low == high else ends[1]
        _run(
            kernel, out.numel(), out, out.numel(), key, bits(low), bits(high - low), bits(top), bits(ends[0]),
            BITS=number,
        )  # fmt: skip
    return out


def normal(out: Tensor, key: int, mean: float, std: float) -> Tensor:
    from easyscale.numerics.kernels.gpu.draws_kernels import normal as kernel

    if out.numel():
        _run(kernel, out.numel(), out, out.numel(), key, bits(mean), bits(std), bits(_TURN))
    return out


def exponential(out: Tensor, key: int, rate: float) -> Tensor:
    from easyscale.numerics.kernels.gpu.draws_kernels import exponential as kernel

    if out.numel():
        _run(kernel, out.numel(), out, out.numel(), key, bits(rate))
    return out


def dropout(x: Tensor, key: int, limit: int, noise: float) -> tuple[Tensor, Tensor]:
    """x times the noise where the word is below the limit, else times 0; and where it is."""
    out, mask = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
    _dropout_plan(x.numel(), limit, noise, x.dtype, x.get_device()).drawing(key, x, out, mask.view(torch.uint8))
    return out, mask


@functools.lru_cache(maxsize=2048)
def _dropout_plan(count: int, limit: int, noise: float, dtype: torch.dtype, device: int) -> Launch:
    """The dtype and the device are what it is kept by, here and below."""
    from easyscale.numerics.kernels.gpu.draws_kernels import dropout as kernel

    return Launch(
        kernel, (ceil_div(count, BLOCK),), (count, limit, bits(noise)), BLOCK=BLOCK, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip


def dropout_backward(g: Tensor, mask: Tensor, noise: float) -> Tensor:
    """g times the noise where the mask is true, else times 0; of one layout, without gaps."""
    out = torch.empty_like(g)
    count = g.numel()
    if count:
        _backward_plan(count, noise, g.dtype, g.get_device())(g, mask.view(torch.uint8), out)
    return out


@functools.lru_cache(maxsize=2048)
def _backward_plan(count: int, noise: float, dtype: torch.dtype, device: int) -> Launch:
    from easyscale.numerics.kernels.gpu.draws_kernels import dropout_backward as kernel

    return Launch(
        kernel, (ceil_div(count, BLOCK),), (count, bits(noise)), BLOCK=BLOCK, num_warps=4, enable_fp_fusion=False
    )
