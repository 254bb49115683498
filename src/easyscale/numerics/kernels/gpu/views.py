"""FMA chains over a view of windows on a GPU: what a convolution multiplies is read where it lies.

The matrix of columns of a convolution is many times its input; here it is never written. Where the elements of a column
lie is a table, the same for all columns. Relies on what `products` says of Triton's dot; guarantees the bits of
`primitives.view_product`. Tiles are chosen by speed alone.

Gradients of thin layers' weights have few outputs, each a sum over all positions of all images: whole spans of k would
give an H200 one or two warps for each SM, and each of those a chain of 4,096 steps. There each block of k is a program
of its own, and `add_blocks` adds them up in their order.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import Launch, ceil_div, processors
from easyscale.numerics.kernels.gpu.products import TILES, Tile, tile_for
from easyscale.numerics.kernels.gpu.rows import tree_sum
from easyscale.numerics.kernels.watching import lasting

DIMENSIONS = 4  # of n: an image or channel and up to three of space
KEPT = 2**21  # the longest table that is kept
FEW = 4  # of the largest programs, for each SM, below which blocks are computed side by side
MOST_BLOCKS = 2**26  # bytes of their sums, which are written and read again


def view_product(a: Tensor, seen: Tensor, inner: int, block: int, span: int, tile: Tile | None = None) -> Tensor:
    """fp32 [G, M, N] from [G, M, K] and a view [G, *k dimensions, *n dimensions] with `inner` of the former."""
    groups, m, k = a.shape
    n = prod(seen.shape[1 + inner :])
    spans = max(1, -(-k // span))
    if groups * m * n == 0 or k == 0:
        return torch.zeros((groups, m, n), dtype=torch.float32, device=a.device)
    apart = block < k and _few(groups, m, n, k, spans, block, a.device)
    blocks = ceil_div(k, block) if apart else spans
    out = torch.empty((groups, blocks, m, n), dtype=torch.float32, device=a.device)
    find = _table if k <= KEPT else _table.__wrapped__
    table = find(seen.shape[1 : 1 + inner], seen.stride()[1 : 1 + inner], a.device)
    plan = _plan(
        a.shape, a.stride(), seen.shape, seen.stride(), inner, block, block if apart else span, tile, a.dtype, a.device
    )
    plan(a, seen, table, out)
    if apart:
        parts, out = out, torch.empty((groups, spans, m, n), dtype=torch.float32, device=a.device)
        _adding(groups, blocks, spans, m * n, span // block, a.device)(parts, out)
    return out[:, 0] if spans == 1 else tree_sum(out, (1,), torch.float32, keep=False)


def _few(groups: int, m: int, n: int, k: int, spans: int, block: int, device: torch.device) -> bool:
    """Whether spans are too few programs for the device, and sums of blocks not too many."""
    rows, columns = min(TILES[0].rows, max(m, 16)), min(TILES[0].columns, max(n, 16))
    programs = groups * spans * ceil_div(m, rows) * ceil_div(n, columns)
    return programs < FEW * processors(device) and 4 * groups * ceil_div(k, block) * m * n <= MOST_BLOCKS


@lru_cache(maxsize=4096)
def _adding(groups: int, blocks: int, spans: int, count: int, each: int, device: torch.device) -> Launch:
    """The last argument is what a launch is kept by."""
    from easyscale.numerics.kernels.gpu.view_kernels import add_blocks

    return Launch(
        add_blocks, (ceil_div(count, 128), spans, groups), (count, blocks), EACH=each, VALUES=128, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _table(sizes: tuple[int, ...], steps: tuple[int, ...], device: torch.device) -> Tensor:
    """Where the elements of these dimensions lie, in row-major order, from the first one."""
    places = torch.zeros((), dtype=torch.int64)
    for size, step in zip(sizes, steps, strict=True):
        places = places[..., None] + torch.arange(size) * step
    last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    return lasting(places.view(-1).to(torch.int32 if last < 2**31 else torch.int64).to(device))


@lru_cache(maxsize=4096)
def _plan(
    shape: torch.Size, strides: tuple[int, ...], seen: torch.Size, steps: tuple[int, ...], inner: int, block: int,
    span: int, tile: Tile | None, dtype: torch.dtype, device: torch.device,
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
