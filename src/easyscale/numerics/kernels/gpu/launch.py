"""Where Triton kernels can run, and on which device a launch goes."""

from __future__ import annotations

import importlib.util
import struct
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch


@cache
def available() -> bool:
    """Whether there are a CUDA device and Triton here."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


def on(device: torch.device) -> AbstractContextManager[object]:
    """Launches inside the block go to this device. Triton launches on the current one, whatever the tensors are on."""
    if device.type != "cuda" or device.index is None or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


@cache
def processors(device: torch.device) -> int:
    """Number of SMs: how many tiles it takes to keep the device busy. Tiles change no bits, so this may decide them."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def bits(value: float) -> int:
    """An fp64 as the whole number of its bits, for a kernel: Triton makes fp32 of a Python float."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
