"""The operators that training uses most, on inputs that are odd: strides, huge sizes, NaN, infinities, subnormals."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from d2_rows import assert_both_same, assert_same, special
from easyscale.numerics.kernels import indexing, pooling
from easyscale.numerics.kernels.install import installed
from easyscale.numerics.kernels.registry import FORMS

aten = torch.ops.aten


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def uneven(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """A gradient without random numbers, which are others at level D2."""
    return ((torch.arange(shape.numel()) * 7919 % 101 - 50) / 64).view(shape).to(dtype)


def both_ways(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Result and gradient under D2."""
    leaf = x.detach().requires_grad_()
    with installed():
        y = function(leaf)
        return [y.detach(), *torch.autograd.grad(y, leaf, uneven(y.shape, y.dtype))]


# ------------------------------------------------------------------------------------------------- strides

WEIGHT, MATRIX, KERNEL = drawn(6, seed=3), drawn(5, 6, seed=4), drawn(4, 3, 3, 3, seed=5)
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {  # of [4, 3, 8, 6]
    "gelu": F.gelu,
    "exp": torch.exp,
    "sum": lambda x: x.sum((0, 2)),
    "mean of all": torch.mean,
    "softmax": lambda x: x.softmax(2),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, (6,), WEIGHT, WEIGHT),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x, 3),
    "linear": lambda x: F.linear(x, MATRIX.to(x.dtype)),
    "bmm": lambda x: x.flatten(0, 1) @ x.flatten(0, 1).mT,
    "conv2d": lambda x: F.conv2d(x, KERNEL.to(x.dtype), stride=2, padding=1),
    "max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "average pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "cumsum": lambda x: x.cumsum(2),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "cross entropy": lambda x: F.cross_entropy(x, torch.arange(4 * 48).view(4, 8, 6) % 3),
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, training=False) * 1,
}
NEED_ELEMENTS = {"cross entropy", "mean of all", "batch norm"}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "turned": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "every other": lambda x: torch.stack([x, x + 1], -1).flatten(-2)[..., ::2],
    "part of more": lambda x: F.pad(x, (1, 2, 3, 4))[..., 3:-4, 1:-2],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATORS)
def test_strides_do_not_matter(name: str, dtype: torch.dtype) -> None:
    x = drawn(4, 3, 8, 6, dtype=dtype)
    wanted = both_ways(OPERATORS[name], x)
    for layout in LAYOUTS.values():
        strange = layout(x)
        assert not strange.is_contiguous()
        assert_same(both_ways(OPERATORS[name], strange), wanted)


def test_one_element_for_all_places_is_as_many() -> None:
    x = drawn(4, 1, 1, 6)
    for function in OPERATORS.values():
        with installed():
            assert_same(function(x.expand(4, 3, 8, 6)), function(x.expand(4, 3, 8, 6).contiguous()))


# ------------------------------------------------------------------------------------------------- special values


@pytest.mark.parametrize("name", OPERATORS)
def test_special_values_have_the_same_bits_by_both_implementations(name: str) -> None:
    assert_both_same(lambda: both_ways(OPERATORS[name], special(4, 3, 8, 6)))
    assert_both_same(lambda: both_ways(OPERATORS[name], special(4, 3, 8, 6, seed=1) * 1e-39))  # mostly subnormal


def test_nothing_is_flushed_to_zero() -> None:
    tiny = torch.full((2, 2), 1e-41)
    with installed():
        assert (tiny @ torch.eye(2)).tolist() == tiny.tolist()
        assert tiny.sum(0).tolist() == (tiny[0] * 2).tolist()
        assert (tiny.sum() != 0).item()
        assert F.gelu(tiny).ne(0).all()
        assert F.avg_pool2d(tiny[None, None], 2).item() == tiny[0, 0].item()


def test_pooling_of_special_values_has_the_bits_of_stock_on_cpus() -> None:
    x = special(3, 4, 9, 10) + 0.0
    rest: tuple[Any, ...] = ([3, 3], [2, 2], [1, 1])
    wanted = aten.avg_pool2d(x, *rest, False, True)
    assert_same(pooling.average(x, *rest, False, True, None, 2), wanted)
    g = special(*wanted.shape, seed=2)
    back = aten.avg_pool2d_backward(g, x, *rest, False, True, None)
    assert_same(pooling.average_backward(g, x, *rest, False, True, None, 2), back)
    _, indices = aten.max_pool2d_with_indices(x, *rest, [1, 1], False)
    ranges = pooling.max_ranges(g, x, *rest, [1, 1], 2)
    back = aten.max_pool2d_with_indices_backward(g, x, *rest, [1, 1], False, indices)
    assert_same(pooling.maximum_backward(g, x, indices, ranges), back)


def test_sums_by_place_of_special_values_have_the_bits_of_stock_on_cpus() -> None:
    x, target, at = special(300, 20), special(30, 20, seed=1), torch.arange(300) * 7919 % 30
    assert_same(indexing.index_add_in_order(target, 0, at, x), target.index_add(0, at, x))
    back = aten.embedding_dense_backward(x, at, 30, -1, False)
    assert_same(indexing.embedding_backward_in_order(x, at, 30, -1), back)


def test_a_label_of_nan_and_infinite_logits_behave_as_in_stock() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [math.inf, 0.0, 0.0], [-math.inf, 0.0, 1.0], [math.nan, 0.0, 1.0]])
    for row in logits:
        for label in range(3):
            stock = F.cross_entropy(row[None], torch.tensor([label]))
            with installed():
                ours = F.cross_entropy(row[None], torch.tensor([label]))
            torch.testing.assert_close(ours, stock, equal_nan=True)


# ------------------------------------------------------------------------------------------------- huge and empty


def test_huge_inputs_have_the_same_bits_by_both_implementations() -> None:
    x = drawn(1_500_007)
    calls: dict[str, tuple[Any, ...]] = {
        "sum.dim_IntList": (x, [0]), "exp": (x,), "_softmax": (x, 0, False), "cumsum": (x, 0),
        "linalg_vector_norm": (x, 2),
    }  # fmt: skip
    for name, given in calls.items():
        assert_both_same(partial(FORMS[name].function, *given))
    exact = x.double().sum().item()
    assert FORMS["sum.dim_IntList"].function(x, [0]).item() == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in NEED_ELEMENTS])
def test_an_empty_batch_gives_what_stock_gives(name: str) -> None:
    x = torch.empty(0, 3, 8, 6)
    stock = OPERATORS[name](x)
    with installed():
        assert_same(OPERATORS[name](x), stock)


# ------------------------------------------------------------------------------------------------- attention by steps


def _mask(kind: str) -> Tensor | None:
    allowed = torch.ones(5, 7, dtype=torch.bool).tril(1)
    allowed[2] = False  # a query that may look at nothing
    return {"none": None, "truth": allowed, "added": drawn(5, 7, seed=9)}[kind]


@pytest.mark.parametrize("kind", ["none", "truth", "added"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_the_written_steps(kind: str, dtype: torch.dtype) -> None:
    q, k, v = (drawn(2, 3, n, 8, seed=n, dtype=dtype) for n in (5, 7, 7))
    mask = _mask(kind)
    mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
    root = math.sqrt(1 / math.sqrt(8))
    with installed():
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        a = (q.float() * root) @ (k.float().mT * root)
        if mask is not None:
            a = a + (mask if mask.is_floating_point() else torch.where(mask, 0.0, -math.inf)).float()
        wanted = (aten._safe_softmax(a, -1) @ v.float()).to(dtype)
    assert_same(made, wanted)
    if kind == "truth":
        assert not made[:, :, 2].any()


def test_a_query_that_may_look_at_nothing_has_a_gradient_of_zero() -> None:
    q, k, v = (drawn(2, 3, n, 8, seed=n).requires_grad_() for n in (5, 7, 7))
    with installed():
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=_mask("truth"))
        gradients = torch.autograd.grad(y.sum(), (q, k, v))
    assert all(g.isfinite().all() for g in gradients)
    assert not gradients[0][:, :, 2].any()
