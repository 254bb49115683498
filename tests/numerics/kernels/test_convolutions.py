"""Convolutions at D2: the order of their sums against a slow reference, their values against stock in fp64."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels import convolutions, native, portable, primitives, products
from easyscale.numerics.kernels.convolutions import Window


@contextmanager
def installed() -> Iterator[None]:
    """The two forms under torch's dispatcher."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        library = torch.library.Library("aten", "IMPL")
        library.impl("convolution", convolutions.convolution, "CPU")
        library.impl("convolution_backward", convolutions.convolution_backward, "CPU")
    try:
        yield
    finally:
        library._destroy()


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chain(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """One output by the definition of products: `pairs` in the order of k."""
    if not pairs:
        return torch.tensor(0.0)
    a = torch.stack([x for x, _ in pairs])
    b = torch.stack([y for _, y in pairs])
    return products.chains(a[None, None], b[None, :, None]).view(())


ZERO = torch.tensor(0.0)


# ------------------------------------------------------------------------------------------------ the order of sums


def test_the_forward_sums_over_channels_then_taps_with_zeros_for_padding() -> None:
    x, weight = values(2, 4, 5, 6), values(6, 2, 3, 2, seed=1)
    window = Window((3, 2), (2, 1), (1, 2), (1, 2))
    out = convolutions.forward(x, weight, window, groups=2)
    for n, oc, oh, ow in itertools.product(*map(range, out.shape)):
        pairs = []
        for c, kh, kw in itertools.product(range(2), range(3), range(2)):
            ih, iw = oh * 2 - 1 + kh, ow * 1 - 2 + kw * 2
            inside = 0 <= ih < 5 and 0 <= iw < 6
            pairs.append((weight[oc, c, kh, kw], x[n, oc // 3 * 2 + c, ih, iw] if inside else ZERO))
        assert torch.equal(out[n, oc, oh, ow], chain(pairs))


def test_the_weight_gradient_sums_over_images_then_positions() -> None:
    x, grad = values(3, 2, 9, 9), values(3, 2, 9, 9, seed=1)
    window = Window((3, 3), (1, 1), (1, 1), (1, 1))
    out = convolutions.weight_gradient(grad, x, window, groups=1)
    padded = F.pad(x, [1, 1, 1, 1])
    for oc, c, kh, kw in itertools.product(range(2), range(2), range(3), range(3)):
        pairs = [
            (grad[n, oc, oh, ow], padded[n, c, oh + kh, ow + kw])
            for n, oh, ow in itertools.product(range(3), range(9), range(9))
        ]
        assert torch.equal(out[oc, c, kh, kw], chain(pairs))


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (3, 2), (2, 2), (4, 1)])
def test_the_input_gradient_sums_over_channels_then_ascending_positions(stride: int, dilation: int) -> None:
    size, kernel, padding = 9, 3, 1
    window = Window((kernel,), (stride,), (padding,), (dilation,))
    outputs = window.positions([size])[0]
    grad, weight = values(2, 4, outputs), values(4, 3, kernel, seed=1)
    out = convolutions.input_gradient(grad, weight, window, 1, [size])
    for n, c, i in itertools.product(range(2), range(3), range(size)):
        pairs = []
        for oc, tap in itertools.product(range(4), reversed(range(kernel))):
            if (i + padding - tap * dilation) % stride == 0:
                o = (i + padding - tap * dilation) // stride
                pairs.append((weight[oc, c, tap], grad[n, oc, o] if 0 <= o < outputs else ZERO))
        assert torch.equal(out[n, c, i], chain(pairs))


def test_the_bias_gradient_is_the_tree_over_images_and_positions() -> None:
    x, weight, grad = values(3, 2, 7), values(4, 2, 3, seed=1), values(3, 4, 5, seed=2)
    _, _, bias = convolutions.convolution_backward(
        grad, x, weight, [4], [1], [0], [1], False, [0], 1, [False, False, True]
    )
    expected = torch.stack([primitives.tree_sum(grad[:, oc].reshape(-1), (0,))[0] for oc in range(4)])
    assert bias is not None
    assert torch.equal(bias, expected.float())


# ------------------------------------------------------------------------------------------------ values

CASES = [
    (dims, transposed, groups, stride, padding, dilation, kernel)
    for dims, transposed, groups, stride, padding, dilation, kernel in itertools.product(
        (1, 2, 3), (False, True), (1, 2, 4), (1, 2, 3), (0, 2), (1, 2), (1, 3)
    )
    if dims < 3 or (groups, padding) == (2, 2)
]


def _case(dims: int, transposed: bool, groups: int, stride: int, padding: int, dilation: int, kernel: int) -> None:
    size = [7, 6, 5][:dims]
    x, bias = values(2, 4, *size), values(8, seed=2)
    weight = values(*((4, 8 // groups) if transposed else (8, 4 // groups)), *([kernel] * dims), seed=1)
    extra = [1 if transposed and stride > 1 else 0] * dims
    args = ([stride] * dims, [padding] * dims, [dilation] * dims, transposed, extra, groups)
    leaves = [tensor.double().requires_grad_() for tensor in (x, weight, bias)]
    expected = torch.ops.aten.convolution(*leaves, *args)
    grad = values(*expected.shape, seed=3)
    expected.backward(grad.double())
    out = convolutions.convolution(x, weight, bias, *args)
    torch.testing.assert_close(out.double(), expected.detach(), atol=2e-5, rtol=1e-5)
    found = convolutions.convolution_backward(grad, x, weight, [8], *args, [True, True, True])
    for mine, leaf in zip(found, leaves, strict=True):
        assert mine is not None
        assert leaf.grad is not None
        torch.testing.assert_close(mine.double(), leaf.grad, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_kind_of_convolution_has_the_values_of_stock_in_fp64(dims: int, transposed: bool) -> None:
    for case in CASES:
        if case[:2] == (dims, transposed):
            _case(*case)


def test_convolutions_of_models_reach_these_forms_with_gradients() -> None:
    x, w, b = values(2, 4, 8, 8), values(6, 4, 3, 3, seed=1), values(6, seed=2)
    small = values(4, 2, 2, 2, seed=3)
    calls = [
        lambda x, w, b, s: F.conv2d(x, w, b, padding="same"),
        lambda x, w, b, s: F.conv2d(x[0], w, b, stride=2),
        lambda x, w, b, s: F.conv1d(x[:, :, 0], w[:, :, 0], b),
        lambda x, w, b, s: F.conv_transpose2d(x, s, stride=2, output_padding=1),
        lambda x, w, b, s: F.conv3d(x[None], torch.cat([w[:2, :2, None]] * 2, 2), padding=1),
    ]
    for call in calls:
        leaves = [tensor.clone().requires_grad_() for tensor in (x, w, b, small)]
        exact = [tensor.double().requires_grad_() for tensor in (x, w, b, small)]
        reference = call(*exact)
        weights = values(*reference.shape, seed=4)
        (reference * weights).sum().backward()
        with installed():
            out = call(*leaves)
            (out * weights).sum().backward()
        torch.testing.assert_close(out.double(), reference, atol=5e-5, rtol=1e-5)
        for mine, leaf in zip(leaves, exact, strict=True):
            assert (mine.grad is None) == (leaf.grad is None)
            if mine.grad is not None and leaf.grad is not None:
                torch.testing.assert_close(mine.grad.double(), leaf.grad, atol=5e-4, rtol=1e-5)


def test_a_stock_convolution_let_through_is_seen() -> None:
    x, w = values(2, 32, 12, 12), values(16, 32, 3, 3, seed=1)
    stock = F.conv2d(x, w)
    with installed():
        assert not torch.equal(stock, F.conv2d(x, w))


# ------------------------------------------------------------------------------------------------ the same bits


def _all(x: Tensor, w: Tensor, groups: int, stride: int) -> list[Tensor]:
    args = ([stride] * 2, [1, 1], [1, 1], False, [0, 0], groups)
    out = convolutions.convolution(x, w, values(w.shape[0], seed=2).to(x.dtype), *args)
    grad = values(*out.shape, seed=3).to(x.dtype)
    found = convolutions.convolution_backward(grad, x, w, [w.shape[0]], *args, [True, True, True])
    return [out, *(tensor for tensor in found if tensor is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("stride", [1, 2])
def test_c_and_torch_operators_have_the_same_bits(dtype: torch.dtype, groups: int, stride: int) -> None:
    assert native.available()
    x, w = values(3, 8, 9, 7).to(dtype), values(16, 8 // groups, 3, 3, seed=1).to(dtype)
    fast = _all(x, w, groups, stride)
    primitives.use_portable(True)
    try:
        assert primitives.implementation(x.device) is portable
        slow = _all(x, w, groups, stride)
    finally:
        primitives.use_portable(False)
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))


@pytest.mark.parametrize("groups", [1, 4])
def test_joining_the_images_to_one_product_changes_no_bits(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = values(3, 8, 9, 7), values(16, 8 // groups, 3, 3, seed=1)
    monkeypatch.setattr(convolutions, "_NARROW", 0)
    apart = _all(x, w, groups, 2)
    monkeypatch.setattr(convolutions, "_NARROW", 10**9)
    joined = _all(x, w, groups, 2)
    assert all(torch.equal(a, b) for a, b in zip(apart, joined, strict=True))


def test_an_image_alone_has_the_bits_that_it_has_in_a_batch() -> None:
    x, w = values(3, 8, 20, 20), values(16, 8, 3, 3, seed=1)
    args = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert torch.equal(convolutions.convolution(x, w, *args)[1:2], convolutions.convolution(x[1:2], w, *args))


def test_large_convolutions_are_by_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = values(3, 8, 9, 7), values(16, 8, 3, 3, seed=1)
    chained = _all(x, w, 1, 1)
    monkeypatch.setattr(products, "SLICED_FROM", 1)
    monkeypatch.setattr(products, "SLICED_SIDE", 8)
    sliced = _all(x, w, 1, 1)
    for a, b in zip(chained[:3], sliced[:3], strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)
        assert not torch.equal(a, b)


# ------------------------------------------------------------------------------------------------ odd and bad input


def test_channels_last_comes_out_as_it_went_in_with_the_same_bits() -> None:
    x, w = values(2, 8, 9, 7), values(16, 8, 3, 3, seed=1)
    plain = _all(x, w, 1, 2)
    last = _all(x.contiguous(memory_format=torch.channels_last), w, 1, 2)
    assert last[0].is_contiguous(memory_format=torch.channels_last)
    assert last[1].is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(a, b) for a, b in zip(plain, last, strict=True))


def test_an_empty_batch_has_an_empty_output_and_zero_gradients() -> None:
    out, for_input, for_weight, for_bias = _all(values(0, 8, 9, 7), values(16, 8, 3, 3), 1, 2)
    assert out.shape == (0, 16, 5, 4)
    assert for_input.shape == (0, 8, 9, 7)
    assert not for_weight.any()
    assert for_weight.shape == (16, 8, 3, 3)
    assert not for_bias.any()


def test_infinities_and_nan_stay_where_their_taps_reach() -> None:
    x, w = torch.ones(1, 1, 8, 8), torch.ones(1, 1, 3, 3)
    x[0, 0, 2, 2], x[0, 0, 6, 6] = torch.inf, torch.nan
    out = convolutions.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)[0, 0]
    assert torch.isinf(out[:3, :3]).all()
    assert torch.isnan(out[4:, 4:]).all()
    assert torch.isfinite(out[:3, 3:]).all()
    assert torch.isfinite(out[3, :]).all()


def test_fp64_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"convolution on torch\.float64"):
        convolutions.convolution(values(1, 1, 3).double(), values(1, 1, 3).double(), None, [1], [0], [1], False, [0], 1)


def test_shapes_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="does not fit"):
        convolutions.convolution(values(1, 3, 5), values(1, 2, 3), None, [1], [0], [1], False, [0], 1)
    with pytest.raises(RuntimeError, match="larger than the padded input"):
        convolutions.convolution(values(1, 2, 2), values(1, 2, 3), None, [1], [0], [1], False, [0], 1)
