"""The few computations that all D2 forms are made of, each by the fastest implementation that is here.

    product         batched matrix product, the FMA chain
    sliced_product  matrix product by exact integer slices
    tree_sum        sums in fp64 by a halving tree
    evaluate        a formula of `formulas`, element by element

Implementations: `native` (C, on the CPU), `gpu` (Triton, on CUDA) and `portable` (torch operators that are the same on
every device; slow). All give the same bits: which one runs is a question of speed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from easyscale.numerics.kernels import gpu, native, portable
from easyscale.numerics.kernels.formulas import SINGLE

_portable_only = False
_chosen: dict[torch.device, ModuleType] = {}  # every call of a form asks


def use_portable(on: bool) -> None:
    """Run everything by torch operators, as where no compiler was there. For comparing the two."""
    global _portable_only
    _portable_only = on
    _chosen.clear()
    gpu.replay.forget()


def implementation(device: torch.device) -> ModuleType:
    """The module that computes on this device."""
    return _chosen.get(device) or _choose(device)


def _choose(device: torch.device) -> ModuleType:
    chosen: ModuleType = portable
    if device.type == "cpu" and not _portable_only and native.available():
        chosen = native
    elif device.type == "cuda" and not _portable_only and gpu.available():
        chosen = gpu
    _chosen[device] = chosen
    return chosen


def product(a: Tensor, b: Tensor, block: int = 0) -> Tensor:
    """fp32 [B, M, N] from [B, M, K] and [B, K, N] of fp32, bf16 or fp16, any strides.

    out[b, m, n] = the chain acc = fmaf(a[b, m, k], b[b, k, n], acc) over k = 0 .. K-1, from acc = +0.

    With a `block`, a multiple of 64: one such chain for each so many steps of k (the last may be shorter), and the
    chains added in fp32 in ascending order, ((c0 + c1) + c2) + ...
    """
    return implementation(a.device).product(a, b, block=block)  # type: ignore[no-any-return]


def sliced_product(
    a: Tensor, b: Tensor, slices: int, most_a: Tensor | None = None, most_b: Tensor | None = None
) -> Tensor:
    """fp32 [M, N] from [M, K] and [K, N] by exact integer products of int8 slices (docs/numerics.md).

    `most_a`, `most_b`: int32 bits of the values that each row of A, each column of B is scaled by instead of by its
    own largest one; what is not finite then gives NaN instead of chains (convolutions; not on CUDA, see
    `gpu.sliced_convolutions`).
    """
    return implementation(a.device).sliced_product(a, b, slices, most_a, most_b)  # type: ignore[no-any-return]


def tree_sum(x: Tensor, dims: Sequence[int]) -> Tensor:
    """fp64 sums over `dims` (kept with size 1), by the halving tree.

    The reduced elements are numbered in row-major order of `dims` as sorted ascending, converted to fp64 and padded
    with +0 to P, the next power of two; then x[i] + x[i + P/2] for i < P/2, again and again until one is left. No
    elements: +0.
    """
    return implementation(x.device).tree_sum(x, dims)  # type: ignore[no-any-return]


def evaluate(name: str, tensors: Sequence[Tensor], scalars: Sequence[float] = (), *, dtype: torch.dtype) -> Tensor:
    """The formula `name` for each element: inputs broadcast and converted to fp64, one rounding to `dtype` at the end
    (to bf16 and fp16 by way of fp32). For a `dtype` other than fp64 its shorter form, if it has one (`SINGLE`)."""
    if dtype is not torch.float64:
        name = SINGLE.get(name, name)
    shown = tensors[0]
    if len(tensors) > 1 and not shown.is_cuda:  # a CPU scalar may go with CUDA tensors
        shown = max(tensors, key=lambda tensor: tensor.device.type != "cpu")
    return implementation(shown.device).evaluate(name, tensors, scalars, dtype=dtype)  # type: ignore[no-any-return]
