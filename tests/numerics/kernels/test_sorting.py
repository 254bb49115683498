"""Sorts and what is chosen by them: which of equal elements comes first, where NaN and zeros go, on every device."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from d2_rows import assert_same, special
from easyscale.numerics.kernels import sorting
from easyscale.numerics.kernels.install import installed

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool]
ODD = [3.0, math.nan, -0.0, 1.0, 0.0, math.inf, 3.0, -math.inf, -0.0, math.nan, 1e-45, -1e-45, 1.0, 3.0]


def compared(a: float, b: float) -> int:
    """As the page says: NaN is above all numbers and equal to NaN, -0 equals +0."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) - math.isnan(b)
    return (a > b) - (a < b)


def order(values: list[float], descending: bool = False) -> list[int]:
    """Python's sort is stable, and with a comparison turned round it stays so."""
    sign = -1 if descending else 1
    key = functools.cmp_to_key(lambda i, j: sign * compared(values[i], values[j]))
    return sorted(range(len(values)), key=key)


def odd(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(ODD).to(dtype) if dtype.is_floating_point else torch.tensor([3, 1, 0, 2, 1, 0, 3, 1]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("stable", [False, True])
def test_sorts_are_stable_also_where_it_was_not_asked_for(dtype: torch.dtype, descending: bool, stable: bool) -> None:
    x = odd(dtype)
    wanted = order(x.tolist(), descending)
    with installed():
        values, indices = torch.sort(x, descending=descending, stable=stable)
        again = torch.argsort(x, descending=descending)
    assert indices.tolist() == again.tolist() == wanted
    assert_same(values, x[indices])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_sort_for_gpus_has_the_bits_of_that_for_cpus(dtype: torch.dtype, descending: bool, dim: int) -> None:
    whole = torch.arange(1850).view(37, 50) * 7919 % 31
    x = ((special(37, 50) * 3).round() if dtype.is_floating_point else whole).to(dtype)
    assert_same(sorting.sort_by_keys(x, dim, descending), sorting.sort(x, stable=None, dim=dim, descending=descending))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 1, 5, len(ODD)])
def test_topk_takes_the_first_of_equal_ones_and_is_sorted(largest: bool, k: int) -> None:
    x = odd()
    with installed():
        values, indices = x.topk(k, largest=largest, sorted=False)
    assert indices.tolist() == order(ODD, largest)[:k]
    assert_same(values, x[indices])


def test_kthvalue_median_and_mode_choose_what_the_page_says() -> None:
    x = odd()
    clean = [v for v in x.tolist() if not math.isnan(v)]
    with installed():
        for k in range(1, len(ODD) + 1):
            assert x.kthvalue(k).indices.item() == order(ODD)[k - 1]
        assert x.median(0).indices.item() == ODD.index(next(v for v in ODD if math.isnan(v)))
        assert math.isnan(x.median())
        assert x.nanmedian().item() == sorted(clean)[(len(clean) - 1) // 2]
        assert torch.tensor([4.0, 1.0, 3.0, 2.0]).median().item() == 2.0
        value, place = torch.tensor([2.0, 5.0, 1.0, 5.0, 1.0, 9.0]).mode()
    assert (value.item(), place.item()) == (1.0, 4)


def test_unique_shows_the_first_of_equal_elements_and_each_nan() -> None:
    x = torch.tensor([0.0, 2.0, -0.0, 2.0, math.nan, 1.0, math.nan])
    with installed():
        values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
        runs = torch.unique_consecutive(torch.tensor([1, 1, 2, 2, 2, 1]), return_counts=True)
    assert_same(values, torch.tensor([0.0, 1.0, 2.0, math.nan, math.nan]))
    assert inverse.tolist() == [0, 2, 0, 2, 3, 1, 4]
    assert counts.tolist() == [2, 1, 2, 1, 1]
    assert [one.tolist() for one in runs] == [[1, 2, 1], [2, 3, 1]]


def test_a_number_is_looked_for_in_a_large_tensor() -> None:
    x = torch.arange(20_000.0)
    with installed():
        assert torch.isin(7, x).item()
        assert not torch.isin(-7, x).item()
        assert torch.isin(x, 7.0).sum().item() == 1


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (), (1,), (2, 3, 4)])
def test_shapes_are_those_of_stock(shape: tuple[int, ...]) -> None:
    x = torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
    stock = [*torch.sort(x), *x.topk(min(1, x.shape[-1] if shape else 1))]
    with installed():
        ours = [*torch.sort(x), *x.topk(min(1, x.shape[-1] if shape else 1))]
    assert_same(ours, stock)


def test_gradients_go_back_to_where_the_values_were() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0]], requires_grad=True)
    with installed():
        (sort,) = torch.autograd.grad((x.sort(1).values * torch.tensor([1.0, 2.0, 3.0])).sum(), x)
        (top,) = torch.autograd.grad((x.topk(2).values * torch.tensor([1.0, 2.0])).sum(), x)
    assert sort.tolist() == [[3.0, 1.0, 2.0], [2.0, 3.0, 1.0]]
    assert top.tolist() == [[1.0, 0.0, 2.0], [1.0, 2.0, 0.0]]


@pytest.mark.parametrize("call", [lambda x: x.topk(4), lambda x: x.kthvalue(0), lambda x: x.kthvalue(4)])
def test_what_is_not_there_cannot_be_chosen(call: object) -> None:
    assert callable(call)
    with installed(), pytest.raises(RuntimeError, match="out of range"):
        call(torch.arange(3.0))
