"""FMA chains over a view of windows on a GPU: what a convolution multiplies is read where it lies.

The matrix of columns of a convolution is many times its input; here it is never written. Relies on what `products` says
of Triton's dot; guarantees the bits of `primitives.view_product`. Tiles are chosen by speed alone.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import on, processors
from easyscale.numerics.kernels.gpu.products import Tile, tile_for
from easyscale.numerics.kernels.gpu.rows import tree_sum

DIMENSIONS = 4  # of k and of n each: a channel or image and up to three of space


def view_product(a: Tensor, seen: Tensor, inner: int, block: int, span: int, tile: Tile | None = None) -> Tensor:
    """fp32 [G, M, N] from [G, M, K] and a view [G, *k dimensions, *n dimensions] with `inner` of the former."""
    groups, m, k = a.shape
    n = prod(seen.shape[1 + inner :])
    spans = max(1, -(-k // span))
    if groups * m * n == 0 or k == 0:
        return torch.zeros((groups, m, n), dtype=torch.float32, device=a.device)
    from easyscale.numerics.kernels.gpu.view_kernels import chain_over_view

    if tile is None:
        tile = tile_for(groups * spans, m, n, processors(a.device))
    out = torch.empty((groups, spans, m, n), dtype=torch.float32, device=a.device)
    depth, width = _walk(seen, 1, 1 + inner), _walk(seen, 1 + inner, seen.dim())
    with on(a.device):
        chain_over_view[(tile.count(groups * spans, m, n),)](
            a, seen, out, m, n, k, spans, *a.stride(), seen.stride(0), *depth, *width,
            ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, BLOCK=block, SPAN=span,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out[:, 0] if spans == 1 else tree_sum(out, (1,))[:, 0].to(torch.float32)


def _walk(seen: Tensor, first: int, last: int) -> tuple[int, ...]:
    """Sizes but the outermost, and strides, of these dimensions as four of them."""
    missing = DIMENSIONS - (last - first)
    assert missing >= 0, "convolutions have at most three dimensions of space"
    sizes = [*(1 for _ in range(missing)), *seen.shape[first:last]]
    return (*sizes[1:], *(0 for _ in range(missing)), *seen.stride()[first:last])
