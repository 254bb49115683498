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

import d2_slices
from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels import convolutions, native, portable, primitives, products, sliced_convolutions
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
    out = convolutions.weight_gradient(grad, x, values(2, 2, 3, 3), window, groups=1)
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


# ------------------------------------------------------------------------------------------------ by slices


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every convolution of two dimensions and one group, however small."""
    monkeypatch.setattr(products, "SLICED_FROM", 1)
    monkeypatch.setattr(sliced_convolutions, "SLICED_CHANNELS", 1)


@pytest.fixture(params=["portable", "native"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    primitives.use_portable(request.param == "portable")
    assert request.param == "portable" or native.available()
    yield request.param
    primitives.use_portable(False)


def same(a: Tensor, b: Tensor) -> bool:
    """The same bits, all NaN alike."""
    assert a.dtype is b.dtype is torch.float32
    nothing = torch.full((), torch.nan)
    return torch.equal(*(torch.where(x.isnan(), nothing, x).contiguous().view(torch.int32) for x in (a, b)))


def uneven(*shape: int, seed: int = 0) -> Tensor:
    """Pictures of which each channel of each image has a size of its own."""
    return values(*shape, seed=seed) * torch.exp(2 * values(*shape[:2], 1, 1, seed=seed + 50))


def computed(x: Tensor, weight: Tensor, grad: Tensor | None, window: d2_slices.Window) -> list[Tensor]:
    """Output, gradients of the input and of the weight."""
    stride, padding, dilation = window
    args = ([stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], 1)
    out = convolutions.convolution(x, weight, None, *args)
    grad = uneven(*out.shape, seed=3).to(x.dtype) if grad is None else grad
    back = convolutions.convolution_backward(grad, x, weight, None, *args, [True, True, False])
    return [out, *(tensor for tensor in back if tensor is not None)]


WINDOWS = [(1, 1, 1), (2, 1, 1), (3, 0, 1), (1, 2, 2), (2, 2, 3), (4, 0, 1)]  # stride, padding, dilation


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_slices_are_those_of_exact_fractions(implementation: str, window: d2_slices.Window) -> None:
    x, weight = uneven(2, 3, 6, 5), uneven(4, 3, 3, 3, seed=1)
    if window == (2, 2, 3):
        x = torch.constant_pad_nd(x, [1, 1, 1, 1])
    x[1, 2] = 0.0
    out, for_input, for_weight = computed(x, weight, None, window)
    grad = uneven(*out.shape, seed=3)
    assert same(out, d2_slices.convolution(x, weight, window, 4))
    assert same(for_input, d2_slices.input_gradient(grad, weight, x.shape[2:], window, 4))
    assert same(for_weight, d2_slices.weight_gradient(grad, x, 3, window, 4))


@pytest.mark.usefixtures("sliced")
def test_one_tap_and_three_slices_are_those_of_exact_fractions(implementation: str) -> None:
    x, weight = uneven(2, 5, 4, 3).bfloat16(), uneven(4, 5, 1, 1, seed=1).bfloat16()
    window = (1, 0, 1)
    out, for_input, for_weight = computed(x, weight, None, window)
    grad = uneven(*out.shape, seed=3).bfloat16()
    wanted = (
        d2_slices.convolution(x, weight, window, 3),
        d2_slices.input_gradient(grad, weight, x.shape[2:], window, 3),
        d2_slices.weight_gradient(grad, x, 1, window, 3),
    )
    for ours, theirs in zip((out, for_input, for_weight), wanted, strict=True):
        assert torch.equal(ours, theirs.bfloat16())


@pytest.mark.usefixtures("sliced")
def test_another_scale_or_a_lost_pair_of_slices_is_seen() -> None:
    """Negative controls of the test above: its numbers tell these apart."""
    x, weight, window = uneven(2, 3, 6, 5), uneven(4, 3, 3, 3, seed=1), (1, 1, 1)
    over = Window((3, 3), (1, 1), (1, 1), (1, 1))
    out = convolutions.forward(x, weight, over, 1)
    assert same(out, d2_slices.convolution(x, weight, window, 4))
    assert not same(out, d2_slices.convolution(x, weight, window, 4, d2_slices.of_tensor)), "of the whole batch"
    for pair in [(i, j) for i in range(4) for j in range(4 - i)]:
        assert not same(out, d2_slices.convolution(x, weight, window, 4, dropped=[pair]))
    columns = F.unfold(x, 3, padding=1).movedim(0, 1).flatten(1)
    by_column = primitives.sliced_product(weight.flatten(1), columns, 4).view(4, 2, 6, 5).movedim(1, 0)
    assert not same(out, by_column), "of each column by itself, as in a product"


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [(1, 1, 1), (2, 1, 1), (3, 2, 2), (1, 0, 2)], ids=str)
def test_slices_in_c_and_by_torch_operators_have_the_same_bits(window: d2_slices.Window, dtype: torch.dtype) -> None:
    x, weight = uneven(3, 37, 13, 11).to(dtype), uneven(20, 37, 3, 3, seed=1).to(dtype)
    fast = computed(x, weight, None, window)
    last = computed(x.to(memory_format=torch.channels_last), weight, None, window)
    primitives.use_portable(True)
    try:
        slow = computed(x, weight, None, window)
    finally:
        primitives.use_portable(False)
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(fast, last, strict=True))


@pytest.mark.usefixtures("sliced")
def test_weight_gradients_in_parts_have_the_same_bits(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = uneven(2, 11, 7, 6), uneven(5, 11, 3, 3, seed=1)
    whole = computed(x, weight, None, (1, 1, 1))
    monkeypatch.setattr(sliced_convolutions, "_COLUMNS_BYTES", 4 * 2 * 42 * 9 * 4)  # four channels at a time
    assert all(torch.equal(a, b) for a, b in zip(whole, computed(x, weight, None, (1, 1, 1)), strict=True))


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize("transposed", [False, True])
def test_sliced_convolutions_have_the_values_of_stock_in_fp64(transposed: bool) -> None:
    for case in CASES:
        if case[:3] == (2, transposed, 1):
            _case(*case)


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize("odd", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_takes_its_image_or_its_channel_along(implementation: str, odd: float) -> None:
    for window in ((1, 1, 1), (2, 1, 1)):
        x, weight = uneven(3, 4, 7, 6), uneven(5, 4, 3, 3, seed=1)
        clean = computed(x, weight, None, window)
        grad = uneven(*clean[0].shape, seed=3)
        spoilt = x.clone()
        spoilt[1, 2, 3, 4] = odd
        out, for_input, for_weight = computed(spoilt, weight, grad, window)
        assert out[1].isnan().all()
        assert for_weight[:, 2].isnan().all()
        assert same(out[[0, 2]], clean[0][[0, 2]])
        assert same(for_weight[:, [0, 1, 3]], clean[2][:, [0, 1, 3]])
        assert same(for_input, clean[1])
        kernel = weight.clone()
        kernel[3, 1, 0, 2] = odd
        out, for_input, for_weight = computed(x, kernel, grad, window)
        others = [0, 1, 2, 4]
        assert out[:, 3].isnan().all()
        assert same(out[:, others], clean[0][:, others])
        assert same(for_weight, clean[2])
        reached = for_input[:, 1] if window[0] == 1 else for_input[:, 1, 1::2, 1::2]  # the phase of tap (0, 2)
        assert reached.isnan().all()
        assert same(for_input[:, [0, 2, 3]], clean[1][:, [0, 2, 3]])
        assert window[0] == 1 or same(for_input[:, 1, ::2, ::2], clean[1][:, 1, ::2, ::2])
        slope = grad.clone()
        slope[2, 4, 1, 1] = odd
        _, for_input, for_weight = computed(x, weight, slope, window)
        assert for_input[2].isnan().all()
        assert same(for_input[:2], clean[1][:2])
        assert for_weight[4].isnan().all()
        assert same(for_weight[:4], clean[2][:4])


def test_a_convolution_is_by_slices_by_its_shape_and_dtype_alone() -> None:
    def slices_of(images: int, inner: int, out: int, *, size: int, taps: int = 3, groups: int = 1, dims: int = 2,
                  dtype: torch.dtype = torch.float32) -> int:  # fmt: skip
        window = Window((taps,) * dims, (1,) * dims, (taps // 2,) * dims, (1,) * dims)
        return sliced_convolutions.slices_of(images, inner, out, window.over([size] * dims), groups, dtype)

    assert slices_of(16, 64, 64, size=56) == products.SLICES
    assert slices_of(16, 64, 64, size=56, dtype=torch.bfloat16) == products.SLICES_HALF
    assert slices_of(16, 64, 64, size=56, dtype=torch.float16) == products.SLICES_HALF
    assert slices_of(16, 64, 64, size=56, groups=2) == 0
    assert slices_of(16, 64, 63, size=56) == slices_of(16, 63, 64, size=56) == 0
    assert slices_of(2**12, 512, 512, size=2, taps=3, dims=1) == slices_of(2, 512, 512, size=20, dims=3) == 0
    # 512 * 512 * 9 a position, of which 682.7 make 3 * 2^29
    assert slices_of(683, 512, 512, size=1) == products.SLICES
    assert slices_of(682, 512, 512, size=1) == 0
    assert slices_of(2**12 - 1, 64, 64, size=64) == products.SLICES
    assert slices_of(2**12, 64, 64, size=64) == 0, "2^24 positions"
    assert slices_of(0, 64, 64, size=64) == 0


def test_images_of_very_many_values_are_by_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and in the gradient of the input: the gradient of the weights has a scale for each channel."""
    over = Window((3, 3), (1, 1), (1, 1), (1, 1)).over((128, 128))
    for inner, slices in ((128, products.SLICES), (129, 0)):
        shape = (32, inner, 128, 128)
        assert sliced_convolutions.slices_by_image(shape, 64, over, 1, torch.float32) == slices
    x, weight, grad, window = uneven(2, 4, 8, 8), uneven(6, 4, 3, 3, seed=1), uneven(2, 6, 8, 8, seed=2), (1, 1, 1)
    chained = computed(x, weight, grad, window)
    for owner, name in ((products, "SLICED_FROM"), (sliced_convolutions, "SLICED_CHANNELS")):
        monkeypatch.setattr(owner, name, 1)
    sliced = computed(x, weight, grad, window)
    assert not any(same(a, b) for a, b in zip(chained, sliced, strict=True))
    for values_, by_chains in ((4 * 64 - 1, (0, 1)), (4 * 64, (1,)), (6 * 64, ())):
        monkeypatch.setattr(sliced_convolutions, "SLICED_VALUES", values_)
        found = computed(x, weight, grad, window)
        for i in range(3):
            assert same(found[i], (chained if i in by_chains else sliced)[i])


def test_other_convolutions_are_chains_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """With groups, of one dimension and three, with few channels."""
    monkeypatch.setattr(sliced_convolutions, "SLICED_CHANNELS", 9)

    def each() -> list[Tensor]:
        found = []
        for dims, groups in ((1, 1), (2, 2), (2, 1), (3, 1)):
            x, w = values(2, 8, *[6] * dims), values(16, 8 // groups, *[3] * dims, seed=1)
            found.append(convolutions.convolution(x, w, None, [1] * dims, [1] * dims, [1] * dims, False, [0], groups))
        return found

    before = each()
    for name in ("SLICED_FROM", "SLICED_SIDE", "SLICED_STEPS"):
        monkeypatch.setattr(products, name, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, each(), strict=True))
    monkeypatch.setattr(sliced_convolutions, "SLICED_CHANNELS", 8)
    assert [torch.equal(a, b) for a, b in zip(before, each(), strict=True)] == [True, True, False, True]


def test_each_phase_of_a_stride_has_the_form_of_its_own_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3 x 3 taps over a stride of two, four reach one of four elements, two or one the others."""
    x, weight, window = uneven(2, 4, 8, 8), uneven(6, 4, 3, 3, seed=1), (2, 1, 1)
    monkeypatch.setattr(sliced_convolutions, "SLICED_CHANNELS", 1)
    chained = computed(x, weight, None, window)[1]
    monkeypatch.setattr(products, "SLICED_FROM", 1)
    sliced = computed(x, weight, None, window)[1]
    # channels in, images times positions of a phase, channels out times taps of the phase
    monkeypatch.setattr(products, "SLICED_FROM", 4 * (2 * 4 * 4) * (6 * 4))
    mixed = computed(x, weight, None, window)[1]
    assert same(mixed[:, :, ::2, ::2], chained[:, :, ::2, ::2])
    assert same(mixed[:, :, 1::2, ::2], chained[:, :, 1::2, ::2])
    assert same(mixed[:, :, ::2, 1::2], chained[:, :, ::2, 1::2])
    assert same(mixed[:, :, 1::2, 1::2], sliced[:, :, 1::2, 1::2])
    assert not same(chained[:, :, 1::2, 1::2], sliced[:, :, 1::2, 1::2])


@pytest.mark.usefixtures("sliced")
def test_an_image_alone_has_the_bits_that_it_has_in_a_batch_by_slices_too() -> None:
    x, w = uneven(3, 8, 9, 9), values(16, 8, 3, 3, seed=1)
    args = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert torch.equal(convolutions.convolution(x, w, *args)[1:2], convolutions.convolution(x[1:2], w, *args))


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
