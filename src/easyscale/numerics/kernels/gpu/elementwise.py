"""Formulas on a GPU: for each formula one Triton kernel, whose text is written from the formula (`emit_triton`).

A kernel converts its inputs to fp64 (to fp32, for formulas of that), computes without fusing multiply-adds but where
the formula says so, and rounds once. Inputs of one layout are read where they lie, whatever their dtypes, and the
output gets the same layout; others are brought to one layout first. Relies on additions, multiplications, divisions and
square roots being those of IEEE-754, which PTX promises.
Guarantees the bits of `primitives.evaluate`; blocks and warps are a question of speed alone.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels.emit_triton import triton_source
from easyscale.numerics.kernels.formulas import FORMULAS
from easyscale.numerics.kernels.gpu.launch import Launch, bits, launch
from easyscale.numerics.kernels.tracing import Formula

BLOCK = 512  # four elements for each of 128 threads: 16 bytes of fp32
WARPS = 4

_INPUTS = frozenset((
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.bool, torch.int8, torch.int16,
    torch.int32, torch.int64,
))  # fmt: skip
_PLAIN = _INPUTS - {torch.bool}
_OUTPUTS = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))


def kernel_source(formula: Formula) -> str:
    """The text of the formula's function and of `k_NAME`, the kernel that runs it over arrays.

    A number is handed over as the int64 of its bits (Triton makes fp32 of a Python float). ONE0, ..: that input is a
    single element. An fp64 result goes to bf16 and fp16 by way of fp32; what goes to fp32, whole numbers too, by way of
    fp64.
    """
    tensors, scalars = range(formula.tensors), range(formula.scalars)
    parameters = [*(f"p{i}" for i in tensors), "out", "n", *(f"b{i}" for i in scalars)]
    parameters += [*(f"ONE{i}: tl.constexpr" for i in tensors), "BLOCK: tl.constexpr"]
    names = ", ".join(f'"b{i}"' for i in scalars)
    inputs = ", ".join([*(f"t{i}" for i in tensors), *(f"s{i}" for i in scalars)])
    lines = [
        triton_source(formula),
        "",
        f"@triton.jit(do_not_specialize=[{names}], do_not_specialize_on_alignment=[{names}])",
        f"def k_{formula.name}({', '.join(parameters)}):",
        "    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        "    here = at < n",
        *(line for i in tensors for line in _loaded(i, formula.single)),
        *(f"    s{i} = b{i}.to(tl.int64).to(tl.float64, bitcast=True)" for i in scalars),
        f"    result = f_{formula.name}({inputs})",
        "    if out.dtype.element_ty != tl.float64:",
        "        result = result.to(tl.float32)",
        "    tl.store(out + at, result.to(out.dtype.element_ty), mask=here)",
        "",
    ]
    return "\n".join(lines)


def _loaded(i: int, single: bool) -> list[str]:
    """Lines that read input i."""
    read = f"    t{i} = tl.load(p{i} + (at * 0 if ONE{i} else at), mask=here, other=0)"
    if not single:
        return [f"{read}.to(tl.float64)"]
    return [
        read,
        f"    if t{i}.dtype.is_int() or t{i}.dtype == tl.float64:",
        f"        t{i} = t{i}.to(tl.float64)",
        f"    t{i} = t{i}.to(tl.float32)",
    ]


@functools.cache
def kernel(name: str) -> Any:
    """The formula's kernel."""
    return _compiled(name)[f"k_{name}"]


def function(name: str) -> Any:
    """The formula as a function of fp64 or fp32 blocks, for kernels that compute with it."""
    return _compiled(name)[f"f_{name}"]


@functools.cache
def _compiled(name: str) -> dict[str, Any]:
    """What the text of a formula defines. Triton reads a kernel's source again, so it is put where Python looks for
    it."""
    import triton
    import triton.language as tl

    source = kernel_source(FORMULAS[name])
    file = f"<D2 formula {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"triton": triton, "tl": tl, "__name__": f"{__name__}.{name}"}
    exec(compile(source, file, "exec"), scope)
    return scope


@functools.cache
def _settings(*single: bool) -> dict[str, Any]:
    """Constants of a kernel, by which of its inputs are single elements."""
    return {f"ONE{i}": one for i, one in enumerate(single)} | {"BLOCK": BLOCK}


def evaluate(name: str, tensors: Sequence[Tensor], scalars: Sequence[float] = (), *, dtype: torch.dtype) -> Tensor:
    """The formula for each element, rounded to `dtype`: see `primitives.evaluate`."""
    arrangement = _alike(tensors, dtype)
    if arrangement is None:
        for given in tensors:
            if given.dtype not in _INPUTS or dtype not in _OUTPUTS:
                raise UnsupportedError(
                    f"{name} of {given.dtype} has no D2 form",
                    "elementwise forms take real numbers of at most 64 bits",
                    "convert the tensor first, or use determinism d1",
                )
        arrangement = arranged(tensors, dtype)
    elif not scalars:
        out, inputs = arrangement
        count = out.numel()
        if count:
            _plan(name, count, dtype, tuple([x.dtype for x in inputs]), out.get_device())(*inputs, out)
        return out
    out, inputs = arrangement
    count = out.numel()
    if count:
        settings = _settings(*[x.dim() == 0 for x in inputs])
        launch(
            kernel(name), (-(-count // BLOCK),), *inputs, out, count, *map(bits, scalars), **settings,
            num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out


@functools.lru_cache(maxsize=4096)
def _plan(name: str, count: int, dtype: torch.dtype, inputs: tuple[torch.dtype, ...], device: int) -> Launch:
    """Of inputs with dimensions, without numbers; all but the first two is what it is kept by."""
    settings = _settings(*[False for _ in inputs])
    return Launch(
        kernel(name), (-(-count // BLOCK),), (count,), **settings, num_warps=WARPS, enable_fp_fusion=False
    )


def _alike(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Sequence[Tensor]] | None:
    """What `arranged` gives, found at once in the most frequent case: inputs with dimensions, of one layout, which is
    that of the output, on one device."""
    first = tensors[0]
    if dtype not in _OUTPUTS or not first.dim():
        return None
    shape, strides, device = first.shape, first.stride(), first.get_device()
    for x in tensors:
        if x.dtype not in _PLAIN:
            return None
        if x is not first and (x.shape != shape or x.stride() != strides or x.get_device() != device):
            return None
    out = torch.empty_like(first, dtype=dtype)
    return (out, tensors) if first.is_contiguous() or out.stride() == strides else None


def arranged(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """The empty output, and the inputs on its device, with its shape and layout or with no dimensions at all."""
    device = max(tensors, key=lambda x: x.device.type != "cpu").device
    placed = [_readable(x, device) for x in tensors]
    shown = next((x for x in placed if x.dim()), placed[0])
    shape, strides = shown.shape, shown.stride()
    if all(x.dim() == 0 or (x.shape == shape and x.stride() == strides) for x in placed):
        out = torch.empty_like(shown, dtype=dtype)
        if out.stride() == strides:  # dense: an output of dense layout has the same strides
            return out, placed
    else:
        shape = torch.broadcast_shapes(*[x.shape for x in placed])
    whole = next((x for x in placed if x.shape == shape), None)
    out = torch.empty(shape, dtype=dtype, device=device) if whole is None else torch.empty_like(whole, dtype=dtype)
    strides = out.stride()
    return out, [
        x if x.dim() == 0 or (x.shape == shape and x.stride() == strides) else _laid_out(x, out) for x in placed
    ]


def _readable(x: Tensor, device: torch.device) -> Tensor:
    """Truth values as bytes; a number on the CPU beside tensors on the GPU as fp64 there, without waiting for it."""
    if x.device != device:
        if x.dim():
            raise RuntimeError(f"expected all tensors on one device, but got {x.device} and {device}")
        return torch.full((), x.item(), dtype=torch.float64, device=device)
    return x.view(torch.uint8) if x.dtype is torch.bool else x


def _laid_out(x: Tensor, out: Tensor) -> Tensor:
    """A copy with the shape and strides of the output."""
    return torch.empty_like(out, dtype=x.dtype).copy_(x)
