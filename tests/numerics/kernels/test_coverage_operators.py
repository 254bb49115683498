"""Operators that training meets: none is refused at level D2, and each result is close to stock's, both ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.numerics.kernels.coverage_layers import RANDOM, attention, losses, pictures, products
from tests.numerics.kernels.coverage_plain import elementwise, moving, reductions
from torch import Tensor
from torch.utils import _pytree as pytree

from d2_rows import assert_same, native_only, portable
from easyscale.numerics.kernels.install import installed

CASES = elementwise() | reductions() | moving() | products() | attention() | pictures() | losses()


def equal(mine: Any, stock: Any) -> None:
    for ours, theirs in zip(pytree.tree_leaves(mine), pytree.tree_leaves(stock), strict=True):
        if isinstance(theirs, Tensor):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5, equal_nan=True)
        else:
            assert ours == theirs


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_it_is_computed_and_close_to_stock(name: str) -> None:
    stock = CASES[name]()
    with installed():
        mine = CASES[name]()
    equal(mine, stock)


@native_only
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_it_has_the_same_bits_by_both_implementations(name: str) -> None:
    with installed():
        ours = CASES[name]()
        with portable():
            assert_same(CASES[name](), ours)


def test_a_stock_result_is_seen_to_have_other_bits() -> None:
    """A negative control."""
    with installed():
        ours = CASES["softmax"]()
    with pytest.raises(AssertionError, match="elements differ"):
        assert_same(CASES["softmax"](), ours)


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.filterwarnings("ignore")
def test_random_ones_are_computed_and_follow_the_seed(name: str) -> None:
    with installed():
        torch.manual_seed(5)
        first = RANDOM[name]()
        torch.manual_seed(5)
        second = RANDOM[name]()
    for one, two in zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True):
        assert torch.equal(one.nan_to_num(), two.nan_to_num())
