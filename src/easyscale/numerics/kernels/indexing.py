"""Operators that add into places chosen by an index: the order of the additions is that of `ordered`.

Stock kernels add so on CPUs and stay there (`safe`); on CUDA, where stock adds by atomic operations or in an order of
its own, these are the forms. Where stock's CPU kernels are of two minds for bf16 and fp16 (index_add and scatter), the
sum is in fp32 from beginning to end and rounded once. Embedding bags are in `bags`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from easyscale.numerics.kernels import (
    bags,  # noqa: F401  fills the table
    gpu,
    primitives,
)
from easyscale.numerics.kernels.gpu import windows as gpu_windows
from easyscale.numerics.kernels.ordered import Operation, add_along, add_elements, add_rows, larger, smaller
from easyscale.numerics.kernels.registry import form
from easyscale.numerics.kernels.stock import stock

Number = int | float | bool
_HALVES = (torch.bfloat16, torch.float16)

# ------------------------------------------------------------------------------------------- index_add

_index_add = stock("index_add")


@form("index_add")
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    """alpha * source is rounded before it is added; stock fuses the two on some CPUs."""
    scaled = source if alpha == 1 else source * alpha
    if self.device.type != "cpu":
        return index_add_in_order(self, dim, index, scaled)
    if self.dtype in _HALVES:
        return index_add(self.float(), dim, index, scaled.float()).to(self.dtype)
    return _index_add(self, dim, index, scaled)  # type: ignore[no-any-return]


def index_add_in_order(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    result = self.clone(memory_format=torch.contiguous_format)
    into, rows = (result, source) if self.dim() else (result.view(1), source.reshape(-1))
    add_rows(into, index, rows if rows.dim() else rows.view(1), dim=dim % into.dim(), once=True)
    return result


# ------------------------------------------------------------------------------------------- embedding


_embedding_backward = stock("embedding_dense_backward")


@form("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """With scale_grad_by_freq each gradient is divided by the count first; stock fuses that on some CPUs."""
    if scale_grad_by_freq:
        counts = torch.bincount(indices.reshape(-1), minlength=num_weights)[indices]
        grad_output = grad_output / counts.to(grad_output.dtype)[..., None]
    if grad_output.device.type == "cpu":
        return _embedding_backward(  # type: ignore[no-any-return]
            grad_output, indices, num_weights, padding_idx, False
        )
    return embedding_backward_in_order(grad_output, indices, num_weights, padding_idx)


def embedding_backward_in_order(grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int) -> Tensor:
    rows = grad_output.reshape(indices.numel(), grad_output.shape[-1])
    result = torch.zeros((num_weights, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    return add_rows(result, indices, rows, left_out=padding_idx if padding_idx >= 0 else None)


# ------------------------------------------------------------------------------------------- index_put, put


def _place_of(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """The places, counted row-major, of self[indices]."""
    numbers = torch.arange(self.numel(), device=self.device).view(self.shape)
    return torch.ops.aten.index.Tensor(numbers, list(indices))  # type: ignore[no-any-return]


_index_put = stock("_index_put_impl_")


@form("_index_put_impl_", devices=("cuda",))
def index_put_impl_(
    self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    if not accumulate:
        return _index_put(self, indices, values, accumulate, unsafe)  # type: ignore[no-any-return]
    if self.is_contiguous() and values.untyped_storage().data_ptr() != self.untyped_storage().data_ptr():
        return _put_in_order(self, indices, values)
    return self.copy_(index_put_in_order(self, indices, values))


def index_put_in_order(self: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Tensor:
    """self with values added at the indices, in the order of the values' positions."""
    return _put_in_order(self.clone(memory_format=torch.contiguous_format), indices, values)


def _put_in_order(self: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Tensor:
    values = values.to(self.device)
    first = indices[0] if indices else None
    whole = first is not None and first.dtype in (torch.int64, torch.int32)
    if whole and first is not None and all(index is None for index in indices[1:]):
        rows = values.expand(*first.shape, *self.shape[1:]).reshape(first.numel(), *self.shape[1:])
        return add_rows(self, first.to(self.device), rows, from_end=True)
    places = _place_of(self, indices)
    return add_elements(self, places, values.expand(places.shape))


_put = stock("put_")


@form("put_", devices=("cuda",))
def put_(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    if not accumulate:
        return _put(self, index, source, accumulate)  # type: ignore[no-any-return]
    result = self.clone(memory_format=torch.contiguous_format)
    return self.copy_(add_elements(result, index, source, from_end=True))


# ------------------------------------------------------------------------------------------- scatter


def scatter_in_order(self: Tensor, dim: int, index: Tensor, source: Tensor, operation: Operation) -> Tensor:
    """bf16 and fp16 are added up in fp32."""
    result = self.clone(memory_format=torch.contiguous_format)
    if not index.numel():
        return result
    into, index, source = (x if x.dim() else x.view(1) for x in (result, index, source))
    used = source[tuple(slice(size) for size in index.shape)]
    others = [axis for axis in range(into.dim()) if axis != dim % into.dim()]
    if used.shape != index.shape or any(index.shape[axis] > into.shape[axis] for axis in others):
        raise RuntimeError(
            f"an index of shape {tuple(index.shape)} for {tuple(self.shape)} and a source of {tuple(source.shape)}"
        )
    add_along(into, dim % into.dim(), index, used, operation, once=True)
    return result


_OPERATIONS: dict[str, Operation] = {
    "sum": torch.add, "mean": torch.add, "prod": torch.mul, "amax": larger, "amin": smaller,
    "add": torch.add, "multiply": torch.mul,
}  # fmt: skip
_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}

_scatter_add, _scatter_by, _scatter_reduce = stock("scatter_add"), stock("scatter.reduce"), stock("scatter_reduce.two")


@form("scatter_add")
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    if self.device.type != "cpu":
        return scatter_in_order(self, dim, index, src, torch.add)
    if self.dtype in _HALVES:
        return scatter_add(self.float(), dim, index, src.float()).to(self.dtype)
    return _scatter_add(self, dim, index, src)  # type: ignore[no-any-return]


@form("scatter.reduce")
def scatter_by(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    if self.device.type != "cpu":
        return scatter_in_order(self, dim, index, src, _OPERATIONS[reduce])
    if self.dtype in _HALVES:
        return scatter_by(self.float(), dim, index, src.float(), reduce=reduce).to(self.dtype)
    return _scatter_by(self, dim, index, src, reduce=reduce)  # type: ignore[no-any-return]


@form("scatter.value_reduce")
def scatter_number_by(self: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str) -> Tensor:
    return scatter_by(self, dim, index, torch.full_like(index, value, dtype=self.dtype), reduce=reduce)


@form("scatter_reduce.two")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if self.dtype in _HALVES:
        wide = scatter_reduce(self.float(), dim, index, src.float(), reduce, include_self=include_self)
        return wide.to(self.dtype)
    if self.device.type == "cpu":
        return _scatter_reduce(self, dim, index, src, reduce, include_self=include_self)  # type: ignore[no-any-return]
    return scatter_reduce_in_order(self, dim, index, src, reduce, include_self=include_self)


def scatter_reduce_in_order(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    start = self
    if not include_self:
        neutral = _NEUTRAL[reduce]
        if math.isinf(neutral) and not self.is_floating_point():
            limits = torch.iinfo(self.dtype)
            neutral = limits.min if neutral < 0 else limits.max
        start = torch.scatter(self, dim, index, neutral)
    result = scatter_in_order(start, dim, index, src, _OPERATIONS[reduce])
    if reduce == "mean":
        counts = torch.ones_like(self) if include_self else torch.zeros_like(self)
        counts = scatter_in_order(counts, dim, index, torch.ones_like(src), torch.add).clamp(min=1)
        return result / counts if self.is_floating_point() else torch.div(result, counts, rounding_mode="floor")
    return result


_bincount = stock("bincount")


@form("bincount", devices=("cuda",))
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if weights is None:
        return _bincount(self, weights, minlength)  # type: ignore[no-any-return]
    length = max(int(self.max()) + 1 if self.numel() else 0, minlength)
    dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    return add_elements(torch.zeros(length, dtype=dtype, device=self.device), self, weights.to(dtype))


# ------------------------------------------------------------------------------------------- overlapping windows


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


@form("col2im", devices=("cuda",))
def col2im(
    self: Tensor, output_size: list[int], kernel_size: list[int], dilation: list[int], padding: list[int],
    stride: list[int],
) -> Tensor:  # fmt: skip
    """Windows are added position by position of the kernel, row-major."""
    (height, width), (kh, kw) = _pair(output_size), _pair(kernel_size)
    (dh, dw), (ph, pw), (sh, sw) = _pair(dilation), _pair(padding), _pair(stride)
    columns = self if self.dim() == 3 else self[None]
    rows = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    across = (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    pieces = columns.reshape(columns.shape[0], -1, kh * kw, rows, across)
    result = pieces.new_zeros(columns.shape[0], pieces.shape[1], height + 2 * ph, width + 2 * pw)
    for place in range(kh * kw):
        top, left = place // kw * dh, place % kw * dw
        down, right = top + sh * (rows - 1) + 1, left + sw * (across - 1) + 1
        result[:, :, top:down:sh, left:right:sw] += pieces[:, :, place]
    result = result[:, :, ph : ph + height, pw : pw + width].contiguous()
    return result if self.dim() == 3 else result[0]


@form("unfold_backward", devices=("cuda",))
def unfold_backward(grad_in: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """Windows are added in their order, so the last element of each comes first."""
    result = grad_in.new_zeros(input_sizes)
    if not input_sizes:
        return result + grad_in.sum() if grad_in.numel() else result
    along = result.movedim(dim, 0)
    windows = grad_in.movedim(dim, 0)
    for place in range(size - 1, -1, -1):
        along[place : place + (windows.shape[0] - 1) * step + 1 : step] += windows[..., place]
    return result


# ------------------------------------------------------------------------------------------- padding


@functools.lru_cache(maxsize=1024)
def _sources(size: int, before: int, after: int, reflect: bool) -> tuple[int, ...]:
    """Which element of a dimension each element of the padded one was copied from."""
    places = range(-before, size + after)
    if reflect:
        return tuple(2 * (size - 1) - abs(place) if abs(place) >= size else abs(place) for place in places)
    return tuple(min(max(place, 0), size - 1) for place in places)


@functools.lru_cache(maxsize=1024)
def _copies(sources: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    """The other way round: the elements of the padded dimension that are copies of each."""
    found: list[list[int]] = [[] for _ in range(size)]
    for place, source in enumerate(sources):
        found[source].append(place)
    return tuple(map(tuple, found))


def pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int], *, reflect: bool) -> Tensor:
    """Gradients are added in row-major order of the padded elements."""
    dims = len(padding) // 2
    inner = self.shape[-dims:]
    pairs = [padding[2 * axis : 2 * axis + 2] for axis in reversed(range(dims))]
    sources = [_sources(size, *pair, reflect) for size, pair in zip(inner, pairs, strict=True)]
    if primitives.implementation(self.device) is gpu and grad_output.is_floating_point():
        rows = [_copies(each, size) for each, size in zip(sources, inner, strict=True)]
        return gpu_windows.window_sum(
            grad_output, rows, chosen=None, each=None, whole=None, layout=torch.contiguous_format, stepwise=True
        )
    places: Tensor | int = 0
    for axis, each in enumerate(sources):
        source = torch.tensor(each, device=self.device).view(-1, *[1] * (dims - 1 - axis))
        places = places * inner[axis] + source
    assert isinstance(places, Tensor)
    columns = grad_output.reshape(-1, places.numel())
    result = torch.zeros((columns.shape[0], math.prod(inner)), dtype=grad_output.dtype, device=self.device)
    return add_rows(result, places, columns, dim=1).view(self.shape)


def _padding(name: str, reflect: bool) -> None:
    @form(name, devices=("cuda",))
    def backward(grad_output: Tensor, self: Tensor, padding: list[int]) -> Tensor:
        return pad_backward(grad_output, self, padding, reflect=reflect)


for _dims in (1, 2, 3):
    _padding(f"reflection_pad{_dims}d_backward", True)
    _padding(f"replication_pad{_dims}d_backward", False)
