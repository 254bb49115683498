"""Memory that lives only from one launch to the next, kept instead of allocated anew: an allocation takes as long on
the host as a launch does.

What runs on one stream runs in order, so the next user may write as soon as its launches come after the last one's. The
lock keeps other threads of the process from putting theirs in between.

Guarantees that for each device and stream, and each slot there, no more than MOST_KEPT bytes are held between launches:
a buffer grows to what is wanted of it and no further, the former one goes first, and with it all that was laid out on
it. Whoever wants more than that gets memory of its own, whose allocation is nothing beside what is then computed.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from math import prod

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from easyscale.numerics.kernels import watching
from easyscale.numerics.kernels.gpu.launch import current_stream

Shape = tuple[int, ...]
_lock = threading.RLock()
# By device and stream: a piece, and how much of it is taken.
_zeros: dict[tuple[torch.device, int], tuple[Tensor, int]] = {}
_ALIGNED = 256
_PIECE = 2**18
MOST_KEPT = 2**27  # bytes of a slot: all slices that convolutions cut at a time
_MOST_LAID = 8192  # forms of one buffer that are remembered


class _Buffer:
    """Memory of one slot, and what was laid out on it: nobody else keeps that."""

    __slots__ = ("__weakref__", "laid", "memory")

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.laid: dict[Places, tuple[Tensor, ...]] = {}


Key = tuple[torch.device, int, int]  # device, stream and slot
_buffers: dict[Key, _Buffer] = {}


def locked() -> AbstractContextManager[bool]:
    """To be held from the first write to the last read."""
    return _lock


def release() -> None:
    """Give all of it back."""
    with _lock:
        _buffers.clear()
        _zeros.clear()


def held() -> int:
    """Bytes in all buffers."""
    return sum(buffer.memory.numel() for buffer in _buffers.values())


def at(key: Key) -> object | None:
    """The buffer there now."""
    return _buffers.get(key)


def holder(x: Tensor) -> tuple[Key, object] | None:
    """The buffer that this tensor lies in, and where that is kept."""
    storage = x.untyped_storage()._cdata
    for key, buffer in _buffers.items():
        if buffer.memory.untyped_storage()._cdata == storage:
            return key, buffer
    return None


def zeros(count: int, device: torch.device) -> Tensor:
    """int32 zeros that nobody else has been given: cut off a larger piece, which is made now and then."""
    key = (device, current_stream(device))
    with _lock:
        piece, begin = _zeros.get(key, (None, 0))
        if piece is None or begin + count > piece.numel():
            with _disable_current_modes():  # it is not of this call alone
                piece, begin = torch.zeros(max(_PIECE, count), dtype=torch.int32, device=device), 0
        _zeros[key] = (piece, begin + -(-count // 64) * 64)
    found = piece[begin : begin + count]
    watching.tell_zeros(found)
    return found


class Places:
    """Tensors of these dtypes and shapes, side by side in one slot of the workspace: the same objects as long as the
    workspace stays where it is. Not to be kept past the lock: they keep the buffer alive."""

    __slots__ = ("_kinds", "_size")

    def __init__(self, kinds: tuple[tuple[torch.dtype, Shape], ...]) -> None:
        self._kinds = kinds
        self._size = sum(_room(dtype, shape) for dtype, shape in kinds)

    def at(self, device: torch.device, slot: int) -> tuple[Tensor, ...]:
        if self._size > MOST_KEPT:
            return self.fresh(device)
        key = (device, current_stream(device), slot)
        buffer = _buffers.get(key)
        if buffer is None or buffer.memory.numel() < self._size:
            buffer = None
            _buffers.pop(key, None)
            buffer = _buffers[key] = _Buffer(self._size, device)
        laid = buffer.laid.get(self)
        if laid is None:
            if len(buffer.laid) >= _MOST_LAID:
                buffer.laid.clear()
            laid = buffer.laid[self] = self._laid_out(buffer.memory)
        return laid

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
