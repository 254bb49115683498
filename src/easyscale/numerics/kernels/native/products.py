"""Matrix products on the CPU: the FMA chain (`c/product.c`), over matrices or views of windows, and exact integer
slices (`c/slices.c`).

The FMA chain: out[b, m, n] is acc after acc = fmaf(a[b, m, k], b[b, k, n], acc) for k = 0 .. K-1, from acc = +0.

Exact slices: defined in docs/numerics.md, and in `portable.products.sliced_product`.

Relies on `library` being available.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from easyscale.numerics.kernels import weights
from easyscale.numerics.kernels.native.library import library
from easyscale.numerics.kernels.native.rows import tree_sum

_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_long


@functools.cache
def _product() -> Callable[..., int]:
    function = library().d2_block_product
    function.argtypes = [_P, _I, _L, _L, _L, _P, _I, _L, _L, _L, _P, _L, _L, _L, _L, _L, _I]
    function.restype = ctypes.c_int
    return function


@functools.cache
def _known_product() -> Callable[..., int]:
    function = library().d2_known_product
    function.argtypes = [_P, _P, _P, _P, _P, _I]
    function.restype = ctypes.c_int
    return function


@functools.cache
def _view_product() -> Callable[..., int]:
    function = library().d2_view_product
    function.argtypes = [_P, _I, _L, _L, _L, _P, _I, _L, _P, _I, _I, _P, _L, _L, _L, _L, _L, _L, _I]
    function.restype = ctypes.c_int
    return function


@functools.cache
def _sliced_product() -> Callable[..., int]:
    function = library().d2_sliced_product
    function.argtypes = [_P, _I, _L, _L, _P, _P, _P, _I, _L, _L, _P, _P, _P, _L, _L, _L, _I, _I]
    function.restype = ctypes.c_int
    return function


@functools.cache
def _cut_bytes() -> Callable[..., int]:
    function = library().d2_cut_bytes
    function.argtypes = [_I, _L, _L, _I]
    function.restype = ctypes.c_long
    return function


@functools.cache
def _cut() -> Callable[..., int]:
    function = library().d2_cut
    function.argtypes = [_I, _P, _I, _L, _L, _L, _L, _I, _P, _I]
    function.restype = ctypes.c_int
    return function


def product(a: Tensor, b: Tensor, block: int = 0) -> Tensor:
    """fp32 [B, M, N] from [B, M, K] and [B, K, N] of fp32, bf16 or fp16, any strides: the FMA chain.

    With a `block`: one chain for each so many steps of k, added up in ascending order (`primitives.product`).
    """
    batch, rows, inner = a.shape
    columns = b.shape[2]
    out = torch.empty((batch, rows, columns), dtype=torch.float32)
    failed = _product()(
        a.data_ptr(), _CODES[a.dtype], *a.stride(), b.data_ptr(), _CODES[b.dtype], *b.stride(),
        out.data_ptr(), batch, rows, columns, inner, block, torch.get_num_threads(),
    )  # fmt: skip
    if failed:
        raise MemoryError("no memory for the blocks of a D2 matrix product")
    return out


class KnownProduct:
    """`product` of matrices of these sizes, strides and dtype, and fp32 [N] added to it: most of a small product's time
    is what has to be looked at before it, and here that was done."""

    __slots__ = ("_keeps", "_of", "_run", "size")

    def __init__(
        self, shape: tuple[int, int, int, int], size: tuple[int, ...], stride_a: Sequence[int],
        stride_b: Sequence[int], dtype: torch.dtype, block: int,
    ) -> None:  # fmt: skip
        """`shape` is (batch, M, N, K); `size` is the shape of the result, of two or three dimensions."""
        self.size = size
        self._keeps = (_L * 13)(_CODES[dtype], *stride_a, _CODES[dtype], *stride_b, *shape, block)
        self._of, self._run = ctypes.addressof(self._keeps), _known_product()

    def __call__(self, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        out = torch.empty(*self.size, dtype=torch.float32)  # faster than with a tuple
        added = None if bias is None else bias.data_ptr()
        if self._run(self._of, a.data_ptr(), b.data_ptr(), added, out.data_ptr(), torch.get_num_threads()):
            raise MemoryError("no memory for the blocks of a D2 matrix product")
        return out


def view_product(a: Tensor, seen: Tensor, inner: int, block: int, span: int) -> Tensor:
    """fp32 [G, M, N] from [G, M, K] and a view [G, *k dimensions, *n dimensions] with `inner` of the former, read where
    it lies: the matrix of columns of a convolution, many times its input, is never written. Bits as of the chains."""
    groups, rows, depth = a.shape
    columns = seen.shape[1 + inner :].numel()
    if not groups * rows * columns * depth:
        return torch.zeros((groups, rows, columns), dtype=torch.float32)
    spans = -(-depth // span)
    out = torch.empty((groups, spans, rows, columns), dtype=torch.float32)
    walk = (*seen.shape[1:], *seen.stride()[1:])
    failed = _view_product()(
        a.data_ptr(), _CODES[a.dtype], *a.stride(), seen.data_ptr(), _CODES[seen.dtype], seen.stride(0),
        (_L * len(walk))(*walk), inner, seen.dim() - 1 - inner, out.data_ptr(), groups, rows, columns, depth,
        block, span, torch.get_num_threads(),
    )  # fmt: skip
    if failed:
        raise MemoryError("no memory for the blocks of a D2 convolution")
    return out[:, 0] if spans == 1 else tree_sum(out, (1,))[:, 0].to(torch.float32)


def sliced_product(
    a: Tensor, b: Tensor, slices: int, most_a: Tensor | None = None, most_b: Tensor | None = None
) -> Tensor:
    """fp32 [M, N] from [M, K] and [K, N] of fp32, bf16 or fp16, any strides: exact integer products of slices.

    A weight is cut once for all ESTs of a global step, unless it is given what it is scaled by."""
    assert 1 <= slices <= 4, f"1 to 4 slices, not {slices}"
    rows, inner = a.shape
    columns = b.shape[1]
    out = torch.empty((rows, columns), dtype=torch.float32)
    most = [None if x is None else x.contiguous() for x in (most_a, most_b)]
    place_a, place_b = (None if x is None else x.data_ptr() for x in most)
    cut_a = _kept(a, slices, of_b=False) if most_a is None else None
    cut_b = _kept(b.t(), slices, of_b=True) if most_b is None else None
    failed = _sliced_product()(
        a.data_ptr(), _CODES[a.dtype], *a.stride(), place_a, None if cut_a is None else cut_a.data_ptr(),
        b.data_ptr(), _CODES[b.dtype], *b.stride(), place_b, None if cut_b is None else cut_b.data_ptr(),
        out.data_ptr(), rows, columns, inner, slices, torch.get_num_threads(),
    )  # fmt: skip
    if failed:
        raise MemoryError(_NO_MEMORY)
    return out


_NO_MEMORY = "no memory for the slices of a D2 matrix product"


def _kept(v: Tensor, slices: int, *, of_b: bool) -> Tensor | None:
    """Slices of the rows of a weight, laid out for its side of a product. None: it is no weight."""
    if not weights.keeps(v) or not v.numel():
        return None

    def make() -> Tensor:
        (lines, inner), (line, step) = v.shape, v.stride()
        into = torch.empty(_cut_bytes()(of_b, lines, inner, slices), dtype=torch.uint8)
        assert into.data_ptr() % 64 == 0
        place, threads = into.data_ptr(), torch.get_num_threads()
        if _cut()(of_b, v.data_ptr(), _CODES[v.dtype], line, step, lines, inner, slices, place, threads):
            raise MemoryError(_NO_MEMORY)
        return into

    return weights.cut(v, slices, f"native {'b' if of_b else 'a'}", make)
