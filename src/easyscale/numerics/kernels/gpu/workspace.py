"""Memory that lives only from one launch to the next, kept instead of allocated anew: an allocation takes as long on
the host as a launch does.

What runs on one stream runs in order, so the next user may write as soon as its launches come after the last one's. The
lock keeps other threads of the process from putting theirs in between.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from math import prod

import torch
from torch import Tensor

from easyscale.numerics.kernels.gpu.launch import current_stream

Shape = tuple[int, ...]
_lock = threading.RLock()
_buffers: dict[tuple[torch.device, int, int], Tensor] = {}  # by device, stream and slot
# By device and stream: a piece, and how much of it is taken.
_zeros: dict[tuple[torch.device, int], tuple[Tensor, int]] = {}
_ALIGNED = 256
_PIECE = 2**18


def locked() -> AbstractContextManager[bool]:
    """To be held from the first write to the last read."""
    return _lock


def release() -> None:
    """Give all of it back."""
    with _lock:
        _buffers.clear()
        _zeros.clear()


def zeros(count: int, device: torch.device) -> Tensor:
    """int32 zeros that nobody else has been given: cut off a larger piece, which is made now and then."""
    key = (device, current_stream(device))
    with _lock:
        piece, begin = _zeros.get(key, (None, 0))
        if piece is None or begin + count > piece.numel():
            piece, begin = torch.zeros(max(_PIECE, count), dtype=torch.int32, device=device), 0
        _zeros[key] = (piece, begin + -(-count // 64) * 64)
    return piece[begin : begin + count]


class Places:
    """Tensors of these dtypes and shapes, side by side in one slot of the workspace: the same objects as long as the
    workspace stays where it is."""

    __slots__ = ("_kinds", "_laid", "_size")

    def __init__(self, kinds: tuple[tuple[torch.dtype, Shape], ...]) -> None:
        self._kinds = kinds
        self._size = sum(_room(dtype, shape) for dtype, shape in kinds)
        self._laid: dict[int, tuple[Tensor, tuple[Tensor, ...]]] = {}  # by slot: the buffer, and what lies in it

    def at(self, device: torch.device, slot: int) -> tuple[Tensor, ...]:
        key = (device, current_stream(device), slot)
        buffer = _buffers.get(key)
        if buffer is None or buffer.numel() < self._size:
            _buffers.pop(key, None)
            # twice as much, for plans may hold the former one
            room = self._size if buffer is None else max(self._size, 2 * buffer.numel())
            buffer = _buffers[key] = torch.empty(room, dtype=torch.uint8, device=device)
        laid = self._laid.get(slot)
        if laid is None or laid[0] is not buffer:
            laid = self._laid[slot] = (buffer, self._laid_out(buffer))
        return laid[1]

    def fresh(self, device: torch.device) -> tuple[Tensor, ...]:
        """The same, in memory of their own."""
        return tuple(torch.empty(shape, dtype=dtype, device=device) for dtype, shape in self._kinds)

    def _laid_out(self, buffer: Tensor) -> tuple[Tensor, ...]:
        found, begin = [], 0
        for dtype, shape in self._kinds:
            end = begin + prod(shape) * dtype.itemsize
            found.append(buffer[begin:end].view(dtype).view(shape))
            begin += _room(dtype, shape)
        return tuple(found)


def _room(dtype: torch.dtype, shape: Shape) -> int:
    return -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
