"""Tiles, warps, stages and other settings of D2's kernels on a GPU, none of which may change a bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from d2_mirror import same

from easyscale.numerics.kernels import native
from easyscale.numerics.kernels.gpu import elementwise, fused, row_shapes, rows
from easyscale.numerics.kernels.gpu import products as gpu_products
from easyscale.numerics.kernels.native import fused as native_fused


def any_bits(count: int, seed: int) -> torch.Tensor:
    """fp32 of random bits: every magnitude, NaN, infinities and subnormals."""
    return (
        torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(seed))
        .int()
        .view(torch.float32)
    )


@contextmanager
def settings(**values: tuple[Any, Any]) -> Iterator[None]:
    """Module and value of each name, put back after."""
    before = {name: getattr(module, name) for name, (module, _) in values.items()}
    for name, (module, value) in values.items():
        setattr(module, name, value)
    forget_plans()
    try:
        yield
    finally:
        for name, (module, _) in values.items():
            setattr(module, name, before[name])
        forget_plans()


def forget_plans() -> None:
    """What was kept with other settings."""
    for module in (elementwise, fused, row_shapes, rows):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def tried_tiles() -> list[gpu_products.Tile]:
    """Every tile as it is; with another depth, by few warps; and by many, without a pipeline. Not all combinations:
    each takes seconds to compile, and more the more elements fall to one warp."""
    found = []
    for tile in gpu_products.TILES:
        outputs = tile.rows * tile.columns
        few = 1 if outputs <= 2048 else 2 if outputs <= 8192 else 4
        other = tile.depth if tile.rows > 64 else 32 if tile.depth != 32 else 16
        found += [tile, replace(tile, depth=other, warps=few), replace(tile, warps=8, stages=1)]
    return found


def tiles_that_differ() -> list[str]:
    """Tiles with other warps, stages and depths; other blocks of elementwise kernels and sums. Needs a GPU."""
    bad = []
    a, b = (torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)) for shape in ((90, 1000), (1000, 75)))
    wanted = native.product(a, b, 256)
    left, right = a.cuda(), b.cuda()
    bad += [str(tile) for tile in tried_tiles() if not same(gpu_products.product(left, right, 256, tile=tile), wanted)]
    x = any_bits(100_001, 3)
    for block, warps in ((64, 1), (128, 4), (1024, 8), (4096, 4)):
        with settings(BLOCK=(elementwise, block), WARPS=(elementwise, warps)):
            if not same(
                elementwise.evaluate("exp", [x.cuda()], dtype=torch.float32),
                native.evaluate("exp", [x], dtype=torch.float32),
            ):
                bad.append(f"exp, {block} elements by {warps} warps")
    table = torch.randn(300, 5000, generator=torch.Generator().manual_seed(2))
    for lanes, chunks, tile in ((256, 16, 2048), (512, 4, 512), (1024, 2, 1024), (128, 8, 256)):
        takes = (row_shapes.Take(row_shapes.ANY, lanes, chunks, 4),)
        with settings(SUM_OF_FEW=(row_shapes, takes), CHUNKS=(rows, chunks), TILE=(rows, tile)):
            for dims in ((0,), (1,), (0, 1)):
                if not same(rows.tree_sum(table.cuda(), dims), native.tree_sum(table, dims)):
                    bad.append(f"sums over {dims}, {lanes} lanes, {chunks} chunks, tiles of {tile}")
    slopes = torch.randn(300, 5000, generator=torch.Generator().manual_seed(4))
    for lanes, kept in ((128, 4), (256, 8), (1024, 2), (2048, 4)):
        takes = (row_shapes.Take(row_shapes.ANY, lanes, kept, 4),)
        with settings(SOFTMAX=(row_shapes, takes), SOFTMAX_BACKWARD=(row_shapes, takes)):
            for logarithm in (False, True):
                there = fused.softmax(table.cuda(), logarithm, torch.float32)
                here = native_fused.softmax(table, logarithm, torch.float32)
                slope = fused.softmax_backward(slopes.cuda(), there, logarithm, torch.float32)
                wanted_slope = native_fused.softmax_backward(slopes, here, logarithm, torch.float32)
                if not same(there, here) or not same(slope, wanted_slope):
                    bad.append(f"softmax, {lanes} lanes, {kept} chunks, {logarithm}")
    return bad + busy_that_differ(left, right, wanted)


def busy_that_differ(left: torch.Tensor, right: torch.Tensor, wanted: torch.Tensor) -> list[str]:
    """While other work holds SMs: programs then run in another order, and fewer at a time."""
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        heavy = torch.randn(4096, 4096, device="cuda")
        for _ in range(20):
            heavy @ heavy
    found = [gpu_products.product(left, right, 256) for _ in range(5)]
    torch.cuda.synchronize()
    return [] if all(same(one, wanted) for one in found) else ["beside other work"]
