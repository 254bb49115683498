"""What the tests of D2 sums, norms, softmax and losses share: the tree in plain Python, comparing bits, and both
implementations side by side."""

from __future__ import annotations

import importlib
import math
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from easyscale.numerics.kernels import native, primitives
from easyscale.numerics.kernels.registry import FORMS

_MODULES = ("reductions", "norms", "softmax", "losses")
native_only = pytest.mark.skipif(not native.available(), reason="the C kernels are not built")


def tree(values: Sequence[float]) -> float:
    """The halving tree, as it is written down. Python's floats are fp64."""
    padded = 1
    while padded < len(values):
        padded *= 2
    row = [*values, *([0.0] * (padded - len(values)))] if values else [0.0]
    while len(row) > 1:
        half = len(row) // 2
        row = [row[i] + row[i + half] for i in range(half)]
    return row[0]


def fp32(value: float) -> float:
    """Rounded to fp32."""
    if math.isinf(value) or math.isnan(value):
        return value
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def assert_same(ours: Any, theirs: Any) -> None:
    """The same bits (NaN is NaN), dtypes and shapes, in all tensors of two results."""
    left, right = pytree.tree_leaves(ours), pytree.tree_leaves(theirs)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        if isinstance(a, Tensor):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            equal = (a == b) & (torch.signbit(a) == torch.signbit(b)) | (a != a) & (b != b)
            assert bool(equal.all()), f"{int((~equal).sum())} of {a.numel()} elements differ"
        else:
            assert a == b


@contextmanager
def portable() -> Iterator[None]:
    """By torch operators."""
    primitives.use_portable(True)
    try:
        yield
    finally:
        primitives.use_portable(False)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_both_same(run: Callable[[], Any]) -> None:
    """The C kernels, with one thread and two, and torch operators give the same bits."""
    with portable():
        wanted = run()
    for number in (1, 2):
        with threads(number):
            assert_same(run(), wanted)


@contextmanager
def row_forms() -> Iterator[None]:
    """Only the forms of sums, norms, softmax and losses, under autograd."""
    names = tuple(importlib.import_module(f"easyscale.numerics.kernels.{name}").__name__ for name in _MODULES)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for form in FORMS.values():
            if form.function.__module__ in names:
                library.impl(form.name, form.function, "CPU")
    mkldnn = torch.backends.mkldnn.enabled
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        library._destroy()
        torch._C._set_mkldnn_enabled(mkldnn)


def special(*shape: int, seed: int = 0) -> Tensor:
    """fp32 values with NaN, infinities, zeros of both signs and subnormals among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-40, 3e38])
    mask = torch.rand(shape, generator=generator) < 0.02
    picks = odd[torch.randint(len(odd), shape, generator=generator)]
    return torch.where(mask, picks, x)


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result and the gradients of the inputs for an uneven gradient of the result."""
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    out = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(out.shape, generator=generator).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, g)]


def assert_no_worse(function: Callable[..., Tensor], *inputs: Tensor, slack: float = 1.0) -> None:
    """Result and gradients in fp32 are as near to stock's in fp64 as stock's in fp32 are."""
    exact = with_gradients(function, *(x.double() for x in inputs))
    stock = with_gradients(function, *inputs)
    with row_forms():
        ours = with_gradients(function, *inputs)
        wide = with_gradients(function, *(x.double() for x in inputs))
    for a, b, c, d in zip(ours, stock, exact, wide, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.stride() == b.stride()
        error, allowed = (a.double() - c).abs().max(), (b.double() - c).abs().max()
        resolution = c.abs().max() * 2.0**-23
        assert error <= slack * torch.maximum(allowed, resolution), f"{error} against stock's {allowed}"
        torch.testing.assert_close(d, c, rtol=1e-10, atol=1e-12)
