"""Matrix products at D2 against slow references in exact fractions, and our implementations against each other."""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from d2_slices import digits, exponent_of, largest, one_output, rounded
from d2_slices import product as by_slices
from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels import native, portable, primitives, products

INF, NAN = math.inf, math.nan
SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.1754942e-38, 3.4e38, -3.4e38, 1e-30, 1.0000001, INF, -INF, NAN]


# ------------------------------------------------------------------------------------------------ references


def fused(a: float, b: float, c: float) -> float:
    """fp32 fused multiply-add."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if (a * b != 0 or c != 0) else math.copysign(0.0, a) * math.copysign(1.0, b) + c
    return rounded(exact)


def chain(a: list[float], b: list[float]) -> float:
    acc = 0.0
    for x, y in zip(a, b, strict=True):
        acc = fused(x, y, acc)
    return acc


def bits(value: float | Tensor) -> list[int]:
    """fp32 bits, every NaN as one."""
    values = [value] if isinstance(value, float) else value.flatten().tolist()
    return [0x7FC00000 if math.isnan(v) else struct.unpack("<I", struct.pack("<f", v))[0] for v in values]


@contextmanager
def by(which: str) -> Iterator[None]:
    primitives.use_portable(which == "portable")
    try:
        assert which == "portable" or native.available()
        yield
    finally:
        primitives.use_portable(False)


@pytest.fixture(params=["portable", "native"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    with by(request.param):
        yield request.param


def values(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    """Normal values, with magnitudes spread by e^(spread * normal)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.exp(spread * torch.randn(shape, generator=generator))


# ------------------------------------------------------------------------------------------------ the chain


def test_the_chain_is_a_sequence_of_fused_multiply_adds(implementation: str) -> None:
    a, b = values(2, 3, 11, spread=4), values(2, 11, 5, seed=1, spread=4)
    out = primitives.product(a, b)
    for i in range(2):
        for m in range(3):
            for n in range(5):
                assert bits(out[i, m, n]) == bits(chain(a[i, m].tolist(), b[i, :, n].tolist()))


def test_a_fused_multiply_add_is_right_for_special_values(implementation: str) -> None:
    cases = [(x, y, z) for x in SPECIAL for y in SPECIAL for z in SPECIAL]
    a = torch.tensor([[z, x] for x, _, z in cases])[:, None, :]
    b = torch.tensor([[1.0, y] for _, y, _ in cases])[:, :, None]
    out = primitives.product(a, b)
    assert bits(out) == [
        bits(chain(row[0], [column[0] for column in columns]))[0]
        for row, columns in zip(a.tolist(), b.tolist(), strict=True)
    ]


def test_results_between_two_fp32_values_are_rounded_once(implementation: str) -> None:
    """1 + 2^-24 (a tie) plus what only a fused operation sees: a tiny product decides the direction."""
    a = torch.tensor([[[1.0, 1.0 + 2**-12, 2**-40]]])
    b = torch.tensor([[[1.0], [2**-13], [2**-40]]])
    assert bits(primitives.product(a, b)) == bits(chain(a.flatten().tolist(), b.flatten().tolist()))
    tie = torch.tensor([[[1.0, 2**-12 + 2**-35]]]), torch.tensor([[[1.0], [2**-12]]])
    assert bits(primitives.product(*tie)) == bits(1 + 2**-23)
    tiny = torch.tensor([[[2.0**-100, 2.0**-149]]]), torch.tensor([[[2.0**-49], [0.5 + 2**-20]]])
    assert bits(primitives.product(*tiny)) == bits(2.0**-148)


def test_an_unfused_multiply_add_is_seen() -> None:
    a, b = values(1, 16, 40), values(1, 40, 16, seed=1)
    acc = torch.zeros(1, 16, 16)
    for k in range(40):
        acc = acc + a[:, :, k : k + 1] * b[:, k : k + 1]
    assert not torch.equal(acc, primitives.product(a, b))


def test_a_vendor_product_is_seen() -> None:
    a, b = values(64, 300), values(300, 64, seed=1)
    assert not torch.equal(torch.mm(a, b), products.mm(a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 17, 9, 33), (1, 70, 40, 130), (2, 1, 50, 7), (1, 33, 0, 5), (2, 6, 300, 1)]
)
def test_both_implementations_have_the_same_bits(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    batch, m, k, n = shape
    a, b = values(batch, m, k, spread=3).to(dtype), values(batch, k, n, seed=1, spread=3).to(dtype)
    strided = b.mT.contiguous().mT, a.transpose(0, 2).contiguous().transpose(0, 2)
    expected = bits(products.chains(a, b) if k == 0 else portable.product(a, b))
    with by("native"):
        assert bits(products.chains(a, b) if k == 0 else primitives.product(a, b)) == expected
        assert bits(products.chains(a, b) if k == 0 else primitives.product(strided[1], strided[0])) == expected


def test_long_products_are_blocks_of_chains_added_up(implementation: str) -> None:
    k = 2 * products.SPAN + products.BLOCK + 3 if implementation == "native" else products.SPAN + products.BLOCK + 3
    a, b = values(1, 1, k, spread=0.5), values(1, k, 1, seed=1, spread=0.5)
    x, y = a.flatten().double(), b.flatten().double()
    spans = []
    for start in range(0, k, products.SPAN):
        end = min(k, start + products.SPAN)
        total = None
        for low in range(start, end, products.BLOCK):
            high = min(end, low + products.BLOCK)
            part = chain(x[low:high].tolist(), y[low:high].tolist())
            total = part if total is None else rounded(Fraction(total) + Fraction(part))
        assert total is not None
        spans.append(total)
    while len(spans) & (len(spans) - 1):
        spans.append(0.0)
    while len(spans) > 1:
        half = len(spans) // 2
        spans = [p + q for p, q in zip(spans[:half], spans[half:], strict=True)]
    assert bits(products.chains(a, b)) == bits(rounded(Fraction(spans[0])))


def test_several_products_at_once_have_the_bits_of_each_alone() -> None:
    k = products.SPAN + 300
    a, b = values(3, 4, k), values(3, k, 5, seed=1)
    together = products.chains(a, b)
    for i in range(3):
        assert torch.equal(together[i], products.chains(a[i : i + 1], b[i : i + 1])[0])
    assert torch.equal(together[:, 1:2, 2:3], products.chains(a[:, 1:2], b[:, :, 2:3]))


# ------------------------------------------------------------------------------------------------ slices


# Around the values at which a row gets another exponent, and ties of the rounding to whole numbers.
EDGES = [
    127 / 128, 127 / 128 - 2**-24, 127 / 128 + 2**-24, 1.0, 0.5, 127 / 256, 0.4980468, 3.4e38, 1.1754944e-38, 1e-45,
    1.17549e-38, -127 / 128, -0.9999999, 2**-126 * 127 / 128,
]  # fmt: skip


@pytest.mark.parametrize("slices", [1, 2, 3, 4])
def test_slices_are_one_exact_sum_rounded_at_the_end(implementation: str, slices: int) -> None:
    a, b = values(4, 13, spread=3), values(13, 6, seed=1, spread=3)
    a[2] = 0.0
    b[:, 1] *= 1e-30
    a[3] *= 1e-20
    assert bits(primitives.sliced_product(a, b, slices)) == bits(by_slices(a, b, slices))


@pytest.mark.parametrize("slices", [1, 2, 3, 4])
def test_a_row_is_scaled_by_the_power_of_two_that_its_largest_value_asks_for(implementation: str, slices: int) -> None:
    edges = torch.tensor(EDGES)
    a = torch.stack([edges, edges * torch.linspace(-1, 1, len(EDGES)), 1e-3 * edges], 1)
    b = torch.stack([edges, edges / 3, edges.flip(0)], 1).t().contiguous()
    assert bits(primitives.sliced_product(a, b, slices)) == bits(by_slices(a, b, slices))
    # where the bound is one of plain powers of two, as it was before, these come out otherwise
    assert exponent_of(127 / 128) == 1
    assert exponent_of(127 / 128 - 2**-24) == 0


def test_values_halfway_between_two_whole_numbers_go_to_the_even_one(implementation: str) -> None:
    """With three slices and e = 0 a step is 2^-23: halves of it, next to a value that makes it so."""
    halves = [0.75] + [sign * (n + 0.5) * 2.0**-23 for n in range(6) for sign in (1, -1)]
    a = torch.tensor([halves])
    for n in range(1, len(halves)):
        b = torch.zeros(len(halves), 1)
        b[n] = 0.75
        assert bits(primitives.sliced_product(a, b, 3)) == bits(by_slices(a, b, 3))
        assert digits(halves[n], 0, 3)[2] % 2 == 0


def test_the_sum_is_rounded_to_fp64_before_fp32(implementation: str) -> None:
    """70,000 products of 62 bits: the sum has more bits than an fp64."""
    picks = torch.Generator().manual_seed(3)
    a, b = torch.rand((1, 70_000), generator=picks), torch.rand((70_000, 1), generator=picks)
    a[0, 0] = b[0, 0] = 0.99
    assert bits(primitives.sliced_product(a, b, 4)) == bits(by_slices(a, b, 4))


def test_a_pair_of_slices_that_is_left_out_is_seen() -> None:
    a, b = values(6, 40), values(40, 6, seed=1)
    for slices in (3, 4):
        whole = primitives.sliced_product(a, b, slices)
        assert torch.equal(whole, by_slices(a, b, slices))
        for pair in [(i, j) for i in range(slices) for j in range(slices - i)]:
            assert not torch.equal(whole, by_slices(a, b, slices, [pair]))


def test_sums_stay_below_63_bits() -> None:
    """The largest digits there can be, over the most steps that the rule allows."""
    most = [127, 128, 128, 128]
    total = sum(most[i] * most[j] * 256 ** (3 - i - j) for i in range(4) for j in range(4 - i))
    assert total * products.SLICED_MOST < 2**63


def test_rows_with_infinities_are_chains_and_leave_the_others_alone(implementation: str) -> None:
    a, b = values(5, 20), values(20, 6, seed=1)
    clean = primitives.sliced_product(a, b, 4)
    a[1, 3], b[7, 2], b[8, 4] = INF, NAN, -INF
    out = primitives.sliced_product(a, b, 4)
    chained = primitives.product(a[None], b[None])[0]
    touched = torch.zeros(5, 6, dtype=torch.bool)
    touched[1] = touched[:, 2] = touched[:, 4] = True
    assert bits(out[touched]) == bits(chained[touched])
    assert torch.equal(out[~touched], clean[~touched])


def _bits_of(scales: list[float]) -> Tensor:
    return torch.tensor(scales).view(torch.int32)


def test_rows_and_columns_may_be_scaled_by_given_values(implementation: str) -> None:
    """As convolutions do. What is not finite is NaN then."""
    a, b = values(4, 13), values(13, 5, seed=1)
    tops = [largest(row) * factor for row, factor in zip(a.tolist(), (1, 3, 100, 1e9), strict=True)]
    sides = [largest(column) * 7 for column in b.t().tolist()]
    for most_a, most_b in ((tops, sides), (tops, None), (None, sides)):
        known_a = most_a or [largest(row) for row in a.tolist()]
        known_b = most_b or [largest(column) for column in b.t().tolist()]
        given = [None if x is None else _bits_of(x) for x in (most_a, most_b)]
        expected = [
            one_output(row, column, 4, x, y)
            for row, x in zip(a.tolist(), known_a, strict=True)
            for column, y in zip(b.t().tolist(), known_b, strict=True)
        ]
        assert bits(primitives.sliced_product(a, b, 4, *given)) == bits(torch.tensor(expected))
    clean = primitives.sliced_product(a, b, 4, _bits_of(tops), None)
    tops[2], b[4, 0] = INF, -INF
    out = primitives.sliced_product(a, b, 4, _bits_of(tops), None)
    lost = torch.zeros(4, 5, dtype=torch.bool)
    lost[2] = lost[:, 0] = True
    assert out[lost].isnan().all()
    assert torch.equal(out[~lost], clean[~lost])


@pytest.mark.parametrize("shape", [(1, 1, 1), (33, 300, 17), (64, 129, 70), (3, 0, 4), (0, 5, 3), (3, 5, 0)])
def test_slices_have_the_same_bits_in_both_implementations(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = values(m, k, spread=3), values(k, n, seed=1, spread=3)
    for slices in (1, 2, 3, 4):
        expected = bits(portable.sliced_product(a, b, slices))
        with by("native"):
            assert bits(primitives.sliced_product(a, b, slices)) == expected
            assert bits(primitives.sliced_product(a.t().contiguous().t(), b.t().contiguous().t(), slices)) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_three_slices_are_enough_for_short_types_and_two_are_not(dtype: torch.dtype) -> None:
    """Heavy-tailed factors; errors against fp64 after the rounding to the dtype, beside the vendor's fp32 product."""
    student = torch.distributions.StudentT(3.0)
    a, b = student.sample((64, 4096)).to(dtype), (0.02 * student.sample((4096, 64))).to(dtype)
    exact = a.double() @ b.double()

    def error(out: Tensor) -> float:
        return float((out.to(dtype).double() - exact).norm())

    vendor = error(a.float() @ b.float())
    assert error(primitives.sliced_product(a, b, products.SLICES_HALF)) <= 2 * vendor
    assert error(primitives.sliced_product(a, b, 2)) > 2 * vendor


def test_the_form_depends_on_shape_and_dtype_alone() -> None:
    side, steps, most = products.SLICED_SIDE, products.SLICED_STEPS, products.SLICED_MOST
    assert products.slices_of(4096, 4096, 4096, torch.float32) == products.SLICES
    assert products.slices_of(4096, 4096, 4096, torch.bfloat16) == products.SLICES_HALF
    assert products.slices_of(4096, 4096, 4096, torch.float16) == products.SLICES_HALF
    assert products.slices_of(1024, 1024, 1536, torch.float32) == products.SLICES
    assert products.slices_of(1024, 1024, 1535, torch.float32) == 0, "too little work"
    for m, n in ((2**20, side), (side, 2**20)):
        assert products.slices_of(m, n, 4096, torch.float32) == products.SLICES
    for m, n in ((2**20, side - 1), (side - 1, 2**20)):
        assert products.slices_of(m, n, 4096, torch.float32) == 0
    assert products.slices_of(2**14, 2**14, steps, torch.float32) == products.SLICES
    assert products.slices_of(2**14, 2**14, steps - 1, torch.float32) == 0
    assert products.slices_of(512, 512, most - 1, torch.float32) == products.SLICES
    assert products.slices_of(512, 512, most, torch.float32) == 0


def test_large_products_are_by_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SLICED_FROM", 1)
    monkeypatch.setattr(products, "SLICED_SIDE", 8)
    monkeypatch.setattr(products, "SLICED_STEPS", 24)
    a, b = values(2, 16, 24), values(2, 24, 8, seed=1)
    expected = torch.stack([primitives.sliced_product(a[i], b[i], products.SLICES) for i in range(2)])
    assert torch.equal(products.bmm(a, b), expected)
    assert torch.equal(products.mm(a[0], b[0]), expected[0])
    short = products.mm(a[0].bfloat16(), b[0].bfloat16())
    assert torch.equal(short, primitives.sliced_product(a[0].bfloat16(), b[0].bfloat16(), 3).bfloat16())
    assert not torch.equal(products.mm(a[0, :, 1:], b[0, 1:]), primitives.sliced_product(a[0, :, 1:], b[0, 1:], 4))


# ------------------------------------------------------------------------------------------------ what is kept


def laid_out(x: Tensor) -> list[Tensor]:
    """The same matrix in several layouts: dense, by columns, with gaps, at an odd address, one row for all."""
    wide = torch.zeros(x.shape[0], x.shape[1] + 3, dtype=x.dtype)
    wide[:, 1:-2] = x
    odd = torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    return [x, x.t().contiguous().t(), wide[:, 1:-2], odd.copy_(x), x[:1].expand(*x.shape)]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are kept, as in a job."""
    for name in ("_plan", "_batch_plan"):
        monkeypatch.setattr(products, name, functools.lru_cache(getattr(products, name)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_of_known_matrices_are_those_of_any(dtype: torch.dtype, kept: None) -> None:
    first, second = values(7, 300, spread=2).to(dtype), values(300, 33, seed=1, spread=2).to(dtype)
    wide = values(33, 2, seed=2).to(dtype)
    for a, b in itertools.product(laid_out(first), laid_out(second)):
        for bias in (wide[:, 0].contiguous(), wide[:, 1], wide[:1, 0], wide[0, 0]):  # the first alone is planned
            for change in (1, -2):  # the second time by what was kept
                given = (a * change, b, bias)
                for run in (lambda a, b, bias: products.mm(a, b), lambda a, b, bias: products.addmm(bias, a, b)):
                    with by("native"):
                        ours = run(*given)
                    with by("portable"):
                        expected = run(*given)
                    assert ours.dtype is dtype
                    assert bits(ours.float()) == bits(expected.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_of_known_matrices_are_those_of_any(dtype: torch.dtype, kept: None) -> None:
    first, second = values(4, 5, 300, spread=2).to(dtype), values(4, 300, 9, seed=1, spread=2).to(dtype)
    turned = first.transpose(0, 1).contiguous().transpose(0, 1)
    for a, b in itertools.product((first, turned, first[:1].expand(4, -1, -1)), (second, second.mT.contiguous().mT)):
        for change in (1, -2):
            with by("native"):
                ours = products.bmm(a * change, b)
            with by("portable"):
                assert bits(ours.float()) == bits(products.bmm(a * change, b).float())


def test_what_is_not_known_of_matrices_goes_the_long_way(kept: None) -> None:
    a, b, bias = values(3, 5), values(5, 4, seed=1), values(4, seed=2)
    assert products._planned(a, b, bias) is not None
    for wrong in ((a, b.bfloat16()), (a, a), (a[0], b), (a.double(), b.double()), (a[:0], b), (a[:, :0], b[:0])):
        assert products._planned(*wrong, None) is None
    assert products._planned(a, b, bias.bfloat16()) is None
    assert products._planned(a, b, bias[:3]) is None
    deep = products.SPAN + 1
    assert products._planned(values(2, deep), values(deep, 2), None) is None
    with by("portable"):
        assert products._planned(a, b, bias) is None


# ------------------------------------------------------------------------------------------------ forms


def test_forms_are_near_stock() -> None:
    a, b, v, w = values(2, 7, 9), values(2, 9, 5, seed=1), values(9, seed=2), values(7, seed=3)
    bias, many = values(5, seed=4), values(2, 7, 5, seed=5)
    close = torch.testing.assert_close
    close(products.mm(a[0], b[0]), a[0] @ b[0])
    close(products.bmm(a, b), a @ b)
    close(products.mv(a[0], v), a[0] @ v)
    close(products.dot(v, v), torch.dot(v, v))
    close(products.vdot(v, v), torch.vdot(v, v))
    for beta, alpha in ((1, 1), (0.5, 1), (1, 2), (0, 3), (0, 1)):
        by = {"beta": beta, "alpha": alpha}
        close(products.addmm(bias, a[0], b[0], **by), torch.addmm(bias, a[0], b[0], **by))
        close(products.baddbmm(many, a, b, **by), torch.baddbmm(many, a, b, **by))
        close(products.addbmm(many[0], a, b, **by), torch.addbmm(many[0], a, b, **by))
        close(products.addmv(w, a[0], v, **by), torch.addmv(w, a[0], v, **by))
        close(products.addr(a[0], w, v, **by), torch.addr(a[0], w, v, **by))
    close(products.addmm_activation(bias, a[0], b[0]), torch.relu(torch.addmm(bias, a[0], b[0])))


def test_a_bilinear_layer_is_near_stock_forward_and_backward() -> None:
    x, y, w = values(4, 3), values(4, 5, seed=1), values(6, 3, 5, seed=2)
    expected = torch.einsum("bi,oij,bj->bo", x.double(), w.double(), y.double())
    out = products.trilinear(x, w, y, [1, 3], [0], [1, 2], [2, 3])
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    grad = values(4, 6, seed=3)
    for args in (
        (grad, w, y, [2, 3], [0], [1, 2], [1, 3]),
        (x, grad, y, [1, 3], [2, 3], [1, 2], [0]),
        (x, w, grad, [1, 3], [0], [2, 3], [1, 2]),
    ):
        stock = torch._trilinear(*(t.double() for t in args[:3]), *args[3:])
        torch.testing.assert_close(products.trilinear(*args).double(), stock, atol=1e-5, rtol=1e-5)


def test_a_bias_is_added_before_the_one_rounding_to_bf16() -> None:
    a, b, bias = (t.bfloat16() for t in (values(8, 40), values(40, 8, seed=1), values(8, seed=2)))
    exact = products.chains(a[None], b[None])[0] + bias.float()
    assert torch.equal(products.addmm(bias, a, b), exact.bfloat16())
    assert not torch.equal(products.mm(a, b) + bias, products.addmm(bias, a, b))


def test_beta_zero_does_not_look_at_the_bias() -> None:
    bias = torch.full((3,), NAN)
    assert torch.equal(products.addmm(bias, torch.ones(2, 4), torch.ones(4, 3), beta=0), torch.full((2, 3), 4.0))


def test_empty_sums_are_positive_zero() -> None:
    assert bits(products.mm(torch.ones(2, 0), torch.ones(0, 3))) == [0] * 6
    assert products.mm(torch.ones(0, 4), torch.ones(4, 3)).shape == (0, 3)
    assert products.bmm(torch.ones(0, 2, 4), torch.ones(0, 4, 3)).shape == (0, 2, 3)
    assert bits(products.dot(torch.ones(0), torch.ones(0))) == [0]


def test_whole_numbers_are_multiplied_exactly() -> None:
    a, b = torch.randint(-9, 9, (4, 5)), torch.randint(-9, 9, (5, 3))
    assert torch.equal(products.mm(a, b), a @ b)
    assert torch.equal(products.bmm(a[None], b[None])[0], a @ b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_other_numbers_are_refused_by_name(dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedError, match="mm on torch"):
        products.mm(torch.ones(2, 2, dtype=dtype), torch.ones(2, 2, dtype=dtype))


def test_shapes_that_do_not_fit_are_an_error_not_a_read_beyond_the_end() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        products.mm(torch.ones(2, 3), torch.ones(4, 2))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        products.bmm(torch.ones(2, 2, 3), torch.ones(3, 3, 2))
    with pytest.raises(RuntimeError, match="one dtype"):
        products.mm(torch.ones(2, 3), torch.ones(3, 2).bfloat16())
