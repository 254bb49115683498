"""Digests of tensors, computed where the tensor lives: to compare two runs, not to resist an attacker.

A tensor's bytes are read as whole numbers x[i] of at most 32 bits and summed as x[i] * w[i] modulo 2**64. The weights
are odd, so one changed bit always changes the sum; they look random, so changes of several elements (signs, last bits
up here and down there) do not cancel. Whole numbers have no rounding: any device adds them in any order to the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch

_PIECE = 1 << 20  # elements summed at a time: bounds the memory of the products
_MIXER = 0x9E3779B97F4A7C15 - (1 << 64)  # odd, spreads the index over all bits
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


@torch.no_grad()
def digest(tensor: torch.Tensor) -> torch.Tensor | None:
    """A whole number of 64 bits on the tensor's own device; None where a tensor has no plain bytes."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return None
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    # Both calls: a channels-last tensor of size 1 can be "contiguous" with strides that a view refuses.
    flat = tensor.contiguous().reshape(-1)
    wide = _INTEGERS.get(flat.element_size())
    if wide is None or not flat.numel():
        return torch.zeros((), dtype=torch.int64, device=tensor.device) if wide is not None else None
    if flat.nbytes % 4 == 0:  # short elements are read several at a time, wherever in its storage the tensor begins
        wide = torch.int32
        flat = flat.clone() if flat.storage_offset() * flat.element_size() % 4 else flat
    words = flat.view(wide)
    total = torch.full((), flat.numel(), dtype=torch.int64, device=tensor.device)
    for number, piece in enumerate(words.split(_PIECE)):
        weights = _weights(tensor.device)[: piece.numel()]
        total = total * _MIXER + (piece.to(torch.int64) * weights).sum() + number
    return total


@lru_cache(maxsize=8)
def _weights(device: torch.device) -> torch.Tensor:
    """Not proportional to the index: steps up and down at equal distances would then cancel."""
    weights = torch.arange(1, _PIECE + 1, dtype=torch.int64, device=device) * _MIXER
    for _ in range(2):
        weights = (weights ^ (weights >> 32)) * _MIXER
    return weights | 1


def read(digests: Iterable[torch.Tensor | None]) -> list[str | None]:
    """Digests as text; waits for each device once."""
    known = list(digests)
    by_device: dict[torch.device, list[int]] = {}
    for index, value in enumerate(known):
        if value is not None:
            by_device.setdefault(value.device, []).append(index)
    texts: list[str | None] = [None] * len(known)
    for indices in by_device.values():
        numbers = torch.stack([known[i] for i in indices]).tolist()  # type: ignore[misc]
        for index, number in zip(indices, numbers, strict=True):
            texts[index] = f"{number % 2**64:016x}"
    return texts


def combined(parts: Iterable[str | None]) -> str:
    """One short text for many."""
    return plain("|".join(part or "-" for part in parts).encode())


def plain(value: Any) -> str:
    """A digest of a plain value by what it prints as, or of raw bytes."""
    data = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.blake2b(data, digest_size=8).hexdigest()
