"""Sums, means, variances, norms, products and running sums as D2 forms.

All of them are computed in fp64 and rounded once to the result's dtype (to bf16 and fp16 by way of fp32). A sum is the
halving tree of `primitives.tree_sum`. With S(...) for it and n for the number of values:

    mean      S(x) / n
    var       S((x - m) * (x - m)) / max(n - correction, 0), m = S(x) / n in fp64; std its square root
    norm      sqrt(S(x * x)); S(|x|); S(x != 0); largest or smallest |x|; else pow(S(pow(|x|, p)), 1 / p)
    prod      the same tree with products, padded by 1
    logsumexp log(S(exp(x - m))) + m, m the largest x (0 where that is infinite)
    cumsum    y = x, then for d = 1, 2, 4, ...: y[i] = y[i] + y[i - d] for all i >= d at once; cumprod likewise,
              and logcumsumexp with log(exp(a) + exp(b)) = h + log1p(exp(l - h)), h the larger one and l the smaller

Whole numbers are summed in int64, which has no rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels import gpu, native, portable, primitives
from easyscale.numerics.kernels.native import fused as native_fused
from easyscale.numerics.kernels.primitives import evaluate, tree_sum
from easyscale.numerics.kernels.registry import form

Dims = Sequence[int] | int | None


# ---------------------------------------------------------------------------------------------- shared with other forms


def fused(device: torch.device, length: int = 0) -> Any:
    """The module of kernels that do whole rows of this length at once on this device, or None: then torch operators
    compose them."""
    module = primitives.implementation(device)
    found = native_fused if module is native else getattr(module, "fused", None)
    return None if length > getattr(found, "LONGEST", length) else found


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """fp64 (or fp32 that is already rounded) to the result's dtype; to the short ones by way of fp32."""
    if dtype is torch.float64 or dtype is torch.float32 or dtype is x.dtype:
        return x.to(dtype)
    return x.to(torch.float32).to(dtype)


def number(value: float, like: Tensor) -> Tensor:
    """A number as an fp64 tensor on the device: CUDA divides by a plain number by way of its reciprocal."""
    return torch.full((), value, dtype=torch.float64, device=like.device)


def root_of(x: Tensor) -> Tensor:
    """The square root, rounded correctly: stock's own on CPUs is not (MKL; one in a hundred is off in fp64)."""
    return evaluate("sqrt", [x], dtype=torch.float64)


def summed(
    x: Tensor, dims: Sequence[int], dtype: torch.dtype = torch.float64, divisor: float | None = None,
    square: bool = False, root: bool = False,
) -> Tensor:  # fmt: skip
    """The tree over `dims` (kept) of x or its squares in fp64; divided; the square root of it; rounded."""
    module = primitives.implementation(x.device)
    if module is gpu:
        return gpu.tree_sum(x, dims, dtype, divisor, square, root)
    if not square:
        total = tree_sum(x, dims)
    elif module is native:
        total = native.rows.tree_sum(x, dims, squares=True)
    else:
        wide = x.double()
        total = tree_sum(wide * wide, dims)
    total = total if divisor is None else total / number(divisor, total)
    return rounded(root_of(total) if root else total, dtype)


def refuse_complex(x: Tensor, name: str) -> None:
    if x.is_complex():
        raise UnsupportedError(
            f"{name} of complex numbers has no D2 form",
            "at level D2 every operator is defined by us, operation by operation, and complex ones are not",
            "compute with real and imaginary parts, or run at level D1",
        )


def all_dims(x: Tensor, dim: Dims) -> list[int]:
    """The reduced dimensions; none named means all of them."""
    if dim is None:
        return list(range(x.dim()))
    dims = [dim] if isinstance(dim, int) else list(dim)
    for one in dims:
        if not -max(x.dim(), 1) <= one < max(x.dim(), 1):
            raise IndexError(f"dimension {one} is out of range for a tensor of {x.dim()} dimensions")
    return dims if dims and x.dim() else list(range(x.dim()))


def count(x: Tensor, dims: Sequence[int]) -> int:
    return math.prod(x.shape[dim] for dim in {dim % x.dim() for dim in dims}) if x.dim() else 1


def shaped(x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Without the reduced dimensions, which have size 1, unless they are to be kept."""
    if keepdim or not x.dim():
        return x
    reduced = {dim % x.dim() for dim in dims}
    if len(reduced) == x.dim():
        return x.reshape(())
    return x.reshape([size for dim, size in enumerate(x.shape) if dim not in reduced])


# ---------------------------------------------------------------------------------------------- sums and means


def _as(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The input in the dtype it is to be summed in; widening is left out, the tree works in fp64 anyway."""
    if dtype is None or dtype is x.dtype:
        return x
    if x.is_floating_point() and dtype.is_floating_point and dtype.itemsize > x.element_size():
        return x
    return x.to(dtype)


def whole_sum(x: Tensor, dims: Sequence[int]) -> Tensor:
    """int64 sums of whole numbers over `dims` (kept)."""
    if primitives.implementation(x.device) is native:
        return native.rows.whole_sum(x, dims)
    return portable.rows.halved(x, dims, torch.int64, 0)


@form("sum.dim_IntList")
def sum_dims(self: Tensor, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    refuse_complex(self, "sum")
    dims = all_dims(self, dim)
    x = _as(self, dtype)
    if x.is_floating_point():
        if primitives.implementation(x.device) is gpu:
            return gpu.tree_sum(x, dims, dtype or x.dtype, keep=keepdim)
        return shaped(summed(x, dims, dtype or x.dtype), dims, keepdim)
    return shaped(whole_sum(x, dims).to(dtype or torch.int64), dims, keepdim)


@form("sum")
def sum_all(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return sum_dims(self, None, dtype=dtype)


@form("nansum")
def nansum(self: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if self.is_floating_point():
        self = torch.where(torch.isnan(self), torch.zeros((), dtype=self.dtype, device=self.device), self)
    return sum_dims(self, dim, keepdim, dtype=dtype)


@form("trace")
def trace(self: Tensor) -> Tensor:
    return sum_dims(torch.diagonal(self), None)


@form("mean.dim")
def mean_dims(self: Tensor, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    refuse_complex(self, "mean")
    x = _as(self, dtype)
    if not x.is_floating_point():
        raise RuntimeError(f"mean(): the dtype must be a floating point one, not {x.dtype}; give dtype=")
    dims = all_dims(x, dim)
    return shaped(summed(x, dims, dtype or x.dtype, float(count(x, dims))), dims, keepdim)


@form("mean")
def mean_all(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return mean_dims(self, None, dtype=dtype)


# ---------------------------------------------------------------------------------------------- variances


def moments(x: Tensor, dims: Sequence[int], correction: float) -> tuple[Tensor, Tensor]:
    """fp64 mean and variance over `dims`, which are kept."""
    size = count(x, dims)
    mean = summed(x, dims, divisor=float(size))
    return mean, summed(x.double() - mean, dims, divisor=max(size - correction, 0.0), square=True)


def _moments(x: Tensor, dim: Dims, correction: float | None, keepdim: bool, root: bool) -> tuple[Tensor, Tensor]:
    refuse_complex(x, "var")
    if not x.is_floating_point():
        raise RuntimeError(f"var and std need a floating point dtype, not {x.dtype}")
    dims = all_dims(x, dim)
    mean, variance = moments(x, dims, 1.0 if correction is None else correction)
    spread = root_of(variance) if root else variance
    return shaped(rounded(spread, x.dtype), dims, keepdim), shaped(rounded(mean, x.dtype), dims, keepdim)


@form("var.correction")
def var(self: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _moments(self, dim, correction, keepdim, root=False)[0]


@form("std.correction")
def std(self: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _moments(self, dim, correction, keepdim, root=True)[0]


@form("var_mean.correction")
def var_mean(
    self: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _moments(self, dim, correction, keepdim, root=False)


@form("std_mean.correction")
def std_mean(
    self: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _moments(self, dim, correction, keepdim, root=True)


# ---------------------------------------------------------------------------------------------- norms of vectors


@form("linalg_vector_norm")
def vector_norm(
    self: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    refuse_complex(self, "the norm")
    x = _as(self, dtype)
    if not x.is_floating_point():
        raise RuntimeError(f"linalg.vector_norm: expected a floating point tensor, not {x.dtype}")
    dims = all_dims(x, dim)
    if ord == 2:
        return shaped(summed(x, dims, dtype or x.dtype, square=True, root=True), dims, keepdim)
    if ord == 1:
        norm = tree_sum(torch.abs(x), dims)
    elif ord == 0:
        norm = tree_sum((x != 0).float(), dims)
    elif math.isinf(ord):
        norm = (torch.amax if ord > 0 else torch.amin)(torch.abs(x), dims, True)
    else:
        powers = evaluate("pow", [torch.abs(x), number(ord, x)], dtype=torch.float64)
        norm = evaluate("pow", [tree_sum(powers, dims), number(1.0 / ord, x)], dtype=torch.float64)
    return shaped(rounded(norm, dtype or x.dtype), dims, keepdim)


@form("norm.ScalarOpt_dim")
def norm_dim(self: Tensor, p: float | None, dim: Dims, keepdim: bool = False) -> Tensor:
    return vector_norm(self, 2 if p is None else p, dim, keepdim)


@form("norm.ScalarOpt_dim_dtype")
def norm_dim_dtype(self: Tensor, p: float | None, dim: Dims, keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@form("norm.ScalarOpt_dtype")
def norm_dtype(self: Tensor, p: float | None, *, dtype: torch.dtype) -> Tensor:
    return vector_norm(self, 2 if p is None else p, dtype=dtype)


@form("norm.Scalar")
def norm_scalar(self: Tensor, p: float = 2) -> Tensor:
    return vector_norm(self, p)


@form("_foreach_norm.Scalar")
def foreach_norm(self: list[Tensor], ord: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    module = getattr(primitives.implementation(self[0].device), "lists", None) if self else None
    if ord == 2 and module is not None and _alike(self, module.DTYPES) and dtype in (None, self[0].dtype):
        return module.norms(self)  # type: ignore[no-any-return]
    return [vector_norm(x, ord, dtype=dtype) for x in self]


def _alike(tensors: list[Tensor], dtypes: Any) -> bool:
    """Contiguous tensors of one of these dtypes on one device."""
    first = tensors[0]
    dtype, device = first.dtype, first.get_device()
    return dtype in dtypes and all(x.is_contiguous() and x.dtype is dtype and x.get_device() == device for x in tensors)


# ---------------------------------------------------------------------------------------------- products, log-sum-exp


@form("prod.dim_int")
def prod_dim(self: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    return _prod(self, [dim], keepdim, dtype)


@form("prod")
def prod_all(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _prod(self, all_dims(self, None), False, dtype)


def _prod(self: Tensor, dims: list[int], keepdim: bool, dtype: torch.dtype | None) -> Tensor:
    refuse_complex(self, "prod")
    x = _as(self, dtype)
    if x.is_floating_point():
        product = portable.rows.halved(x, dims, torch.float64, 1)
        return shaped(rounded(product, dtype or x.dtype), dims, keepdim)
    return shaped(portable.rows.halved(x, dims, torch.int64, 1).to(dtype or torch.int64), dims, keepdim)


@form("logsumexp")
def logsumexp(self: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    refuse_complex(self, "logsumexp")
    x = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    dims = all_dims(x, dim)
    if not x.numel():
        total = tree_sum(x, dims)
        return shaped(rounded(evaluate("log", [total], dtype=torch.float64), x.dtype), dims, keepdim)
    top = torch.amax(x, dims, True).double()
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    powers = evaluate("exp", [x.double() - top], dtype=torch.float64)
    result = evaluate("log", [tree_sum(powers, dims)], dtype=torch.float64) + top
    return shaped(rounded(result, x.dtype), dims, keepdim)


# ---------------------------------------------------------------------------------------------- running sums


def _scan(x: Tensor, dim: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """y[i] = combine(y[i], y[i - d]) for all i >= d at once, for d = 1, 2, 4, ..."""
    if not x.dim():
        return x
    length, distance = x.shape[dim], 1
    while distance < length:
        later, earlier = x.narrow(dim, distance, length - distance), x.narrow(dim, 0, length - distance)
        x = torch.cat((x.narrow(dim, 0, distance), combine(later, earlier)), dim)
        distance *= 2
    return x


def _running(self: Tensor, dim: int, dtype: torch.dtype | None, name: str, combine: Any) -> Tensor:
    refuse_complex(self, name)
    x = _as(self, dtype)
    if x.is_floating_point():
        return rounded(_scan(x.double(), dim, combine), dtype or x.dtype).contiguous()
    result = _scan(x.long(), dim, combine).to(dtype or torch.int64)
    return result.clone() if result is self else result


@form("cumsum")
def cumsum(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _running(self, dim, dtype, "cumsum", torch.add)


@form("cumprod")
def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _running(self, dim, dtype, "cumprod", torch.mul)


@form("logcumsumexp")
def logcumsumexp(self: Tensor, dim: int) -> Tensor:
    return _running(self, dim, None, "logcumsumexp", _log_of_sum)


def _log_of_sum(a: Tensor, b: Tensor) -> Tensor:
    swap = a >= b
    high, low = torch.where(swap, a, b), torch.where(swap, b, a)
    gain = evaluate("log1p", [evaluate("exp", [low - high], dtype=torch.float64)], dtype=torch.float64)
    return torch.where(torch.isinf(high) & ~torch.isnan(low), high, high + gain)
