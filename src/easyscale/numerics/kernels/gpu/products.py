"""The FMA chain on a GPU: one Triton kernel, for any shape and strides, batched.

Relies on Triton's fp32 dot with `input_precision="ieee"` being a chain of fma.rn.f32 over k in order at every tile size
(tests/gpu/test_d2.py tries many). Guarantees the bits of `primitives.product`; the tile is chosen by speed alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import ceil_div, on, processors


@dataclass(frozen=True, slots=True)
class Tile:
    """Outputs of one program (rows, columns), the steps of k it loads at a time, its warps and pipeline stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def count(self, batch: int, m: int, n: int) -> int:
        return batch * ceil_div(m, self.rows) * ceil_div(n, self.columns)


# Largest first: most reuse of what is loaded. The later ones are for few outputs, where a long chain would leave most
# SMs without work, and for thin products.
TILES: tuple[Tile, ...] = (
    Tile(128, 128, 16, 8, 3), Tile(128, 64, 16, 4, 3), Tile(64, 128, 16, 4, 3), Tile(64, 64, 16, 4, 3),
    Tile(64, 32, 32, 4, 3), Tile(32, 64, 32, 4, 3), Tile(32, 32, 32, 2, 3), Tile(16, 64, 32, 2, 3),
    Tile(64, 16, 32, 2, 3), Tile(16, 32, 32, 1, 3), Tile(32, 16, 32, 1, 3), Tile(16, 16, 64, 1, 3),
)  # fmt: skip
WAVES = 2  # programs for each SM below which a smaller tile is taken


def tile_for(batch: int, m: int, n: int, busy: int) -> Tile:
    """The first tile that wastes less than half of its rows and columns and gives each of `busy` SMs enough to do."""
    fitting = [tile for tile in TILES if tile.rows < 2 * max(m, 16) and tile.columns < 2 * max(n, 16)] or [TILES[-1]]
    for tile in fitting:
        if tile.count(batch, m, n) >= WAVES * busy:
            return tile
    return max(fitting, key=lambda tile: tile.count(batch, m, n))


def product(a: Tensor, b: Tensor, block: int = 0, tile: Tile | None = None) -> Tensor:
    """fp32 [B, M, N] from [B, M, K] and [B, K, N] of fp32, bf16 or fp16, any strides; see `primitives.product`.

    With a `block`, a multiple of 64: one chain for each so many steps of k, each added in fp32 to the sum of those
    before it. That is what as many products and additions would give, in one launch.
    """
    batch, m, k = a.shape
    n = b.shape[2]
    out = torch.empty((batch, m, n), dtype=torch.float32, device=a.device)
    if out.numel() == 0:
        return out
    if k == 0:
        return out.zero_()
    from easyscale.numerics.kernels.gpu.product_kernels import chain

    if tile is None:
        tile = tile_for(batch, m, n, processors(a.device))
    if k <= block:
        block = 0
    with on(a.device):
        chain[(tile.count(batch, m, n),)](
            a, b, out, m, n, k, *a.stride(), *b.stride(),
            ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, TAIL=k % tile.depth != 0,
            BLOCK=block, REST=bool(block) and k % block != 0, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out
