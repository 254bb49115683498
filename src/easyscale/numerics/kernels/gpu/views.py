"""FMA chains over a view of windows on a GPU: what a convolution multiplies is read where it lies.

The matrix of columns of a convolution is many times its input; here it is never written. Where the elements of a column
lie is a table, the same for all columns. Relies on what `products` says of Triton's dot; guarantees the bits of
`primitives.view_product`. Tiles are chosen by speed alone.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import Launch, is_aligned, on, processors
from easyscale.numerics.kernels.gpu.products import Tile, tile_for
from easyscale.numerics.kernels.gpu.rows import tree_sum

DIMENSIONS = 4  # of n: an image or channel and up to three of space
KEPT = 2**21  # the longest table that is kept


def view_product(a: Tensor, seen: Tensor, inner: int, block: int, span: int, tile: Tile | None = None) -> Tensor:
    """fp32 [G, M, N] from [G, M, K] and a view [G, *k dimensions, *n dimensions] with `inner` of the former."""
    groups, m, k = a.shape
    n = prod(seen.shape[1 + inner :])
    spans = max(1, -(-k // span))
    if groups * m * n == 0 or k == 0:
        return torch.zeros((groups, m, n), dtype=torch.float32, device=a.device)
    out = torch.empty((groups, spans, m, n), dtype=torch.float32, device=a.device)
    find = _table if k <= KEPT else _table.__wrapped__
    table = find(seen.shape[1 : 1 + inner], seen.stride()[1 : 1 + inner], a.device)
    plan = _plan(
        a.shape, a.stride(), seen.shape, seen.stride(), inner, block, span, tile, is_aligned(a), is_aligned(seen),
        a.dtype, a.device,
    )  # fmt: skip
    with on(a.device):
        plan(a, seen, table, out)
    return out[:, 0] if spans == 1 else tree_sum(out, (1,), dtype=torch.float32)[:, 0]


@lru_cache(maxsize=256)
def _table(sizes: tuple[int, ...], steps: tuple[int, ...], device: torch.device) -> Tensor:
    """Where the elements of these dimensions lie, in row-major order, from the first one."""
    places = torch.zeros((), dtype=torch.int64)
    for size, step in zip(sizes, steps, strict=True):
        places = places[..., None] + torch.arange(size) * step
    last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    return places.view(-1).to(torch.int32 if last < 2**31 else torch.int64).to(device)


@lru_cache(maxsize=4096)
def _plan(
    shape: torch.Size, strides: tuple[int, ...], seen: torch.Size, steps: tuple[int, ...], inner: int, block: int,
    span: int, tile: Tile | None, aligned_a: bool, aligned_seen: bool, dtype: torch.dtype, device: torch.device,
) -> Launch:  # fmt: skip
    """The last arguments are what a launch is kept by."""
    from easyscale.numerics.kernels.gpu.view_kernels import chain_over_view

    groups, m, k = shape
    n, spans = prod(seen[1 + inner :]), -(-k // span)
    if tile is None:
        tile = tile_for(groups * spans, m, n, processors(device))
    missing = DIMENSIONS - (len(seen) - 1 - inner)
    assert missing >= 0, "convolutions have at most three dimensions of space"
    sizes = (*(1 for _ in range(missing)), *seen[1 + inner :])
    walk = (*sizes[1:], *(0 for _ in range(missing)), *steps[1 + inner :])
    return Launch(
        chain_over_view, (tile.count(groups * spans, m, n),), (m, n, k, spans, *strides, steps[0], *walk),
        ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, BLOCK=block, SPAN=span, num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
