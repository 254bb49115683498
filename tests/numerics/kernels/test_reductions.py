"""Sums and what is made of them: the halving tree to the bit, the same in C as by torch operators, near to stock."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from d2_rows import assert_both_same, assert_no_worse, assert_same, fp32, native_only, row_forms, special, threads, tree
from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels import primitives, reductions

LAYOUTS: list[tuple[tuple[int, ...], list[int]]] = [
    ((7,), [0]), ((), []), ((1,), [0]), ((5, 0), [1]), ((0, 5), [1]), ((5, 3), [0]), ((3, 5, 7), [1]),
    ((3, 5, 7), [0, 2]), ((3, 70, 300), [1]), ((1000, 3), [0]), ((100, 513), [1]), ((3, 4, 5, 6), [1, 3]),
    ((3, 4, 5, 6), [0, 2]), ((3, 4, 5, 6), [0, 2, 3]), ((2, 70001), [1]), ((140001,), [0]), ((40001, 3), [0]),
    ((200, 65), [0]), ((4, 8, 9, 9), [-1, 0]),
]  # fmt: skip


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 8, 17, 511, 513, 1200])
def test_a_sum_is_the_halving_tree_to_the_bit(length: int) -> None:
    x = torch.randn(length) * torch.logspace(-6, 6, length)
    wanted = tree(x.tolist())
    assert primitives.tree_sum(x, [0]).item() == wanted
    assert reductions.sum_all(x).item() == fp32(wanted)
    assert length == 0 or reductions.mean_all(x).item() == fp32(wanted / length)


def test_minus_zero_stays_only_where_nothing_is_padded() -> None:
    for length in range(1, 20):
        total = primitives.tree_sum(torch.full((length,), -0.0), [0]).item()
        assert math.copysign(1, total) == math.copysign(1, tree([-0.0] * length))


@native_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_c_and_torch_operators_have_the_same_bits_in_every_layout(dtype: torch.dtype) -> None:
    for shape, dims in LAYOUTS:
        x = torch.where(torch.rand(shape) < 0.3, -torch.zeros(()), torch.randn(shape)).to(dtype)
        views = [(x, dims)]
        if x.dim() > 1:
            views += [(x.transpose(0, -1), [{0: x.dim() - 1, x.dim() - 1: 0, -1: 0}.get(dim, dim) for dim in dims])]
            views += [(x[..., ::2], dims), (x[:1].expand(x.shape), dims), (x[..., 1:], dims)]
        if x.dim() == 4:
            views += [(x.contiguous(memory_format=torch.channels_last), dims)]
        for view, chosen in views:
            assert_both_same(lambda view=view, chosen=chosen: primitives.tree_sum(view, chosen))  # type: ignore[misc]


@native_only
def test_special_values_have_the_same_bits_in_c() -> None:
    x = special(60, 70)
    for dims in ([0], [1], [0, 1]):
        assert_both_same(lambda dims=dims: primitives.tree_sum(x, dims))  # type: ignore[misc]
        assert_both_same(lambda dims=dims: reductions.vector_norm(x, 2, dims))  # type: ignore[misc]


@native_only
def test_every_fp16_and_bf16_value_is_read_exactly() -> None:
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        x = bits.view(dtype)[:, None]
        assert_same(primitives.tree_sum(x, [1]), x.double())


def test_stocks_own_sum_has_other_bits() -> None:
    x = torch.randn(64, 1000)
    with threads(1):
        assert not torch.equal(x.sum(1), reductions.sum_dims(x, [1]))


def test_whole_numbers_are_summed_without_rounding() -> None:
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        for shape, dims in LAYOUTS:
            x = torch.randint(0, 2 if dtype is torch.bool else 200, shape).to(dtype)
            for keepdim in (False, True):
                assert_same(reductions.sum_dims(x, dims, keepdim), x.sum(dims, keepdim) if shape else x.sum())
    big = torch.full((5, 3), 2**62)
    assert_same(reductions.sum_dims(big, [0]), big.sum(0))
    assert_both_same(lambda: reductions.sum_all(torch.arange(200_000)))


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_the_dtype_argument_and_the_results_dtype_are_as_stocks(dtype: torch.dtype | None) -> None:
    for source in (torch.float32, torch.bfloat16, torch.int32):
        x = torch.randint(-8, 8, (6, 5)).to(source)
        with row_forms():
            ours = [x.sum(dtype=dtype), x.sum(1, True, dtype=dtype), x.prod(dtype=dtype), x.cumsum(1, dtype=dtype)]
        stock = [x.sum(dtype=dtype), x.sum(1, True, dtype=dtype), x.prod(dtype=dtype), x.cumsum(1, dtype=dtype)]
        assert_same(ours[1], stock[1])
        assert [y.dtype for y in ours] == [y.dtype for y in stock]


def test_variances_are_the_definition_to_the_bit() -> None:
    x = torch.randn(37)
    values = x.tolist()
    mean = tree(values) / 37
    squares = tree([(v - mean) * (v - mean) for v in values])
    assert reductions.var(x).item() == fp32(squares / 36)
    assert reductions.std(x, correction=0).item() == fp32(math.sqrt(squares / 37))
    assert [y.item() for y in reductions.var_mean(x)] == [fp32(squares / 36), fp32(mean)]


def test_a_norm_is_the_root_of_the_tree_of_squares() -> None:
    x = torch.randn(513)
    assert reductions.vector_norm(x).item() == fp32(math.sqrt(tree([v * v for v in x.tolist()])))
    assert reductions.foreach_norm([x, x[:3]], 1)[1].item() == fp32(tree([abs(v) for v in x[:3].tolist()]))


FUNCTIONS: dict[str, Any] = {
    "sum": lambda x: x.sum(1), "sum of all": torch.sum, "mean": lambda x: x.mean((0, 2)), "mean of all": torch.mean,
    "var": lambda x: x.var(1), "std": lambda x: x.std((0, 2), correction=0), "norm": lambda x: x.norm(dim=1),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, dim=2), "norm 3": lambda x: torch.linalg.vector_norm(x, 3),
    "norm inf": lambda x: torch.linalg.vector_norm(x, math.inf, dim=0), "norm of all": torch.norm,
    "prod": lambda x: x.prod(1), "logsumexp": lambda x: x.logsumexp((0, 1)), "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(2), "logcumsumexp": lambda x: x.logcumsumexp(1), "nansum": lambda x: x.nansum(1),
    "trace": lambda x: x[0].trace(), "distance": lambda x: torch.nn.functional.pairwise_distance(x, x.detach() + 1),
    "normalize": torch.nn.functional.normalize, "bias": lambda x: x + torch.ones(7, dtype=x.dtype),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_results_and_gradients_are_as_near_as_stocks(name: str) -> None:
    torch.manual_seed(0)
    assert_no_worse(FUNCTIONS[name], torch.randn(9, 33, 7), slack=1.5)


@native_only
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_forms_have_the_same_bits_by_both_implementations(name: str) -> None:
    x = torch.randn(9, 33, 7)
    with row_forms():
        assert_both_same(lambda: FUNCTIONS[name](x))


def test_a_running_sum_ends_in_what_its_definition_says() -> None:
    values = torch.randn(11)
    row = values.tolist()
    for distance in (1, 2, 4, 8):
        row = [v if i < distance else v + row[i - distance] for i, v in enumerate(row)]
    assert reductions.cumsum(values, 0).tolist() == [fp32(v) for v in row]
    whole = torch.randint(-9, 9, (4, 13))
    assert_same(reductions.cumsum(whole, 1), whole.cumsum(1))
    assert_same(reductions.cumsum(whole > 0, 0), (whole > 0).cumsum(0))


def test_empty_and_odd_inputs_behave_as_stock() -> None:
    for call in (torch.sum, torch.mean, torch.norm, torch.prod):
        stock = call(torch.empty(0))
        with row_forms():
            assert_same(call(torch.empty(0)), stock)
    with row_forms(), pytest.raises(UnsupportedError, match="complex"):
        torch.sum(torch.ones(3, dtype=torch.complex64))
    with row_forms(), pytest.raises(RuntimeError, match="floating point"):
        torch.mean(torch.ones(3, dtype=torch.int64))
    with row_forms(), pytest.raises(IndexError):
        torch.sum(torch.ones(3), 1)


def test_clipping_gradients_reaches_the_forms() -> None:
    parameter = torch.nn.Parameter(torch.ones(300))
    parameter.grad = torch.randn(300)
    wanted = fp32(math.sqrt(tree([v * v for v in parameter.grad.tolist()])))
    with row_forms():
        assert torch.nn.utils.clip_grad_norm_([parameter], 1.0).item() == fp32(math.sqrt(wanted * wanted))
