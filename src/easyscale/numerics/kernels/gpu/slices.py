"""Products by exact integer slices on a GPU: Triton cuts and joins, `torch._int_mm` multiplies on the tensor cores.

The slices of a row of A lie one after the other, those of a column of B too but the last one first: then the sum over
all pairs of slices i + j = g is one integer product, of the first g + 1 slices of A and the last g + 1 of B. Integer
sums are exact, so it does not matter how they are computed. The definition is in `portable.products.sliced_product`;
guarantees its bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels import weights
from easyscale.numerics.kernels.gpu.launch import ceil_div, on
from easyscale.numerics.kernels.portable import products as portable

MOST_TERMS = 2**17  # products of two slices (at most 2^14 each) that an int32 surely holds the sum of
TOTALS_BYTES = 2**28  # of integer results at a time: larger products are computed panel by panel
ALIGNED = 16  # bytes: what the tensor cores want of K and of rows


def sliced_product(a: Tensor, b: Tensor, slices: int) -> Tensor:
    """fp32 [M, N] from [M, K] and [K, N] of fp32, bf16 or fp16, any strides (`primitives.sliced_product`)."""
    (m, k), n = a.shape, b.shape[1]
    if m == 0 or n == 0 or k == 0:
        return torch.zeros((m, n), dtype=torch.float32, device=a.device)
    if k * slices >= MOST_TERMS:
        return portable.sliced_product(a, b, slices)
    from easyscale.numerics.kernels.gpu.slices_kernels import join, repair

    out = torch.empty((m, n), dtype=torch.float32, device=a.device)
    with on(a.device):
        cut_a, exponent_a, bad_a = weights.cut(a, slices, "gpu", lambda: _cut(a, slices, False))
        cut_b, exponent_b, bad_b = weights.cut(b.t(), slices, "gpu, last first", lambda: _cut(b.t(), slices, True))
        width, columns = cut_a.shape[1] // slices, cut_b.shape[0]
        panel = min(cut_a.shape[0], max(256, TOTALS_BYTES // (4 * slices * columns) // 256 * 256))
        totals = torch.empty((slices, panel, columns), dtype=torch.int32, device=a.device)
        for first in range(0, m, panel):
            part = cut_a[first : first + panel]
            if part.shape[0] < panel:  # the last panel: fewer rows, but never too few for the integer product
                part = cut_a[cut_a.shape[0] - max(part.shape[0], 32) :]
            start = min(first, cut_a.shape[0] - part.shape[0])
            for group in range(slices):
                here = totals[group, : part.shape[0]]
                right = cut_b[:, (slices - 1 - group) * width :].t()
                torch._int_mm(part[:, : (group + 1) * width], right, out=here)
            rows = min(part.shape[0], m - start)
            join[(ceil_div(rows, 16), ceil_div(n, 128))](
                totals, exponent_a, exponent_b, out, rows, n, start, panel * columns, columns,
                SLICES=slices, ROWS=16, COLUMNS=128, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
        repair[(ceil_div(m, 64), ceil_div(n, 64))](
            a, b, bad_a, bad_b, out, m, n, k, *a.stride(), *b.stride(),
            ROWS=64, COLUMNS=64, DEPTH=16, num_warps=4, num_stages=1,
        )  # fmt: skip
    return out


def _cut(v: Tensor, slices: int, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Slices (int8, [rows padded, slices * K padded]), exponent of each row and whether it is not finite."""
    from easyscale.numerics.kernels.gpu.slices_kernels import cut, scales

    rows, k = v.shape
    width = ceil_div(k, ALIGNED) * ALIGNED
    # Rows past the end are never written: whatever they hold, their products are not looked at.
    parts = torch.empty((max(32, ceil_div(rows, 8) * 8), slices * width), dtype=torch.int8, device=v.device)
    exponent = torch.empty(rows, dtype=torch.int32, device=v.device)
    bad = torch.empty(rows, dtype=torch.int8, device=v.device)
    # A tile that is long in the direction in which memory is contiguous.
    tall, deep = (4, 512) if v.stride(1) == 1 else (64, 32)
    scales[(ceil_div(rows, tall),)](
        v, exponent, bad, rows, k, *v.stride(), ROWS=tall, DEPTH=deep, num_warps=4, enable_fp_fusion=False
    )
    cut[(ceil_div(rows, tall), ceil_div(width, deep))](
        v, exponent, bad, parts, rows, k, width, *v.stride(),
        SLICES=slices, REVERSED=reverse, ROWS=tall, DEPTH=deep, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return parts, exponent, bad
