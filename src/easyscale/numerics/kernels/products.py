"""D2 forms of matrix and vector products: FMA chains in blocks, or exact integer slices.

`multiply` is what all of them are made of. Its form depends on shape and dtype alone:

    chain   k is cut into blocks of BLOCK; each block is one FMA chain from +0; the blocks of one SPAN are added up one
            after the other in fp32; where there are several spans, their sums go through the fp64 tree and are rounded
            once. Blocks bound the error: one chain over 4,096 terms has 4 to 8 times that of vendors' kernels.
    slices  products of int8 slices, exact (`primitives.sliced_product`)

Products of bf16 and fp16 are those of the same values in fp32, rounded once at the end, after a bias has been added.
`alpha` and `beta` are applied in fp64: one rounding of alpha * product + beta * bias.
Relies on `primitives`. fp64 and complex numbers are refused: devices have no common fast form of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from math import prod
from types import ModuleType

import torch
from torch import Tensor

from easyscale.numerics.kernels import gpu, native, portable, primitives
from easyscale.numerics.kernels.refusal import refuse
from easyscale.numerics.kernels.registry import form

BLOCK = 256  # with 512 the error of sums of positive terms is more than twice that of MKL (benchmarks/d2_accuracy.py)
SPAN = 16 * BLOCK  # long sums (gradients of convolution weights) are short of outputs: spans run side by side

# By dtype: what keeps the error within twice the vendor's, with outliers, heavy tails and gradients of very different
# size (benchmarks/d2_accuracy.py). Results in bf16 and fp16 are rounded far more coarsely than three slices are.
SLICES, SLICES_HALF = 4, 3
# On an H200 slices win from about here on; on a CPU they are up to three times slower than chains.
SLICED_FROM = 3 * 2**29
SLICED_SIDE = 128  # of M and N
SLICED_STEPS = 256
SLICED_MOST = 2**24  # steps of k: sums of slices in 63 bits cannot overflow

Shape = tuple[int, ...]

_ACCUMULATED_IN_FP32 = (torch.float32, torch.bfloat16, torch.float16)


def slices_of(m: int, n: int, k: int, dtype: torch.dtype) -> int:
    """How many slices a product of this shape is computed by; 0: by FMA chains."""
    if m * n * k < SLICED_FROM or min(m, n) < SLICED_SIDE or not SLICED_STEPS <= k < SLICED_MOST:
        return 0
    return SLICES if dtype is torch.float32 else SLICES_HALF


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """fp32 [B, M, N] from [B, M, K] and [B, K, N] of fp32, bf16 or fp16, by the form of their shape."""
    count, m, k = a.shape
    n = b.shape[2]
    slices = slices_of(m, n, k, a.dtype)
    if not slices:
        return chains(a, b)
    if count == 1:
        return primitives.sliced_product(a[0], b[0], slices)[None]
    return torch.stack([primitives.sliced_product(x, y, slices) for x, y in zip(a.unbind(), b.unbind(), strict=True)])


def chains(a: Tensor, b: Tensor) -> Tensor:
    """fp32 [B, M, N] from [B, M, K] and [B, K, N]: FMA chains over blocks of k, added up."""
    count, m, k = a.shape
    if k <= SPAN:
        return _span(a, b)
    full = k // SPAN
    body = _span(
        a[:, :, : full * SPAN].unflatten(2, (full, SPAN)).movedim(2, 0).flatten(0, 1),
        b[:, : full * SPAN].unflatten(1, (full, SPAN)).movedim(1, 0).flatten(0, 1),
    ).view(full, count, m, b.shape[2])
    if k > full * SPAN:
        body = torch.cat([body, _span(a[:, :, full * SPAN :], b[:, full * SPAN :])[None]])
    return primitives.tree_sum(body, (0,))[0].to(torch.float32)


def reads_views(device: torch.device) -> bool:
    """Whether products here read a view of windows where it lies."""
    return hasattr(primitives.implementation(device), "view_product")


def view_chains(a: Tensor, seen: Tensor, inner: int) -> Tensor:
    """`chains` of [G, M, K] and a view [G, *k dimensions, *n dimensions], with `inner` of the former, read as a matrix
    [K, N] for each group. C and Triton read it where it lies; torch operators need a copy."""
    if reads_views(a.device):
        found: Tensor = primitives.implementation(a.device).view_product(a, seen, inner, BLOCK, SPAN)
        return found
    return chains(a, seen.reshape(a.shape[0], a.shape[2], -1))


def _span(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[2] and a.shape[0] and a.shape[1] and b.shape[2]:
        return primitives.product(a, b, BLOCK)
    return torch.zeros((a.shape[0], a.shape[1], b.shape[2]), dtype=torch.float32, device=a.device)


# ------------------------------------------------------------------------------------------------ plans

Plan = Callable[[Tensor, Tensor, Tensor | None], Tensor]
BatchPlan = Callable[[Tensor, Tensor], Tensor]


def _planned(a: Tensor, b: Tensor, bias: Tensor | None) -> Plan | None:
    """What multiplies matrices of these shapes, strides and dtypes (and adds the bias), by C or on a GPU: found once,
    because to check, to look at and to arrange them anew takes longer than many products. None: it has to be done
    anew."""
    by = primitives.implementation(a.device)
    if by is portable:
        return None
    given = (by, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, a.device)
    return _plan(*given) if bias is None else _plan(*given, bias.shape, bias.stride(), bias.dtype)


@functools.lru_cache(maxsize=4096)
def _plan(
    by: ModuleType, shape_a: Shape, stride_a: Shape, dtype: torch.dtype, shape_b: Shape, stride_b: Shape,
    dtype_b: torch.dtype, device: torch.device, bias: Shape | None = None, bias_stride: Shape = (),
    bias_dtype: torch.dtype | None = None,
) -> Plan | None:  # fmt: skip
    if len(shape_a) != 2 or len(shape_b) != 2 or shape_a[1] != shape_b[0] or not math.prod(shape_a + shape_b):
        return None
    if dtype not in _ACCUMULATED_IN_FP32 or dtype_b is not dtype or bias_dtype not in (None, dtype):
        return None
    m, k, n = *shape_a, shape_b[1]
    if bias is not None and (bias != (n,) or bias_stride != (1,)):
        return None
    short = dtype is not torch.float32
    slices = slices_of(m, n, k, dtype)
    product: Plan
    if by is native:
        if slices or k > SPAN:
            return None
        product = native.KnownProduct((1, m, n, k), (m, n), (0, *stride_a), (0, *stride_b), dtype, BLOCK)
        return _rounded(product, dtype) if short else product
    if not slices:
        many = gpu.products.matrix_chains(m, n, k, stride_a, stride_b, dtype, device, BLOCK, SPAN)

        def chained(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
            product = many(a, b)
            if bias is not None:
                product = product + bias
            return product.to(dtype) if short else product

        return chained
    product = gpu.slices.sliced_plan(
        shape_a, stride_a, shape_b, stride_b, dtype, slices, bias is not None and not short, device
    )
    return _rounded(product, dtype) if short else product


def _rounded(product: Plan, dtype: torch.dtype) -> Plan:
    """With the bias, which is of that dtype too, and rounded."""

    def rounded(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        found = product(a, b, None)
        return (found if bias is None else found + bias).to(dtype)

    return rounded


def _planned_batch(a: Tensor, b: Tensor) -> BatchPlan | None:
    by = primitives.implementation(a.device)
    if by is portable:
        return None
    return _batch_plan(by, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, a.device)


@functools.lru_cache(maxsize=4096)
def _batch_plan(
    by: ModuleType, shape_a: Shape, stride_a: Shape, dtype: torch.dtype, shape_b: Shape, stride_b: Shape,
    dtype_b: torch.dtype, device: torch.device,
) -> BatchPlan | None:  # fmt: skip
    """As `_plan`, for a batch of products by chains of one span."""
    if len(shape_a) != 3 or len(shape_b) != 3 or shape_a[0] != shape_b[0] or shape_a[2] != shape_b[1]:
        return None
    batch, m, k, n = *shape_a, shape_b[2]
    if dtype not in _ACCUMULATED_IN_FP32 or dtype_b is not dtype or not batch * m * n * k or k > SPAN:
        return None
    if slices_of(m, n, k, dtype):
        return None
    size, short = (batch, m, n), dtype is not torch.float32
    if by is native:
        known = native.KnownProduct((batch, m, n, k), size, stride_a, stride_b, dtype, BLOCK)
        return (lambda a, b: known(a, b).to(dtype)) if short else known
    turns = gpu.products.turned(m, stride_b)
    stride_b = (k * n, n, 1) if turns else stride_b
    run = gpu.products.chain_plan((batch, m, n, k), stride_a, stride_b, BLOCK, dtype, device)

    def multiplied(a: Tensor, b: Tensor) -> Tensor:
        out = torch.empty(size, dtype=torch.float32, device=device)
        run(a, b.contiguous() if turns else b, out)
        return out.to(dtype) if short else out

    return multiplied


# ------------------------------------------------------------------------------------------------ checks


def check_dtype(operator: str, dtype: torch.dtype) -> None:
    """Refuse the kinds of numbers that products are not defined for."""
    if dtype in _ACCUMULATED_IN_FP32:
        return
    refuse(
        f"{operator} on {dtype}",
        "level D2 defines products of fp32, bf16 and fp16, with sums in fp32; devices have no common form of others "
        "that is worth its time.",
        "convert the tensors to torch.float32 there, or use --determinism D1 (one device type).",
    )


def _agree(operator: str, *tensors: Tensor) -> None:
    check_dtype(operator, tensors[0].dtype)
    for other in tensors[1:]:
        if other.dtype is not tensors[0].dtype:
            raise RuntimeError(
                f"{operator}: expected tensors of one dtype, but got {tensors[0].dtype} and {other.dtype}"
            )


def _fit(operator: str, a: Tensor, b: Tensor, dims: int) -> None:
    """Shapes that C code may rely on: both of `dims` dimensions, equal batches, equal k."""
    if a.dim() != dims or b.dim() != dims or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise RuntimeError(f"{operator}: shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied")


# ------------------------------------------------------------------------------------------------ forms


def joined(product: Tensor, bias: Tensor, beta: float, alpha: float, dtype: torch.dtype) -> Tensor:
    """alpha * product + beta * bias, rounded once; with beta = 0 the bias is not looked at."""
    if beta == 0:
        return (product if alpha == 1 else product.to(torch.float64) * alpha).to(dtype)
    if alpha == 1 and beta == 1:
        return (product + bias).to(dtype)  # one IEEE addition: its bits are those of fp64 rounded to fp32
    return (product.to(torch.float64) * alpha + bias.to(torch.float64) * beta).to(dtype)


@form("mm")
def mm(self: Tensor, mat2: Tensor) -> Tensor:
    plan = _planned(self, mat2, None)
    if plan is not None:
        return plan(self, mat2, None)
    if not self.dtype.is_floating_point and not self.dtype.is_complex:
        return _whole_numbers(self[None], mat2[None])[0]
    _agree("mm", self, mat2)
    _fit("mm", self, mat2, 2)
    return multiply(self[None], mat2[None])[0].to(self.dtype)


@form("addmm")
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta == 1 and alpha == 1:
        plan = _planned(mat1, mat2, self)
        if plan is not None:
            return plan(mat1, mat2, self)
    _agree("addmm", mat1, mat2, self)
    _fit("addmm", mat1, mat2, 2)
    bias = self.expand(mat1.shape[0], mat2.shape[1])
    return joined(multiply(mat1[None], mat2[None])[0], bias, beta, alpha, mat1.dtype)


@form("_addmm_activation")
def addmm_activation(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1, use_gelu: bool = False
) -> Tensor:
    out = addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    return torch.nn.functional.gelu(out) if use_gelu else torch.relu(out)


@form("bmm")
def bmm(self: Tensor, mat2: Tensor) -> Tensor:
    plan = _planned_batch(self, mat2)
    if plan is not None:
        return plan(self, mat2)
    if not self.dtype.is_floating_point and not self.dtype.is_complex:
        return _whole_numbers(self, mat2)
    _agree("bmm", self, mat2)
    _fit("bmm", self, mat2, 3)
    return multiply(self, mat2).to(self.dtype)


@form("baddbmm")
def baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    _agree("baddbmm", batch1, batch2, self)
    _fit("baddbmm", batch1, batch2, 3)
    bias = self.expand(batch1.shape[0], batch1.shape[1], batch2.shape[2])
    return joined(multiply(batch1, batch2), bias, beta, alpha, batch1.dtype)


@form("addbmm")
def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """The sum over the batch is part of the product: k runs over the batch, then over the columns of batch1."""
    _agree("addbmm", batch1, batch2, self)
    _fit("addbmm", batch1, batch2, 3)
    wide = batch1.movedim(0, 1).flatten(1, 2)
    bias = self.expand(wide.shape[0], batch2.shape[2])
    return joined(multiply(wide[None], batch2.flatten(0, 1)[None])[0], bias, beta, alpha, batch1.dtype)


@form("mv")
def mv(self: Tensor, vec: Tensor) -> Tensor:
    _agree("mv", self, vec)
    _fit("mv", self, vec[:, None], 2)
    return multiply(self[None], vec[None, :, None])[0, :, 0].to(self.dtype)


@form("addmv")
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    _agree("addmv", mat, vec, self)
    _fit("addmv", mat, vec[:, None], 2)
    product = multiply(mat[None], vec[None, :, None])[0, :, 0]
    return joined(product, self.expand(mat.shape[0]), beta, alpha, mat.dtype)


@form("dot")
def dot(self: Tensor, tensor: Tensor) -> Tensor:
    if not self.dtype.is_floating_point and not self.dtype.is_complex:
        return _whole_numbers(self[None, None], tensor[None, :, None]).view(())
    _agree("dot", self, tensor)
    _fit("dot", self[None], tensor[:, None], 2)
    return multiply(self[None, None], tensor[None, :, None]).view(()).to(self.dtype)


@form("vdot")
def vdot(self: Tensor, other: Tensor) -> Tensor:
    return dot(self, other)


@form("addr")
def addr(self: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """One product per element, exact in fp64; then alpha, beta and the sum in fp64, one rounding."""
    _agree("addr", vec1, vec2, self)
    product = vec1.to(torch.float64)[:, None] * vec2.to(torch.float64)[None] * alpha
    if beta == 0:
        return product.to(vec1.dtype)
    return (product + self.to(torch.float64) * beta).to(torch.float32).to(vec1.dtype)


@form("_trilinear")
def trilinear(
    i1: Tensor, i2: Tensor, i3: Tensor, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """Products of three tensors of common dimensions, in fp64 from the left, summed over `sumdim` by the tree.

    Dimension `unroll_dim` is taken one at a time where it is summed over, as stock does, to spare memory; the parts are
    added in ascending order in fp64.
    """
    _agree("bilinear", i1, i2, i3)
    placed = [_placed(i1, expand1), _placed(i2, expand2), _placed(i3, expand3)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in placed))
    wide = [tensor.expand(shape) for tensor in placed]
    summed = sorted(dim % len(shape) for dim in sumdim)
    if prod(shape) == 0:
        kept = [size for dim, size in enumerate(shape) if dim not in summed]
        return torch.zeros(kept, dtype=i1.dtype, device=i1.device)
    dim = unroll_dim % len(shape)
    parts = []
    for index in range(shape[dim]):
        x, y, z = (tensor.narrow(dim, index, 1).to(torch.float64) for tensor in wide)
        terms = x * y * z
        parts.append(primitives.tree_sum(terms, summed) if summed else terms)
    if dim in summed:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
    else:
        total = torch.cat(parts, dim)
    for gone in reversed(summed):
        total = total.squeeze(gone)
    return total.to(torch.float32).to(i1.dtype)


def _placed(tensor: Tensor, expand: Sequence[int]) -> Tensor:
    for dim in sorted(expand):
        tensor = tensor.unsqueeze(dim)
    return tensor


def _whole_numbers(a: Tensor, b: Tensor) -> Tensor:
    """Products of whole numbers wrap around and do not depend on their order."""
    _fit("matmul", a, b, 3)
    total = torch.zeros((a.shape[0], a.shape[1], b.shape[2]), dtype=a.dtype, device=a.device)
    for k in range(a.shape[2]):
        total = total + a[:, :, k : k + 1] * b[:, k : k + 1]
    return total
