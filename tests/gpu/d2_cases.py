"""What the operators of D2 are tried on, H200 against CPU, besides the samples of tests/numerics/kernels: many shapes.

Each case is a function without arguments that computes on the CPU, forward and backward; `d2_mirror` has every operator
of it computed elsewhere too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from d2_rows import special
from easyscale.numerics.kernels import attention as d2_attention
from easyscale.numerics.kernels import products as d2_products
from easyscale.numerics.kernels import sliced_convolutions
from easyscale.numerics.kernels.gpu import replay
from easyscale.numerics.kernels.gpu import sliced_convolutions as gpu_convolutions

Case = Callable[[], Any]
SHORT = (torch.float32, torch.bfloat16, torch.float16)
# m, n, k: around the ends of blocks (256) and spans (4096), thin
PRODUCTS = [
    (1, 1, 1), (3, 5, 7), (17, 33, 255), (64, 64, 256), (65, 31, 257), (128, 96, 1000), (1, 1000, 513), (1000, 1, 513),
    (130, 70, 4096), (33, 40, 4097), (64, 48, 9000), (16, 16, 65_537), (7, 9, 0), (0, 4, 5), (512, 384, 768),
]  # fmt: skip
SLICED = [(1024, 2048, 2048), (1024, 1024, 2049), (600, 768, 4860)]
# images, channels in and out, size, kernel, stride, padding, dilation, groups
CONVOLUTIONS = [
    (2, 3, 8, (17, 19), 3, 1, 1, 1, 1), (3, 8, 12, (15, 15), 3, 2, 1, 1, 1), (2, 6, 6, (9, 11), 3, 1, 2, 2, 6),
    (2, 8, 12, (9, 9), 1, 1, 0, 1, 4), (1, 3, 16, (33, 33), 7, 2, 3, 1, 1), (2, 64, 64, (28, 28), 3, 1, 1, 1, 1),
    (4, 4, 6, (20, 20), 5, 3, 0, 1, 2), (8, 256, 64, (14, 14), 1, 1, 0, 1, 1),
]  # fmt: skip
ROWS = [
    (1, 1),
    (3, 2),
    (7, 33),
    (5, 255),
    (5, 256),
    (4, 257),
    (64, 768),
    (33, 1000),
    (2, 4097),
    (3, 20_000),
    (2, 50_257),
]
# samples, heads, queries, keys, width: rows of one launch, of rounds, of several blocks and spans; one; causal squares
ATTENTION = [
    (2, 3, 1, 1, 1), (2, 3, 5, 7, 8), (1, 2, 33, 31, 17), (2, 2, 64, 64, 64), (2, 3, 99, 255, 9), (1, 2, 257, 257, 64),
    (8, 12, 128, 128, 64), (1, 2, 70, 1000, 40), (2, 1, 1030, 1030, 128), (1, 1, 300, 4097, 64), (1, 2, 20, 9000, 300),
]  # fmt: skip
CHANNELS = [(2, 3, 5, 7), (2, 1, 1, 1), (4, 16, 28, 28), (3, 7, 1, 1), (8, 33, 9, 9), (2, 4, 100, 70)]


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    out = function(*leaves)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    torch.autograd.grad(out, leaves, g)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, odd: bool = False) -> Tensor:
    """Ordinary ones, or with NaN, infinities, subnormals and zeros of both signs among them."""
    if odd:
        return special(*shape, seed=seed).to(dtype)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def products() -> Iterator[Case]:
    for dtype in SHORT:
        for odd in (False, True):
            for m, n, k in PRODUCTS:
                a, b = numbers(m, k, dtype=dtype, odd=odd), numbers(k, n, seed=1, dtype=dtype, odd=odd)
                yield lambda a=a, b=b: with_gradients(torch.mm, a, b)
            a, b = numbers(5, 20, 300, dtype=dtype, odd=odd), numbers(5, 300, 33, seed=1, dtype=dtype, odd=odd)
            yield lambda a=a, b=b: with_gradients(torch.bmm, a, b)
            yield lambda a=a, b=b: with_gradients(lambda a, b: a.mT.contiguous().mT @ b.mT.contiguous().mT, a, b)
            yield lambda a=a, b=b: with_gradients(
                lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), b[0, 0], a[0], b[0])  # fmt: skip
    for odd in (False, True):
        for m, n, k in SLICED:
            yield lambda m=m, n=n, k=k, odd=odd: torch.mm(numbers(m, k, odd=odd), numbers(k, n, seed=1))


def convolutions() -> Iterator[Case]:
    for dtype in SHORT:
        for images, before, after, size, kernel, stride, padding, dilation, groups in CONVOLUTIONS:
            x = numbers(images, before, *size, dtype=dtype)
            w, b = numbers(after, before // groups, kernel, kernel, seed=1, dtype=dtype), numbers(after, dtype=dtype)
            options: Any = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
            yield lambda x=x, w=w, b=b, o=options: with_gradients(lambda x, w, b: F.conv2d(x, w, b, **o), x, w, b)
            last = x.to(memory_format=torch.channels_last)
            yield lambda x=last, w=w, o=options: with_gradients(lambda x, w: F.conv2d(x, w, **o), x, w)
    x, w = numbers(2, 6, 9, 10), numbers(6, 4, 3, 3, seed=1)
    yield lambda: with_gradients(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1), x, w)
    yield lambda: with_gradients(F.conv1d, numbers(2, 5, 40), numbers(7, 5, 3))
    yield lambda: with_gradients(F.conv3d, numbers(1, 3, 7, 8, 9), numbers(4, 3, 3, 3, 3))


def by_slices(case: Case) -> Case:
    """With products and convolutions of any size by slices."""

    def run() -> None:
        before = d2_products.SLICED_FROM, d2_products.SLICED_SIDE, d2_products.SLICED_STEPS
        channels = sliced_convolutions.SLICED_CHANNELS
        d2_products.SLICED_FROM = d2_products.SLICED_SIDE = d2_products.SLICED_STEPS = 1
        sliced_convolutions.SLICED_CHANNELS = 1
        replay.forget()
        try:
            case()
        finally:
            d2_products.SLICED_FROM, d2_products.SLICED_SIDE, d2_products.SLICED_STEPS = before
            sliced_convolutions.SLICED_CHANNELS = channels
            replay.forget()

    return run


def in_groups(case: Case, most: int) -> Case:
    """With slices of so many bytes at a time on a GPU, where images are then cut in groups."""

    def run() -> None:
        before = gpu_convolutions.MOST_BYTES
        gpu_convolutions.MOST_BYTES = most
        gpu_convolutions.groups_of.cache_clear()
        try:
            by_slices(case)()
        finally:
            gpu_convolutions.MOST_BYTES = before
            gpu_convolutions.groups_of.cache_clear()

    return run


def sliced() -> Iterator[Case]:
    """Both forms by slices, at sizes that would have chains, and some that are cut in parts."""
    yield from map(by_slices, products())
    yield from map(by_slices, convolutions())
    for shape, out, kernel, padding, dilation in (
        ((3, 70, 13, 9), 130, 3, 1, 1), ((2, 128, 28, 28), 128, 3, 1, 1), ((2, 64, 40, 40), 66, 5, 2, 1),
        ((4, 256, 7, 7), 96, 1, 0, 1), ((2, 20, 17, 30), 24, 3, 2, 2), ((2, 9, 8, 8), 70, 3, 0, 1),
    ):  # fmt: skip
        x, w = numbers(*shape), numbers(out, shape[1], kernel, kernel, seed=1)
        uneven = x * torch.exp(4 * numbers(shape[0], 1, 1, 1, seed=3))
        for image in (x, x.to(memory_format=torch.channels_last), uneven):
            yield by_slices(lambda x=image, w=w, p=padding, d=dilation: with_gradients(
                lambda x, w: F.conv2d(x, w, padding=p, dilation=d), x, w))  # fmt: skip
    for images, most in ((3, 1), (7, 2**18), (13, 2**19)):  # one by one; by three; by four, the last one alone
        for stride in (1, 2):
            x, w = numbers(images, 70, 13, 9), numbers(66, 70, 3, 3, seed=1)
            yield in_groups(lambda x=x, w=w, s=stride: with_gradients(
                lambda x, w: F.conv2d(x, w, padding=1, stride=s), x, w), most)  # fmt: skip
    odd = numbers(3, 70, 13, 9).index_put((torch.tensor(1), torch.tensor(5)), torch.tensor(torch.inf))
    yield by_slices(lambda: with_gradients(F.conv2d, odd, numbers(64, 70, 3, 3, seed=1)))
    yield by_slices(lambda: with_gradients(torch.mm, numbers(200, 9000), numbers(9000, 130, seed=1)))


def rows() -> Iterator[Case]:
    """Softmax, layer and RMS norm, sums."""
    for dtype in (*SHORT, torch.float64):
        for shape in ROWS:
            for odd in (False, True):
                x = numbers(*shape, dtype=dtype, odd=odd)
                w, b = numbers(shape[1], seed=1, dtype=dtype), numbers(shape[1], seed=2, dtype=dtype)
                yield lambda x=x: with_gradients(lambda x: F.softmax(x, 1), x)
                yield lambda x=x: with_gradients(lambda x: F.log_softmax(x, 0), x)
                yield lambda x=x, w=w, b=b: with_gradients(lambda x, w, b: F.layer_norm(x, w.shape, w, b), x, w, b)
                yield lambda x=x, w=w: with_gradients(lambda x, w: F.rms_norm(x, w.shape, w), x, w)
                yield lambda x=x: (x.sum(), x.sum(0), x.mean(1), x.var(1), x.norm(), torch.logsumexp(x, 1), x.cumsum(1))


def channels() -> Iterator[Case]:
    """Batch and group norm, in both layouts, in training and in evaluation."""
    for dtype in SHORT:
        for shape in CHANNELS:
            x, w, b = numbers(*shape, dtype=dtype), numbers(shape[1], seed=1), numbers(shape[1], seed=2)
            mean, variance = torch.zeros(shape[1]), torch.ones(shape[1])
            for image in (x, x.to(memory_format=torch.channels_last)):
                for training in (True, False):
                    yield lambda x=image, w=w, b=b, m=mean, v=variance, t=training: with_gradients(
                        lambda x, w, b: F.batch_norm(x, m.clone(), v.clone(), w, b, training=t), x, w, b)  # fmt: skip
                groups, short = 3 if shape[1] % 3 == 0 else 1, w.to(dtype)
                yield lambda x=image, g=groups, w=short: with_gradients(lambda x, w: F.group_norm(x, g, w), x, w)


def by_operator(case: Case) -> Case:
    """With attention on the CPU by the operator that CUDA takes, which is then computed there too."""

    def run() -> None:
        d2_attention.DEVICES.add("cpu")
        try:
            case()
        finally:
            d2_attention.DEVICES.discard("cpu")

    return run


def attend(*inputs: Tensor, **options: Any) -> Case:
    return by_operator(
        lambda: with_gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), *inputs)
    )


def attention() -> Iterator[Case]:
    """Forward and backward: masks, dropout, layouts, odd numbers; in parts, and with products by slices."""
    for dtype in SHORT:
        for samples, heads, length, seen, width in ATTENTION:
            shapes = [(samples, n, heads, width) for n in (length, seen, seen)]
            q, k, v = (numbers(*shape, seed=i, dtype=dtype).transpose(1, 2) for i, shape in enumerate(shapes))
            allowed = numbers(samples, 1, 1, seen, seed=5) > -0.5
            yield attend(q, k, v)
            yield attend(q.contiguous(), k.contiguous(), v.contiguous(), is_causal=True)
            yield attend(q, k, v, attn_mask=allowed, dropout_p=0.1)
            yield attend(q, k, v, attn_mask=torch.where(allowed, 0.0, -torch.inf).to(dtype), scale=0.2)
            yield attend(q, k, v, attn_mask=numbers(heads, length, seen, seed=6), is_causal=False, dropout_p=0.5)
            yield attend(q, k, v, attn_mask=torch.zeros(length, seen, dtype=torch.bool))
            yield attend(q, k, v, is_causal=True, dropout_p=0.1)
    q, k, v = (numbers(2, 3, n, 16, seed=n) for n in (20, 37, 37))
    strange = [numbers(*x.shape, seed=7, odd=True) for x in (q, k, v)]
    for place in range(3):
        mixed = [strange[i] if i == place else x for i, x in enumerate((q, k, v))]
        yield attend(*mixed)
        yield attend(*mixed, attn_mask=numbers(20, 37, seed=8, odd=True), dropout_p=0.2)
    yield attend(q, k[:, :1].expand_as(k), v.mT.contiguous().mT, is_causal=True)
    yield attend(q[0], k[0], v[0], attn_mask=numbers(3, 1, 37))
    yield by_slices(attend(q, k, v, dropout_p=0.1))

    def in_parts() -> None:
        before, d2_attention.MOST = d2_attention.MOST, 1000  # one head at a time
        try:
            attend(q, k[:, :, :33], v[:, :, :33], dropout_p=0.3, attn_mask=numbers(2, 3, 20, 33, seed=9) > 0)()
        finally:
            d2_attention.MOST = before

    yield in_parts


def everything() -> dict[str, Callable[[], Iterator[Case]]]:
    return {
        "products": products, "convolutions": convolutions, "sliced": sliced, "rows": rows, "channels": channels,
        "attention": attention,
    }  # fmt: skip
