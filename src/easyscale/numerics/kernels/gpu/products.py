"""The FMA chain on a GPU: one Triton kernel, for any shape and strides, batched.

Relies on Triton's fp32 dot with `input_precision="ieee"` being a chain of fma.rn.f32 over k in order at every tile size
(tests/gpu/test_d2.py tries many). Guarantees the bits of `primitives.product`; the tile is chosen by speed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import Launch, ceil_div, processors
from easyscale.numerics.kernels.gpu.rows import tree_sum


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


# Largest first: most reuse of what is loaded. The first was the fastest of all on an H200, from few tiles on. The
# others are for few outputs, where a long chain would leave most SMs without work, and for thin products.
TILES: tuple[Tile, ...] = (
    Tile(64, 64, 32, 4, 3), Tile(64, 32, 32, 4, 3), Tile(32, 64, 32, 4, 3), Tile(32, 32, 32, 2, 3),
    Tile(16, 64, 32, 2, 3), Tile(64, 16, 32, 2, 3), Tile(16, 32, 32, 1, 3), Tile(32, 16, 32, 1, 3),
    Tile(16, 16, 64, 1, 3),
)  # fmt: skip
WAVES = 1  # programs for each SM below which a smaller tile is taken

TRANSPOSED_FROM = 64  # rows above which half the time of a product is more than a copy of B takes


Strides = tuple[int, ...]


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
    if turned(m, b.stride()):
        b = b.contiguous()
    plan = chain_plan((batch, m, n, k), a.stride(), b.stride(), block, a.dtype, a.device, tile)
    plan(a, b, out)
    return out


def turned(m: int, strides: tuple[int, ...]) -> bool:
    """Whether B of these strides is worth a copy, which has neighbouring columns on neighbouring lanes: else lanes wait
    for the same banks."""
    return strides[-2] == 1 and strides[-1] != 1 and m > TRANSPOSED_FROM


@lru_cache(maxsize=4096)
def chain_plan(
    shape: tuple[int, int, int, int], stride_a: tuple[int, ...], stride_b: tuple[int, ...], block: int,
    dtype: torch.dtype, device: torch.device, tile: Tile | None = None,
) -> Launch:  # fmt: skip
    """Of A, B and the output, none of them empty; dtype and device are what it is kept by."""
    from easyscale.numerics.kernels.gpu.product_kernels import chain

    batch, m, n, k = shape
    if k <= block:
        block = 0
    if tile is None:
        tile = tile_for(batch, m, n, processors(device))
    return Launch(
        chain, (tile.count(batch, m, n),), (m, n, k, *stride_a, *stride_b),
        ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, TAIL=k % tile.depth != 0,
        BLOCK=block, REST=bool(block) and k % block != 0, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def matrix_chains(
    m: int, n: int, k: int, stride_a: Strides, stride_b: Strides, dtype: torch.dtype, device: torch.device, block: int,
    span: int,
) -> MatrixChains:  # fmt: skip
    return MatrixChains(m, n, k, stride_a, stride_b, dtype, device, block, span)


class MatrixChains:
    """Products of two matrices by chains: of a `block` of k each, added up over each `span`; spans by the fp64 tree."""

    def __init__(
        self, m: int, n: int, k: int, stride_a: Strides, stride_b: Strides, dtype: torch.dtype, device: torch.device,
        block: int, span: int,
    ) -> None:  # fmt: skip
        self.turns = turned(m, stride_b)
        stride_b = (n, 1) if self.turns else stride_b
        self.whole, self.rest, self.cut = k // span, k % span, k // span * span
        if self.whole == 0 or k == span:
            self.whole = 0
            self.size: tuple[int, ...] = (m, n)
            self.first = chain_plan((1, m, n, k), (0, *stride_a), (0, *stride_b), block, dtype, device)
        else:
            steps_a, steps_b = (span * stride_a[1], *stride_a), (span * stride_b[0], *stride_b)
            self.size = (self.whole + bool(self.rest), m, n)
            self.first = chain_plan((self.whole, m, n, span), steps_a, steps_b, block, dtype, device)
            if self.rest:
                self.last = chain_plan((1, m, n, self.rest), steps_a, steps_b, block, dtype, device)
        self.device = device

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        if self.turns:
            b = b.contiguous()
        out = torch.empty(self.size, dtype=torch.float32, device=self.device)
        self.first(a, b, out)
        if not self.whole:
            return out
        if self.rest:
            self.last(a[:, self.cut :], b[self.cut :], out[self.whole])
        return tree_sum(out, (0,), torch.float32, keep=False)
