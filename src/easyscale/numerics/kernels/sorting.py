"""Sorting and what follows from it: sort, topk, kthvalue, median, mode, unique.

All sorts are stable, also where stability was not asked for: equal elements keep their order, in descending sorts too.
-0 and +0 are equal, NaN is above all numbers. topk and kthvalue take the elements of that sort, so of equal ones the
first (stock: any); topk's result is always sorted. median is the lower of the two in the middle, the first NaN if there
is one; mode the smallest of the most frequent values, at its last place.

On CPUs stock's stable sort is used. On CUDA, where stock sorts by the bits of floats in some sizes and by value in
others, whole numbers in the same order are sorted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.registry import form
from easyscale.numerics.kernels.stock import stock

_sort = stock("sort.stable")
_WHOLE = {
    torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.float16: torch.int16,
}  # fmt: skip


def keys(x: Tensor) -> Tensor:
    """Whole numbers in the order of the elements."""
    if not x.is_floating_point():
        return x.to(torch.uint8) if x.dtype is torch.bool else x
    whole = _WHOLE[x.dtype]
    top = torch.iinfo(whole).max
    bits = x.contiguous().view(whole)
    size = bits & top
    key = torch.where(bits < 0, -size, size)  # -0 and +0 give 0
    return torch.where(torch.isnan(x), top, key)


def sort_by_keys(self: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """The stable sort by whole numbers."""
    key = keys(self)
    order = _sort(~key if descending else key, stable=True, dim=dim, descending=False)[1]
    return (torch.gather(self, dim, order) if self.dim() else self.clone()), order


@form("sort.stable")
def sort(self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    if self.device.type == "cpu":
        return _sort(self, stable=True, dim=dim, descending=descending)  # type: ignore[no-any-return]
    return sort_by_keys(self, dim, descending)


def _checked(self: Tensor, k: int, dim: int) -> int:
    """The dimension counted from the first."""
    dims = max(self.dim(), 1)
    if not -dims <= dim < dims:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-dims}, {dims - 1}], but got {dim})")
    if not 0 <= k <= (self.shape[dim] if self.dim() else 1):
        raise RuntimeError("selected index k out of range")  # stock's words
    return dim % dims


@form("topk")
def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    dim = _checked(self, k, dim)
    values, order = torch.sort(self, dim=dim, descending=largest, stable=True)
    if not self.dim():
        return values, order
    return values.narrow(dim, 0, k).contiguous(), order.narrow(dim, 0, k).contiguous()


# ------------------------------------------------------------------------------------------------- one of the sorted


def _into(values: Tensor, indices: Tensor, found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    for target, result in zip((values, indices), found, strict=True):
        if target.shape != result.shape:
            target.resize_(result.shape)
        target.copy_(result)
    return values, indices


def _picked(ordered: tuple[Tensor, Tensor], place: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    value, index = (torch.gather(x, dim, place) for x in ordered)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


@form("kthvalue.values")
def kthvalue(
    self: Tensor, k: int, dim: int = -1, keepdim: bool = False, *, values: Tensor, indices: Tensor
) -> tuple[Tensor, Tensor]:
    dim = _checked(self, k, dim)
    if k < 1:
        raise RuntimeError("kthvalue(): selected number k out of range for dimension")
    if not self.dim():
        return _into(values, indices, (self, torch.zeros_like(self, dtype=torch.int64)))
    value, index = (x.narrow(dim, k - 1, 1) for x in torch.sort(self, dim=dim, stable=True))
    return _into(values, indices, (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim)))


def median_along(self: Tensor, dim: int, keepdim: bool, skip_nan: bool) -> tuple[Tensor, Tensor]:
    """The element (n - 1) / 2 of the sorted; with skip_nan of those that are numbers, else the first NaN if any."""
    if not self.dim():
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    count = self.shape[dim]
    if not count:
        raise IndexError(f"median(): Expected reduction dim {dim} to have non-zero size.")
    ordered = torch.sort(self, dim=dim, stable=True)
    missing = torch.isnan(self).sum(dim, keepdim=True)
    present = count - missing
    if skip_nan:
        place = torch.where(present > 0, (present - 1).bitwise_right_shift(1), 0)
    else:
        place = torch.where(missing > 0, present, (count - 1) // 2)
    return _picked(ordered, place, dim, keepdim)


def _medians(name: str, skip_nan: bool) -> None:
    @form(f"{name}.dim_values")
    def along(
        self: Tensor, dim: int, keepdim: bool = False, *, values: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        return _into(values, indices, median_along(self, _checked(self, 0, dim), keepdim, skip_nan))

    @form(name)
    def of_all(self: Tensor) -> Tensor:
        if not self.numel():
            return torch.full((), float("nan"), dtype=self.dtype, device=self.device)
        return median_along(self.reshape(-1), 0, False, skip_nan)[0]


_medians("median", False)
_medians("nanmedian", True)


@form("mode")
def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not self.dim():
        return self.clone(), torch.zeros_like(self, dtype=torch.int64)
    dim = _checked(self, 0, dim)
    values, order = (x.movedim(dim, -1).contiguous() for x in torch.sort(self, dim=dim, stable=True))
    count = values.shape[-1]
    numbers = torch.arange(count, device=self.device)
    first = torch.cummax(torch.where(_begins(values), numbers, 0), dim=-1)[0]
    # The longest run so far ends where place - first is largest; argmax takes the first of these, the smallest value.
    last = torch.argmax(numbers - first, dim=-1, keepdim=True)
    value, index = (torch.gather(x, -1, last).movedim(-1, dim) for x in (values, order))
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


# ------------------------------------------------------------------------------------------------- unique


def _begins(values: Tensor) -> Tensor:
    """Where a run of equal elements begins, along the last dimension."""
    begins = torch.ones_like(values, dtype=torch.bool)
    begins[..., 1:] = values[..., 1:] != values[..., :-1]
    return begins


def _runs(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first element of each run, the number of the run of each element, and the lengths."""
    begins = _begins(flat)
    numbers = torch.cumsum(begins, dim=0) - 1
    starts = torch.nonzero(begins).reshape(-1)
    ends = torch.cat([starts[1:], starts.new_full((min(starts.numel(), 1),), flat.numel())])
    return flat[starts], numbers, ends - starts


@form("_unique2")
def unique2(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Always sorted; of equal elements the first is shown; each NaN is one of its own."""
    nothing = torch.empty(0, dtype=torch.int64, device=self.device)
    flat, order = torch.sort(self.reshape(-1), stable=True)
    values, numbers, counts = _runs(flat)
    inverse = torch.empty_like(numbers).index_copy_(0, order, numbers).view(self.shape) if return_inverse else nothing
    return values, inverse, counts if return_counts else nothing


@form("_unique")
def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    return unique2(self, sorted, return_inverse)[:2]


@form("unique_consecutive")
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = torch.empty(0, dtype=torch.int64, device=self.device)
    if dim is not None and self.dim() > 1:
        return _consecutive_slices(self, dim, return_inverse, return_counts)
    values, numbers, counts = _runs(self.reshape(-1))
    return values, numbers.view(self.shape) if return_inverse else nothing, counts if return_counts else nothing


def _consecutive_slices(self: Tensor, dim: int, inverse: bool, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    nothing = torch.empty(0, dtype=torch.int64, device=self.device)
    rows = self.movedim(dim, 0).reshape(self.shape[dim], -1)
    begins = torch.ones(rows.shape[0], dtype=torch.bool, device=self.device)
    begins[1:] = (rows[1:] != rows[:-1]).any(1)
    _, numbers, sizes = _runs(torch.cumsum(begins, dim=0))
    places = torch.nonzero(begins).reshape(-1)
    return self.index_select(dim, places), numbers if inverse else nothing, sizes if counts else nothing
