"""Sums of a lone worker, carried out in pieces: the bits of the plain chain, for any size, number of ESTs and type."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.numerics.order import chain, ring_chunk
from easyscale.runtime.folding import Folding
from easyscale.runtime.group import Group
from easyscale.runtime.scaling import scale_into
from easyscale.runtime.sums import chain_sum

TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64]
SIZES = st.one_of(st.integers(1, 300), st.sampled_from([65_537, 600_001]))


def plain_chain(rows: list[torch.Tensor]) -> torch.Tensor:
    """Element by element as `numerics.order` says it, on real numbers."""
    rows = [torch.view_as_real(row).view(-1) if row.is_complex() else row for row in rows]
    size = ring_chunk(rows[0].numel(), rows[0].element_size(), len(rows))
    total = torch.empty_like(rows[0])
    for chunk in range(len(rows)):
        part = slice(chunk * size, (chunk + 1) * size)
        first, *others = chain(chunk, len(rows))
        total[part] = rows[first][part]
        for est in others:
            total[part] = total[part] + rows[est][part]
    return total


def some_rows(ranks: int, elements: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, dtype=dtype, generator=g) for _ in range(ranks)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 9), st.lists(SIZES, min_size=1, max_size=4), st.sampled_from(TYPES), st.integers(0, 99))
def test_folded_rows_end_with_the_bits_of_the_chain(
    ranks: int, later: list[int], dtype: torch.dtype, seed: int
) -> None:
    folding = Folding(torch.device("cpu"), ranks)
    for step in range(2):  # the second step has other buckets in the memory that the first one used
        sizes = later if step else [sum(later)]
        folding.use([(size, dtype) for size in sizes])
        buckets = [some_rows(ranks, size, dtype, seed + 7 * b + 1000 * step) for b, size in enumerate(sizes)]
        for est in range(ranks - 1):
            folding.put(est, [rows[est].clone() for rows in buckets])
        for b, rows in enumerate(buckets):
            total = folding.finish(b, rows[-1].clone())
            folding.join()
            assert torch.equal(bits(total), bits(plain_chain(rows)))


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 9), SIZES, st.sampled_from(TYPES), st.integers(0, 99))
def test_rows_of_one_worker_have_the_bits_of_the_chain(ranks: int, size: int, dtype: torch.dtype, seed: int) -> None:
    rows = some_rows(ranks, size, dtype, seed)
    total = chain_sum(rows, (ranks,), Group(None, 0, 1, 10.0))
    assert torch.equal(bits(total), bits(plain_chain(rows)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("elements", [7, 10_000])
def test_gradients_are_scaled_as_stock_ddp_scales_them(dtype: torch.dtype, elements: int) -> None:
    """One product with a number that keeps its precision, whether it is done alone or together with others."""
    g = torch.Generator().manual_seed(elements)
    grads = [torch.randn(elements, dtype=dtype, generator=g), None, torch.randn(5, 3, dtype=dtype, generator=g)]
    flat = torch.full((2 * elements + 15,), 9.0, dtype=dtype)
    views = [flat[:elements], flat[elements : 2 * elements], flat[2 * elements :].view(5, 3)]
    scale_into(views, grads, flat, 1 / 3)
    expected = [torch.zeros_like(v) if g is None else torch.mul(g, 1 / 3) for v, g in zip(views, grads, strict=True)]
    assert torch.equal(bits(flat), bits(torch.cat([part.reshape(-1) for part in expected])))
