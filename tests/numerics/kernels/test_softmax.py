"""Softmax and its logarithm: the definition to the bit, the same in C as by torch operators, near to stock."""

from __future__ import annotations

import math

import pytest
import torch

from d2_rows import assert_both_same, assert_no_worse, assert_same, fp32, native_only, row_forms, special, tree
from easyscale.numerics.kernels import softmax
from easyscale.numerics.kernels.primitives import evaluate

SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((5, 10), 1), ((5, 10), 0), ((3, 1), 1), ((2, 3, 700), 2), ((2, 130, 9), 1), ((4, 3, 5, 6), 1), ((7,), 0), ((), 0),
]  # fmt: skip


def formula(name: str, value: float, dtype: torch.dtype = torch.float64) -> float:
    return evaluate(name, [torch.tensor(value, dtype=torch.float64)], dtype=dtype).item()


def power(value: float) -> float:
    """e^x in fp32."""
    return formula("exp_single", value, torch.float32)


def test_softmax_is_the_definition_to_the_bit() -> None:
    x = torch.randn(13) * 5
    values = x.tolist()
    powers = [power(fp32(v - max(values))) for v in values]
    total = tree(powers)
    assert softmax.softmax(x, 0, False).tolist() == [fp32(e * (1.0 / total)) for e in powers]
    taken = max(values) + formula("log", total)
    assert softmax.log_softmax(x, 0, False).tolist() == [fp32(v - taken) for v in values]


def test_softmax_of_fp64_is_the_definition_to_the_bit() -> None:
    x = torch.randn(13, dtype=torch.float64) * 5
    values = x.tolist()
    powers = [formula("exp", v - max(values)) for v in values]
    total = tree(powers)
    assert softmax.softmax(x, 0, False).tolist() == [e * (1.0 / total) for e in powers]
    taken = max(values) + formula("log", total)
    assert softmax.log_softmax(x, 0, False).tolist() == [v - taken for v in values]


def test_the_backward_is_the_definition_to_the_bit() -> None:
    g, y = torch.randn(11), torch.randn(11).softmax(0)
    pairs = list(zip(g.tolist(), y.tolist(), strict=True))
    total = tree([a * b for a, b in pairs])
    assert softmax.softmax_backward(g, y, 0, torch.float32).tolist() == [fp32((a - total) * b) for a, b in pairs]
    total = tree(g.tolist())
    wanted = [fp32(a - power(b) * total) for a, b in pairs]
    assert softmax.log_softmax_backward(g, y, 0, torch.float32).tolist() == wanted
    wide = [a - formula("exp", b) * total for a, b in pairs]
    assert softmax.log_softmax_backward(g.double(), y.double(), 0, torch.float64).tolist() == wide


@native_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_c_and_torch_operators_have_the_same_bits(dtype: torch.dtype) -> None:
    for shape, dim in SHAPES:
        x, g = (torch.randn(shape) * 8).to(dtype), torch.randn(shape).to(dtype)
        for log in (False, True):
            forward = softmax.log_softmax if log else softmax.softmax
            backward = softmax.log_softmax_backward if log else softmax.softmax_backward
            y = forward(x, dim, False)
            assert_both_same(lambda: forward(x, dim, False))  # noqa: B023  run at once
            assert_both_same(lambda: backward(g, y, dim, dtype))  # noqa: B023


@native_only
def test_special_values_have_the_same_bits_in_c() -> None:
    x, g = special(90, 40), special(90, 40, seed=3)
    x[0], x[1, 1:] = -math.inf, -math.inf
    for forward, backward in (
        (softmax.softmax, softmax.softmax_backward), (softmax.log_softmax, softmax.log_softmax_backward),
    ):  # fmt: skip
        assert_both_same(lambda: forward(x, 1, False))  # noqa: B023
        assert_both_same(lambda: backward(g, x, 1, torch.float32))  # noqa: B023


def test_masked_and_broken_rows_are_as_stocks() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([[-inf] * 3, [inf, 0.0, 1.0], [nan, 0.0, 1.0], [-inf, 0.0, 0.0], [3e38, -3e38, 0.0]])
    assert_same(softmax.softmax(x, 1, False), x.softmax(1))
    assert_same(torch.isnan(softmax.log_softmax(x, 1, False)), torch.isnan(x.log_softmax(1)))
    assert_same(softmax.safe_softmax(x, 1), torch.ops.aten._safe_softmax(x, 1))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_results_and_gradients_are_as_near_as_stocks(name: str) -> None:
    torch.manual_seed(0)
    for shape, dim in SHAPES:
        assert_no_worse(lambda x: getattr(x, name)(dim), torch.randn(shape) * 3)  # noqa: B023
    channels_last = torch.randn(2, 5, 4, 3).contiguous(memory_format=torch.channels_last)
    assert_no_worse(lambda x: getattr(x, name)(1), channels_last)


def test_short_dtypes_and_empty_inputs_are_as_stocks() -> None:
    x = torch.randn(4, 9).bfloat16()
    with row_forms():
        ours = [x.softmax(1), x.softmax(1, dtype=torch.float32), x.log_softmax(0), torch.empty(0, 3).softmax(1)]
    stock = [x.softmax(1), x.softmax(1, dtype=torch.float32), x.log_softmax(0), torch.empty(0, 3).softmax(1)]
    assert [(y.dtype, y.shape) for y in ours] == [(y.dtype, y.shape) for y in stock]
    torch.testing.assert_close(ours, stock)


def test_stocks_own_softmax_has_other_bits() -> None:
    x = torch.randn(100, 100)
    assert not torch.equal(softmax.softmax(x, 1, False), x.softmax(1))
    assert not torch.equal(softmax.log_softmax(x, 1, False), x.log_softmax(1))


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_what_a_mask_leaves_out_counts_as_minus_infinity(kind: int) -> None:
    x, g = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)
    wide = (torch.rand([(1, 1, 4, 4), (2, 1, 1, 4), (2, 3, 4, 4)][kind]) < 0.4).expand(x.shape)
    mask = [wide[0, 0], wide[:, 0, 0], wide][kind]
    made = softmax.masked_softmax(x, mask, 3, kind)
    assert_same(made, softmax.softmax(torch.where(wide, -math.inf, x), 3, False))
    back = softmax.masked_softmax_backward(g, made, wide, 3)
    plain = softmax.softmax_backward(torch.where(wide, 0.0, g), made, 3, torch.float32)
    assert_same(back, torch.where(wide, 0.0, plain))
    torch.testing.assert_close(made, torch._masked_softmax(x, mask, 3, kind), equal_nan=True)


def test_a_row_that_is_masked_as_a_whole_is_no_number_and_has_no_gradient() -> None:
    x, mask = torch.randn(2, 3), torch.tensor([[True, True, True], [False, True, False]])
    made = softmax.masked_softmax(x, mask, 1, 2)
    back = softmax.masked_softmax_backward(torch.ones(2, 3), made, mask, 1)
    assert made[0].isnan().all()
    assert made[1, 1].item() == 0.0
    assert_same(back[0], torch.zeros(3))
