"""Products by exact integer slices on a GPU: Triton cuts both factors, multiplies on the tensor cores and joins.

One kernel multiplies all pairs of slices of a tile while they lie in shared memory, and scales their sum: nothing of
whole numbers is written to memory. Integer sums are exact, so tiles and order cannot matter. The definition is in
`portable.products.sliced_product`; guarantees its bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from easyscale.numerics.kernels import weights
from easyscale.numerics.kernels.gpu import workspace
from easyscale.numerics.kernels.gpu.launch import Launch, Tiles, ceil_div, processors

ALIGNED = 16  # bytes: what the copy engine wants of rows
AT_ONCE = 4096  # values of a row that one program can hold
LEAST_STEPS, MOST_STEPS = 1024, 16_384  # of k in one part: enough to be worth a program; int32 sums cannot overflow
MOST_FOUND = 32  # parts in which the largest value of a row is looked for
CHECKED = 64  # rows and columns of a tile that `repair` looks at
PLANS = 4096  # kept, of each kind


@dataclass(frozen=True, slots=True)
class Tile:
    """Outputs of one program, the steps of k it loads at a time, its warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def memory(self) -> int:
        """Bytes of shared memory."""
        return 4 * (self.rows + self.columns) * self.depth * self.stages + 1024

    def options(self) -> dict[str, int]:
        """Of a launch."""
        sizes = {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth}
        return {**sizes, "num_warps": self.warps, "num_stages": self.stages}


# Measured on an H200, where the first was the fastest or near to it; the others are for less shared memory.
TILES = (Tile(128, 64, 128, 8, 2), Tile(128, 64, 64, 8, 3), Tile(64, 64, 64, 4, 2), Tile(64, 32, 64, 4, 2))

PAIRS = 0  # the slot of the workspace where both factors of a product are cut
Shape = tuple[int, ...]

# Slices (int8 [slices * rows, k padded]), and for each row the bits of the value that it is scaled by.
Cut = tuple[Tensor, Tensor]


@cache
def tile_for(device: torch.device) -> Tile:
    """The first that the device has the shared memory for."""
    if device.type != "cuda":
        return TILES[-1]
    room = torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # type: ignore[attr-defined]
    return next((tile for tile in TILES if tile.memory <= room), TILES[-1])


def sliced_product(
    a: Tensor, b: Tensor, slices: int, most_a: None = None, most_b: None = None, *, bias: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """fp32 [M, N] from [M, K] and [K, N] of fp32, bf16 or fp16, any strides (`primitives.sliced_product`). A `bias`
    of fp32 [N], contiguous, is added in fp32."""
    assert most_a is None is most_b, "convolutions have kernels of their own"
    if a.shape[0] == 0 or b.shape[1] == 0 or a.shape[1] == 0:
        empty = torch.zeros((a.shape[0], b.shape[1]), dtype=torch.float32, device=a.device)
        return empty + (0 if bias is None else bias)
    biased = bias is not None
    return sliced_plan(a.shape, a.stride(), b.shape, b.stride(), a.dtype, slices, biased, a.device, tile)(a, b, bias)


class SlicedProduct:
    """Products of two matrices of known shapes, strides and dtype: cut, multiplied, repaired."""

    def __init__(self, both: _CuttingBoth, product: _Product, repair: Launch, slices: int) -> None:
        self.both, self.product, self.repair, self.slices = both, product, repair, slices
        self.left, self.right = both.left, both.right
        self.places = workspace.Places((*self.left.kinds, *self.right.kinds))
        self.device = product.device

    def __call__(self, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        with workspace.locked():
            room = self.places.at(self.device, PAIRS)
            kept_a, kept_b = weights.keeps(a), weights.keeps(b)
            if kept_a or kept_b:
                left = self._kept(self.left, a, a) if kept_a else self.left.into(a, room[:3])
                right = self._kept(self.right, b, b.t()) if kept_b else self.right.into(b, room[3:])
            else:
                left, right = self.both.into(a, b, room)
            out = self.product.multiply(left, right, bias)
            self.repair(a, b, left[1], right[1], a if bias is None else bias, out)
        return out

    def _kept(self, cutting: _Cutting, v: Tensor, rows: Tensor) -> Cut:
        """Slices of a weight, of which `rows` are cut."""
        return weights.cut(rows, self.slices, "gpu", lambda: cutting.into(v, cutting.fresh(self.device)))


@lru_cache(maxsize=PLANS)
def sliced_plan(
    shape_a: Shape, stride_a: Shape, shape_b: Shape, stride_b: Shape, dtype: torch.dtype, slices: int, biased: bool,
    device: torch.device, tile: Tile | None = None,
) -> SlicedProduct:  # fmt: skip
    """Of factors that are not empty. `shape_a` to `device` are what its launches are kept by."""
    assert slices in (3, 4), "the kernel is written for three and four slices"
    (m, k), n = shape_a, shape_b[1]
    assert shape_b[0] == k
    return SlicedProduct(
        _CuttingBoth(
            _cutting(m, k, stride_a, slices, dtype, device), _cutting(n, k, stride_b[::-1], slices, dtype, device)
        ),
        _product_plan(m, n, k, slices, tile or tile_for(device), biased, device),
        _repair_plan(m, n, k, stride_a, stride_b, biased, dtype, device), slices,
    )  # fmt: skip


def parts_of(tiles: int, k: int, tile: Tile, device: torch.device) -> tuple[int, int]:
    """Into how many parts the steps of k are cut, and how long each is: speed only, sums of whole numbers are exact."""
    wanted = max(1, min(2 * processors(device) // tiles, k // LEAST_STEPS))
    each = ceil_div(min(MOST_STEPS, ceil_div(k, wanted)), tile.depth) * tile.depth
    return ceil_div(k, each), each


# ---------------------------------------------------------------------------------------------------- multiplying


class _Product:
    """How products of one shape are computed."""

    def __init__(
        self, shape: tuple[int, int, int], tile: Tile, whole: Launch, join: Launch | None, device: torch.device
    ) -> None:
        self.shape, self.device = shape, device  # parts, M, N
        self.whole, self.join = whole, join
        self.blocks = (tile.rows, tile.depth), (tile.columns, tile.depth)

    def multiply(self, a: Cut, b: Cut, bias: Tensor | None) -> Tensor:
        (parts_a, most_a), (parts_b, most_b) = a, b
        more = most_a if bias is None else bias
        tiles_a, tiles_b = Tiles(parts_a, self.blocks[0]), Tiles(parts_b, self.blocks[1])
        if self.join is None:
            out = torch.empty(self.shape[1:], dtype=torch.float32, device=self.device)
            self.whole(tiles_a, tiles_b, most_a, most_b, more, out)
            return out
        out = torch.empty(self.shape, dtype=torch.int64, device=self.device)
        self.whole(tiles_a, tiles_b, most_a, most_b, more, out)
        joined = torch.empty(self.shape[1:], dtype=torch.float32, device=self.device)
        self.join(out, most_a, most_b, more, joined)
        return joined


@lru_cache(maxsize=PLANS)
def _product_plan(
    m: int, n: int, k: int, slices: int, tile: Tile, biased: bool, device: torch.device
) -> _Product:
    from easyscale.numerics.kernels.gpu.slices_kernels import multiply

    tiles = ceil_div(m, tile.rows) * ceil_div(n, tile.columns)
    number, each = parts_of(tiles, k, tile, device)
    parted = number > 1
    whole = Launch(
        multiply, (number * tiles,), (m, n, k, each),
        SLICES=slices, PARTS=parted, BIAS=biased and not parted, enable_fp_fusion=False, **tile.options(),
    )  # fmt: skip
    join = joining(m * n, m, n, number, slices, False, biased) if parted else None
    return _Product((number, m, n), tile, whole, join, device)


def joining(count: int, m: int, n: int, number: int, slices: int, masked: bool, biased: bool = False) -> Launch:
    """fp32 of int64 [parts, .., M, N]."""
    from easyscale.numerics.kernels.gpu.slices_kernels import join

    options = {"SLICES": slices, "MASKED": masked, "BIAS": biased, "BLOCK": 512, "num_warps": 4}
    return Launch(join, (ceil_div(count, 512),), (count, m, n, number), **options, enable_fp_fusion=False)


def _repair_plan(
    m: int, n: int, k: int, stride_a: Shape, stride_b: Shape, biased: bool, dtype: torch.dtype, device: torch.device
) -> Launch:
    """Of factors with these strides."""
    from easyscale.numerics.kernels.gpu.slices_kernels import repair

    tiles = ceil_div(m, CHECKED) * ceil_div(n, CHECKED)
    each = 1 << (max(1, tiles // (8 * processors(device))) - 1).bit_length()
    options = {"BIAS": biased, "ROWS": CHECKED, "COLUMNS": CHECKED, "DEPTH": 16, "EACH": each}
    numbers = (m, n, k, tiles, *stride_a, *stride_b)
    return Launch(repair, (ceil_div(tiles, each),), numbers, **options, num_warps=4, num_stages=1)


# ------------------------------------------------------------------------------------------------------- cutting


@dataclass(frozen=True, slots=True)
class _How:
    """How the rows of a matrix are cut: those of `tall` at a time, `deep` values at a time; at once (`whole`), or after
    their largest values were found in `parts`, of `times` as many values."""

    rows: int
    k: int
    strides: Shape
    slices: int
    whole: bool
    tall: int
    deep: int
    times: int = 1
    parts: int = 0

    @property
    def width(self) -> int:
        return ceil_div(self.k, ALIGNED) * ALIGNED

    @property
    def down(self) -> int:
        return ceil_div(self.rows, self.tall)

    @property
    def first(self) -> int:
        """Programs that cut whole rows, or look for their largest values."""
        return self.down if self.whole else self.down * self.parts

    @property
    def second(self) -> int:
        """Programs that cut, where those have only looked."""
        return self.down * ceil_div(self.width, self.deep)

    @property
    def most_parts(self) -> int:
        return 1 << (self.parts - 1).bit_length()

    def numbers(self) -> tuple[int, ...]:
        """What the kernels of both factors are told of one."""
        return (self.rows, *self.strides, self.rows * self.width, self.down)


class _Cutting:
    """Matrices of one shape and layout: slices, what they are scaled by, and what was found on the way."""

    def __init__(self, how: _How) -> None:
        from easyscale.numerics.kernels.gpu.slices_kernels import cut_rows, cut_tiles, find_most

        self.how = how
        shape = how.slices * how.rows, how.width
        self.kinds = ((torch.int8, shape), (torch.int32, (how.rows,)), (torch.int32, (how.parts, how.rows)))
        self.places = workspace.Places(self.kinds)
        self.fresh = self.places.fresh
        sizes = {"ROWS": how.tall, "DEPTH": how.deep, "num_warps": 4}
        step = how.rows * how.width
        if how.whole:
            numbers = (how.rows, how.k, how.width, how.strides[0], step)
            self.cutting = Launch(cut_rows, (how.down,), numbers, SLICES=how.slices, enable_fp_fusion=False, **sizes)
            return
        self.find = Launch(
            find_most, (how.down, how.parts), (how.rows, how.k, *how.strides), TIMES=how.times,
            enable_fp_fusion=False, **sizes,
        )  # fmt: skip
        self.cutting = Launch(
            cut_tiles, (how.down, ceil_div(how.width, how.deep)),
            (how.rows, how.k, how.width, *how.strides, step, how.parts), SLICES=how.slices, PARTS=how.most_parts,
            enable_fp_fusion=False, **sizes,
        )  # fmt: skip

    def into(self, v: Tensor, places: tuple[Tensor, ...]) -> Cut:
        """Cut v, or its transpose where that is meant: all that is taken of it is its address."""
        parts, most, found = places
        if self.how.whole:
            self.cutting(v, most, parts)
        else:
            self.find(v, found)
            self.cutting(v, found, most, parts)
        return parts, most


class _CuttingBoth:
    """Both factors of a product: in one launch, or in two where largest values are to be found first. The time of a
    launch on the host is what many products take."""

    def __init__(self, left: _Cutting, right: _Cutting) -> None:
        from easyscale.numerics.kernels.gpu.slices_kernels import begin_both, finish_both

        self.left, self.right = left, right
        a, b = left.how, right.how
        options = {"SLICES": a.slices, "num_warps": 4}
        options |= {"ROWS_A": a.tall, "DEPTH_A": a.deep, "ROWS_B": b.tall, "DEPTH_B": b.deep}
        known = a.k, a.width, *a.numbers()
        self.begin = Launch(
            begin_both, (a.first + b.first,), (*known, a.first, *b.numbers()), WHOLE_A=a.whole, TIMES_A=a.times,
            WHOLE_B=b.whole, TIMES_B=b.times, enable_fp_fusion=False, **options,
        )  # fmt: skip
        self.finish = Launch(
            finish_both, (a.second + b.second,), (*known, a.second, *b.numbers(), a.parts, b.parts),
            PARTS_A=a.most_parts, PARTS_B=b.most_parts, enable_fp_fusion=False, **options,
        )  # fmt: skip

    def into(self, a: Tensor, b: Tensor, room: tuple[Tensor, ...]) -> tuple[Cut, Cut]:
        parts_a, most_a, found_a, parts_b, most_b, found_b = room
        self.begin(a, most_a, parts_a, found_a, b, most_b, parts_b, found_b)
        if not self.left.how.whole:
            if not self.right.how.whole:
                self.finish(a, most_a, parts_a, found_a, b, most_b, parts_b, found_b)
            else:
                self.left.cutting(a, found_a, most_a, parts_a)
        elif not self.right.how.whole:
            self.right.cutting(b, found_b, most_b, parts_b)
        return (parts_a, most_a), (parts_b, most_b)


def cut(v: Tensor, slices: int, slot: int | None = None) -> Cut:
    """Of each row; in memory of its own, or in the workspace's (which is to be locked)."""
    cutting = _cutting(v.shape[0], v.shape[1], v.stride(), slices, v.dtype, v.device)
    return cutting.into(v, cutting.fresh(v.device) if slot is None else cutting.places.at(v.device, slot))


@lru_cache(maxsize=PLANS)
def _cutting(rows: int, k: int, strides: Shape, slices: int, dtype: torch.dtype, device: torch.device) -> _Cutting:
    """The last arguments are what a launch is kept by."""
    strides = tuple(strides)
    width = ceil_div(k, ALIGNED) * ALIGNED
    if strides[1] == 1 and k <= AT_ONCE:
        deep = 1 << (width - 1).bit_length()
        return _Cutting(_How(rows, k, strides, slices, True, max(1, 4096 // deep), deep))
    tall, deep = (4, 512) if strides[1] == 1 else (64, 64)  # long where memory is contiguous
    times = 1 << max(0, ceil_div(k, deep * MOST_FOUND) - 1).bit_length()
    return _Cutting(_How(rows, k, strides, slices, False, tall, deep, times, ceil_div(k, deep * times)))
