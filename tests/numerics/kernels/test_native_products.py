"""Products in C against the definition: exact fractions for small ones, rounding to odd in numpy for larger ones.

Every test runs each library that this CPU can run, so all instruction sets are held to the same bits.
"""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from d2_chains import chain, chain_by_fractions, same, spread
from easyscale.numerics.kernels.native import library, products
from easyscale.numerics.kernels.native.rows import tree_sum as rows_of

VARIANTS = {"AVX512": ["avx512", "avx2", "base"], "AVX2": ["avx2", "base"]}
HERE = VARIANTS.get(torch.backends.cpu.get_cpu_capability(), ["base"])
BOUND = [products._product, products._known_product, products._view_product]
SHAPES = [
    (1, 1, 1, 70), (1, 1, 300, 40), (1, 2, 140, 33), (1, 4, 70, 17), (1, 3, 5, 700), (1, 37, 1, 50), (1, 200, 3, 20),
    (1, 14, 32, 16), (1, 15, 33, 17), (1, 29, 65, 321), (1, 64, 10, 80), (3, 17, 31, 1), (5, 30, 20, 24),
    (2, 230, 9, 5),
]  # fmt: skip
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, 1.1754942e-38, 3.4e38, -3.4e38, 1e-20, 1.0]


@pytest.fixture(params=HERE)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Products by the library of one instruction set."""
    loaded = library.open_library(library.path_of(request.param))
    monkeypatch.setattr(products, "library", lambda: loaded)
    for function in BOUND:
        function.cache_clear()
    yield request.param
    for function in BOUND:
        function.cache_clear()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------- the FMA chain


def test_the_references_agree_with_each_other() -> None:
    a, b = spread(2, 3, 40, seed=1), spread(2, 40, 4, seed=2)
    assert same(chain(a, b), chain_by_fractions(a, b))


def test_small_products_are_the_chain_of_exact_fractions(variant: str) -> None:
    a, b = spread(2, 5, 30, seed=3), spread(2, 30, 7, seed=4)
    assert same(products.product(a, b), chain_by_fractions(a, b))


def test_special_values_are_those_of_ieee(variant: str) -> None:
    picks = torch.Generator().manual_seed(5)
    values = torch.tensor(SPECIAL)
    a = values[torch.randint(len(SPECIAL), (40, 3, 3), generator=picks)]
    b = values[torch.randint(len(SPECIAL), (40, 3, 19), generator=picks)]
    assert same(products.product(a, b), chain_by_fractions(a, b))


def test_subnormal_results_are_rounded_once(variant: str) -> None:
    a, b = spread(1, 8, 25, seed=6) * 1e-20, spread(1, 25, 20, seed=7) * 1e-25
    out = products.product(a, b)
    assert (out.abs() < 1.2e-38).all(), "all are subnormal"
    assert (out != 0).any()
    assert same(out, chain_by_fractions(a, b))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape_and_number_of_threads_gives_the_chain(variant: str, shape: tuple[int, ...]) -> None:
    batch, m, n, k = shape
    a, b = spread(batch, m, k, seed=8), spread(batch, k, n, seed=9)
    expected = chain(a, b)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert same(products.product(a, b), expected)


def test_large_products_are_shared_by_threads_without_a_trace(variant: str) -> None:
    for batch, m, n, k in [(1, 150, 130, 90), (1, 5, 900, 300), (1, 1000, 11, 110), (3, 60, 90, 70)]:
        a, b = spread(batch, m, k, seed=10), spread(batch, k, n, seed=11)
        expected = chain(a, b)
        for count in (1, 2, 3, 4):
            torch.set_num_threads(count)
            assert same(products.product(a, b), expected)


def test_strides_do_not_matter(variant: str) -> None:
    def forms(x: Tensor) -> list[Tensor]:
        """The same values lying differently in memory."""
        spaced = torch.zeros(x.shape[0], x.shape[1], 2 * x.shape[2])
        spaced[:, :, ::2] = x
        return [x, x.mT.contiguous().mT, x.transpose(0, 1).contiguous().transpose(0, 1), spaced[:, :, ::2],
                x.transpose(0, 2).contiguous().transpose(0, 2)]  # fmt: skip

    for m, n in [(20, 50), (50, 7), (1, 40)]:
        a, b = spread(3, m, 37, seed=12), spread(3, 37, n, seed=13)
        expected = chain(a, b)
        for left in forms(a):
            for right in forms(b):
                assert same(products.product(left, right), expected)


def test_expanded_operands_are_read_as_they_are(variant: str) -> None:
    a, b = spread(4, 9, 21, seed=14), spread(1, 21, 35, seed=15)
    wide = b.expand(4, 21, 35)
    assert same(products.product(a, wide), chain(a, wide))
    assert same(products.product(wide.mT, a.mT), chain(wide.mT, a.mT))
    row, column = a[:, :1].expand(4, 9, 21), b[:, :, :1].expand(4, 21, 35)
    assert same(products.product(row, column), chain(row, column))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_types_are_converted_exactly(variant: str, dtype: torch.dtype) -> None:
    a, b = spread(2, 19, 45, seed=16).to(dtype), spread(2, 45, 37, seed=17).to(dtype)
    a[0, 0, :3] = torch.tensor([6e-8, -0.0, 1e-7]).to(dtype)
    b[1, 3, 5] = math.inf
    expected = chain(a, b)
    for left in (a, a.mT.contiguous().mT):
        for right in (b, b.mT.contiguous().mT):
            assert same(products.product(left, right), expected)
    assert same(products.product(a.float(), b), expected), "and may be mixed"


def test_every_short_value_is_converted_as_torch_does(variant: str) -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        values = patterns.view(dtype)
        out = products.product(values.view(1, -1, 1), torch.ones(1, 1, 1))
        assert same(out.flatten(), values.float() + 0.0)  # the chain begins with +0, so -0 becomes +0


def test_empty_products_are_zeros(variant: str) -> None:
    out = products.product(torch.ones(2, 3, 0), torch.ones(2, 0, 4))
    assert same(out, torch.zeros(2, 3, 4))
    assert products.product(torch.ones(0, 3, 5), torch.ones(0, 5, 4)).shape == (0, 3, 4)
    assert products.product(torch.ones(2, 0, 5), torch.ones(2, 5, 4)).shape == (2, 0, 4)


def test_other_ways_to_multiply_are_seen_to_differ() -> None:
    a, b = spread(1, 40, 500, seed=18), spread(1, 500, 60, seed=19)
    out = products.product(a, b)
    assert not same(out, torch.bmm(a, b))
    assert not same(out, torch.bmm(a.double(), b.double()).float())
    unfused = torch.zeros(1, 40, 60)
    for k in range(500):
        unfused = unfused + a[:, :, k, None] * b[:, k, None, :]
    assert not same(out, unfused)
    assert not same(out, products.product(a.flip(2), b.flip(1)))
    halves = products.product(a[:, :, :250], b[:, :250]) + products.product(a[:, :, 250:], b[:, 250:])
    assert not same(out, halves)
    assert torch.allclose(out, unfused, rtol=1e-3, atol=1e-3 * float(out.abs().max()))


# ---------------------------------------------------------------------------------------------- blocks, and views


def in_blocks(a: Tensor, b: Tensor, block: int) -> Tensor:
    """The definition: a chain for each block, added up in ascending order."""
    cuts = range(0, a.shape[2], block)
    chains = [products.product(a[:, :, cut : cut + block], b[:, cut : cut + block]) for cut in cuts]
    total = chains[0]
    for each in chains[1:]:
        total = total + each
    return total


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 300), (2, 5, 40, 700), (1, 37, 1, 513), (3, 64, 33, 256), (1, 2, 300, 600)], ids=str
)
def test_blocks_are_chains_added_in_order(variant: str, shape: tuple[int, ...]) -> None:
    batch, m, n, k = shape
    a, b = spread(batch, m, k, seed=1), spread(batch, k, n, seed=2)
    for count in (1, 2):
        torch.set_num_threads(count)
        assert same(products.product(a, b, 64), in_blocks(a, b, 64))
    assert k <= 64 or not same(products.product(a, b, 64), products.product(a, b)), "the blocks decide bits"


# channels, size, kernel, stride, dilation: whole vectors, half ones, odd rows, strided ones, one dimension, three
VIEWS = [
    (3, (6, 34), (3, 3), (1, 1), (1, 1)), (5, (10, 10), (3, 3), (1, 1), (1, 1)), (2, (9, 7), (2, 3), (1, 1), (1, 2)),
    (4, (11, 12), (3, 3), (2, 2), (1, 1)), (7, (41,), (5,), (1,), (2,)),
    (2, (4, 5, 9), (2, 2, 3), (1, 1, 1), (1, 1, 1)), (40, (1, 1), (1, 1), (1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", VIEWS, ids=str)
def test_a_view_of_windows_has_the_bits_of_its_copy(variant: str, case: tuple[Any, ...], dtype: torch.dtype) -> None:
    """As convolutions read it: taps as k for results and input gradients, positions as k for weight gradients."""
    channels, size, kernel, stride, dilation = case
    dims, block, span = len(size), 64, 128
    x = spread(3, 2 * channels, *size, seed=3).to(dtype)
    count = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)]
    taps = [s * d for s, d in zip(x.stride()[2:], dilation, strict=True)]
    moves = [s * d for s, d in zip(x.stride()[2:], stride, strict=True)]
    seen = x.as_strided((*x.shape[:2], *kernel, *count), (*x.stride()[:2], *taps, *moves)).unflatten(1, (2, channels))
    forward = seen.movedim((1, 0), (0, 2 + dims))  # [groups, channels, taps, images, positions]
    weight = forward.permute(0, *range(2 + dims, 3 + 2 * dims), *range(1, 2 + dims))
    for view in (forward, weight):
        matrix = view.reshape(2, view.shape[1 : 2 + dims].numel(), -1)
        for rows in (1, 5, 30):
            a = spread(2, rows, matrix.shape[1], seed=rows).to(dtype)
            cuts = range(0, a.shape[2], span)
            parts = [in_blocks(a[:, :, cut : cut + span], matrix[:, cut : cut + span], block) for cut in cuts]
            wanted = rows_of(torch.stack(parts, 1), (1,))[:, 0].float() if len(parts) > 1 else parts[0]
            for threads in (1, 2):
                torch.set_num_threads(threads)
                assert same(products.view_product(a, view, 1 + dims, block, span), wanted)
