"""How the kernels of rows take a row: what lies side by side, what one thread keeps, how many warps work on it.

Which choice it is changes no bits. These are the fastest ones that `benchmarks/gpu/d2_shapes.py` found on an H200: few
warps to a row, so that few of its sums go through shared memory, and not more than some tens of values for a thread.
"""

from __future__ import annotations

import functools
from typing import NamedTuple


class Take(NamedTuple):
    """For rows of up to `longest` values when padded: so many lanes, and chunks that a thread keeps; what is longer
    than both together is read in rounds. Short rows are taken several at a time, `together` values of them."""

    longest: int
    lanes: int
    chunks: int
    warps: int
    together: int = 0


Takes = tuple[Take, ...]
LONGEST = 2**20  # of a row of one program, if there is another way
ANY = 2**62

_SHORT = (Take(512, 128, 4, 1), Take(1024, 256, 4, 1))
_POWERS = (
    Take(256, 256, 1, 1, together=512), Take(512, 128, 4, 1), Take(1024, 1024, 1, 2), Take(2048, 128, 16, 2),
    Take(4096, 256, 16, 4), Take(8192, 512, 16, 8),
)  # fmt: skip
SOFTMAX: Takes = (*_POWERS, Take(ANY, 1024, 8, 16))
SOFTMAX_BACKWARD: Takes = (*_POWERS, Take(ANY, 2048, 8, 16))
NORM: Takes = (
    Take(256, 256, 1, 1, together=512), *_SHORT, Take(4096, 128, 16, 2), Take(8192, 256, 16, 4),
    Take(ANY, 512, 8, 16),
)  # fmt: skip
NORM_BACKWARD: Takes = (
    Take(256, 256, 1, 1, together=256), *_SHORT, Take(4096, 256, 8, 4), Take(8192, 256, 8, 8),
    Take(ANY, 512, 8, 16),
)  # fmt: skip
_SUMS = (Take(256, 128, 8, 4, together=2048), Take(1024, 128, 8, 4, together=4096))
SUM: Takes = (*_SUMS, Take(ANY, 128, 8, 1))  # of MANY rows
SUM_OF_FEW: Takes = (*_SUMS, Take(ANY, 512, 8, 8))
MANY = 2048  # rows that keep a GPU of today busy by one warp each


def power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


@functools.lru_cache(maxsize=4096)
def row_shape(n: int, rows: int, takes: Takes) -> tuple[dict[str, int], int]:
    """LANES, CHUNKS, VALID chunks, LEVELS and warps of a program, and how many rows it takes."""
    padded = power(n)
    take = next(take for take in takes if padded <= take.longest)
    lanes = min(padded, take.lanes)
    chunks = min(padded // lanes, take.chunks)
    levels = (padded // (lanes * chunks)).bit_length() - 1
    block = min(max(1, take.together // padded), power(rows))
    valid = -(-n // (lanes << levels))
    warps = min(take.warps, max(1, block * lanes // 32))
    return {"LANES": lanes, "CHUNKS": chunks, "VALID": valid, "LEVELS": levels, "num_warps": warps}, block
