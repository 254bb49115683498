"""The sha256 of a model: name, dtype, shape and bytes of each `state_dict` entry, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def fingerprint(model: torch.nn.Module | Mapping[str, Any]) -> str:
    """sha256 over name, dtype, shape and bytes of each `state_dict` entry, in order.

    Two models with the same fingerprint have the same parameters and buffers, bit for bit.
    """
    entries = model.state_dict() if isinstance(model, torch.nn.Module) else model
    digest = hashlib.sha256()
    for name, value in entries.items():
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            digest.update(f"|{value.dtype}|{tuple(value.shape)}|".encode())
            digest.update(tensor_bytes(value))
        else:  # what a module's get_extra_state() returned
            digest.update(f"|{type(value).__name__}|{value!r}|".encode())
    return digest.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements in row-major order as bytes, whatever the device, dtype and strides."""
    if not tensor.numel():
        return memoryview(b"")
    dense = tensor.detach().cpu().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().data
