"""Lists of tensors on a GPU, a few launches for all of them: steps of SGD and Adam, and norms.

Addresses and lengths go to the device as a table, which is kept for as long as the same addresses come again: then a
step costs one launch. Relies on tensors of one dtype, and on those of one row of the table having one dense layout.
Guarantees the bits of the single operators, one after the other, each rounded to the dtype.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import bits, launch

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
CHUNK, BLOCK, WARPS = 4096, 1024, 4  # elements of a program, and of one round of it
LANES = 512  # partial sums of a program
AT_LAST = 1024  # lanes of the kernel that finishes sums, 16 elements each
KEPT = 64  # tables

Table = tuple[Tensor, int, bool]  # on the device; how many programs; whether all addresses are multiples of 16
_kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


def _remembered(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """What was made for the key; the oldest are forgotten."""
    found = _kept.get(key)
    if found is None:
        found = _kept[key] = make()
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    else:
        _kept.move_to_end(key)
    return found


def _on_device(numbers: Sequence[int], like: Tensor) -> Tensor:
    """Whole numbers on the device of `like`, without waiting for it."""
    placed = torch.tensor(numbers, dtype=torch.int64, pin_memory=like.is_cuda)
    return placed.to(like.device, non_blocking=True)


def _stream(like: Tensor) -> int:
    """Tables are used by the stream that they were made on: no other has to wait for them."""
    return torch._C._cuda_getCurrentRawStream(like.get_device()) if like.is_cuda else 0


def _chunks(lengths: Sequence[int], chunk: int) -> list[int]:
    return [row << 40 | start for row, length in enumerate(lengths) for start in range(0, length, chunk)]


def table(columns: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor, int, bool]:
    """Rows of a length and addresses, one for each column; the chunks, and how many; whether all is aligned."""
    like = columns[0][0]
    lengths = tuple([x.numel() for x in columns[0]])
    addresses = [[x.data_ptr() for x in column] for column in columns]
    place = (_stream(like), like.get_device())

    def chunks() -> tuple[Tensor, int]:
        found = _chunks(lengths, CHUNK)
        return _on_device(found, like), len(found)

    def rows() -> tuple[Tensor, bool]:
        flat = [number for row in zip(lengths, *addresses, strict=True) for number in row]
        return _on_device(flat, like), reduce(int.__or__, [n for column in addresses for n in column]) % 16 == 0

    known, aligned = _remembered((*place, "rows", lengths, *map(tuple, addresses)), rows)
    starts, count = _remembered((*place, "chunks", lengths), chunks)
    return known, starts, count, aligned


@cache
def _dtype(dtype: torch.dtype) -> Any:
    """Triton's name of it."""
    import triton.language as tl

    return getattr(tl, DTYPES[dtype])


def adam(
    columns: Sequence[Sequence[Tensor]], *, number: float, lr: float, beta1: float, beta2: float, weight_decay: float,
    eps: float, decoupled: bool,
) -> None:  # fmt: skip
    """Step `number` of Adam or AdamW. Columns: parameters, gradients, means, means of squares."""
    from easyscale.numerics.kernels.gpu.lists_kernels import adam as kernel

    rows, chunks, count, aligned = table(columns)
    if not count:
        return
    decay = 1 - lr * weight_decay if decoupled else weight_decay
    root, size = (1 - beta2**number) ** 0.5, -(lr / (1 - beta1**number))
    scalars = [bits(x) for x in (decay, 1 - beta1, beta2, 1 - beta2, root, eps, size)]
    launch(
        kernel, (count,), rows, chunks, *scalars,
        DECOUPLED=decoupled and weight_decay != 0, COUPLED=not decoupled and weight_decay != 0,
        DTYPE=_dtype(columns[0][0].dtype), ALIGNED=aligned, CHUNK=CHUNK, BLOCK=BLOCK,
        num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def sgd(
    columns: Sequence[Sequence[Tensor]], *, lr: float, weight_decay: float, momentum: float, dampening: float,
    nesterov: bool,
) -> None:  # fmt: skip
    """A step of SGD. Columns: parameters, gradients, buffers (without momentum anything)."""
    from easyscale.numerics.kernels.gpu.lists_kernels import sgd as kernel

    rows, chunks, count, aligned = table(columns)
    if not count:
        return
    launch(
        kernel, (count,), rows, chunks, *[bits(x) for x in (weight_decay, momentum, 1 - dampening, -lr)],
        DECAY=weight_decay != 0, MOMENTUM=momentum != 0, NESTEROV=nesterov,
        DTYPE=_dtype(columns[0][0].dtype), ALIGNED=aligned, CHUNK=CHUNK, BLOCK=BLOCK,
        num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- norms


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The square roots of the sums of squares of contiguous tensors of one dtype, each rounded to it.

    Squares are never -0, so sums may be padded with more +0 than the tree has: the bits are the same.
    """
    from easyscale.numerics.kernels.gpu.lists_kernels import finish, fold

    like = tensors[0]
    addresses, lengths = tuple([x.data_ptr() for x in tensors]), tuple([x.numel() for x in tensors])
    key = (_stream(like), like.get_device(), "norms", AT_LAST, addresses, lengths)
    passes, last, room = _remembered(key, lambda: _passes(addresses, lengths, like))
    work = torch.empty(max(room, 1), dtype=torch.float64, device=like.device)
    out = torch.empty(len(tensors), dtype=like.dtype, device=like.device)
    dtype = _dtype(like.dtype)
    for number, (rows, chunks, count, aligned) in enumerate(passes):
        launch(
            fold, (count,), rows, chunks, work, RAW=number == 0, DTYPE=dtype, ALIGNED=aligned, LANES=LANES,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    for raw, rows, count in last:
        launch(
            finish, (count,), rows, work, out, RAW=raw, DTYPE=dtype, LANES=AT_LAST, num_warps=8, enable_fp_fusion=False
        )
    return list(out.unbind())


def _passes(addresses: Sequence[int], lengths: Sequence[int], like: Tensor) -> tuple[list[Any], list[Any], int]:
    """Tables of the passes that fold long sums, and of the two kernels that finish; how many partial sums there are."""
    rows = [(address, length, i) for i, (address, length) in enumerate(zip(addresses, lengths, strict=True))]
    short, long = ([row for row in rows if (row[1] > 16 * AT_LAST) == long] for long in (False, True))
    passes: list[tuple[Tensor, Tensor, int, bool]] = []
    folded: list[tuple[int, int, int]] = []
    room = 0
    while long:
        found: list[tuple[int, int, int, int]] = []
        later: list[tuple[int, int, int]] = []
        for source, length, i in long:
            left = (1 << (length - 1).bit_length()) // 16
            found.append((source, length, left, room))
            (later if left > 16 * AT_LAST else folded).append((room, left, i))
            room += left
        chunks = _chunks([left for _, _, left, _ in found], LANES)
        aligned = all(number % 16 == 0 for row in found for number in row)
        flat = [number for row in found for number in row]
        passes.append((_on_device(flat, like), _on_device(chunks, like), len(chunks), aligned))
        long = later
    last = [
        (raw, _on_device([number for row in some for number in (*row, 0)], like), len(some))
        for raw, some in ((True, short), (False, folded)) if some
    ]  # fmt: skip
    return passes, last, room
