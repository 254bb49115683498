"""Sums by the halving tree on a GPU: long sums are folded by passes over memory, short rows summed by one kernel.

The tree adds x[i] and x[i + P/2] first. So P/F partial sums of F elements that lie P/F apart are elementwise work, for
neighbouring i on neighbouring lanes; what is left is a tree of P/F elements again. Relies on nothing but IEEE additions
in fp64; guarantees the bits of `primitives.tree_sum`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import ceil_div, on

MOST_LANES = 1024  # of the kernel that finishes rows
MOST_FOLD = 16
AT_ONCE = 2048  # elements of one program, before folding

Levels = list[tuple[int, int]]  # (size, step), outermost first


def tree_sum(x: Tensor, dims: Sequence[int]) -> Tensor:
    """fp64 sums over `dims` (kept with size 1), by the halving tree (`primitives.tree_sum`)."""
    reduced = sorted({dim % x.dim() for dim in dims}) if x.dim() else []
    shape = [1 if dim in reduced else size for dim, size in enumerate(x.shape)]
    outputs, length = 1, 1
    for dim, size in enumerate(x.shape):
        if dim in reduced:
            length *= size
        else:
            outputs *= size
    if outputs == 0 or length == 0:
        return torch.zeros(shape, dtype=torch.float64, device=x.device)
    if length == 1:
        return x.to(torch.float64).reshape(shape)
    if x.dtype is torch.bool:
        x = x.view(torch.uint8)
    others = [dim for dim in range(x.dim()) if dim not in reduced]
    kept, summed = (merged([(x.shape[dim], x.stride(dim)) for dim in part]) for part in (others, reduced))
    if len(kept) > 2 or len(summed) > 2:  # more levels of strides than the kernels know: moved first
        x = x.permute(*others, *reduced).contiguous()
        kept, summed = [(outputs, length)], [(length, 1)]
    with on(x.device):
        return summed_up(x, outputs, length, kept, summed).view(shape)


def merged(levels: Levels) -> Levels:
    """Neighbouring dimensions that one stride walks through, as one; without those of size one."""
    found: Levels = []
    for size, step in levels:
        if size == 1:
            continue
        if found and found[-1][1] == size * step:
            found[-1] = (found[-1][0] * size, step)
        else:
            found.append((size, step))
    return found


def summed_up(x: Tensor, outputs: int, length: int, kept: Levels, summed: Levels) -> Tensor:
    """fp64 [outputs]."""
    padded = 1 << (length - 1).bit_length()
    # Neighbouring elements on neighbouring lanes: those of one sum, or those of neighbouring sums.
    across = bool(kept) and kept[-1][1] < (summed[-1][1] if summed else 1)
    while True:
        if padded == 1:
            return x
        if not across and padded <= MOST_LANES * MOST_FOLD:
            return _finished(x, outputs, length, padded, kept, summed)
        x, padded = _fold(x, outputs, length, padded, kept, summed, across)
        length = padded
        kept, summed = ([(outputs, 1)], [(padded, outputs)]) if across else ([(outputs, padded)], [(padded, 1)])


def _finished(x: Tensor, outputs: int, length: int, padded: int, kept: Levels, summed: Levels) -> Tensor:
    from easyscale.numerics.kernels.gpu.rows_kernels import rows

    fold = min(MOST_FOLD, max(1, padded // 64))
    lanes = padded // fold
    block = max(1, min(AT_ONCE // padded, 64, 1 << (outputs - 1).bit_length()))
    out = torch.empty(outputs, dtype=torch.float64, device=x.device)
    rows[(ceil_div(outputs, block),)](
        x, out, outputs, length, *_places(kept), *_places(summed), OUTPUTS=block, LANES=lanes, FOLD=fold,
        FLAT=len(summed) < 2, num_warps=max(1, min(8, block * lanes // 64)), enable_fp_fusion=False,
    )  # fmt: skip
    return out


def _fold(
    x: Tensor, outputs: int, length: int, padded: int, kept: Levels, summed: Levels, across: bool
) -> tuple[Tensor, int]:
    """One pass: `padded / fold` partial sums of each output. Across: [partial sums, outputs]; else the other way."""
    from easyscale.numerics.kernels.gpu.rows_kernels import fold as kernel

    fold = min(MOST_FOLD, padded)
    left = padded // fold
    if across:
        block = min(128, 1 << (outputs - 1).bit_length())
        lanes = max(1, min(left, 128 // block))
    else:
        lanes = min(left, 256)
        block = 1
    out = torch.empty(outputs * left, dtype=torch.float64, device=x.device)
    steps = (1, outputs) if across else (left, 1)
    kernel[(ceil_div(outputs, block) * ceil_div(left, lanes),)](
        x, out, outputs, length, left, *_places(kept), *_places(summed), *steps,
        OUTPUTS=block, LANES=lanes, FOLD=fold, FLAT=len(summed) < 2, WIDE=padded > 2**30,
        num_warps=max(1, min(8, block * lanes // 32)), enable_fp_fusion=False,
    )  # fmt: skip
    return out, left


def _places(levels: Levels) -> tuple[int, int, int]:
    """Size and step of the inner level, and step of the outer one."""
    if len(levels) == 2:
        return levels[1][0], levels[1][1], levels[0][1]
    return (*levels[0], 0) if levels else (1, 0, 0)
