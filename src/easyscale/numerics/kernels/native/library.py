"""Loads the compiled D2 kernels: the library built for the instruction set that torch itself uses here.

Nothing is loaded at import. `ATEN_CPU_CAPABILITY` (torch's own variable) makes this imitate an older CPU as it does
torch. Where there is no library, `available` says so once with a warning, and D2 runs by torch operators: the same
bits, slowly.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from pathlib import Path

import torch

from easyscale.core.errors import message

# Raised when a C function changes its arguments; a library with another number was built from other sources.
ABI = 5

_BY_CAPABILITY = {"AVX512": "avx512", "AVX2": "avx2"}


def path_of(variant: str) -> Path:
    """Where the library of an instruction set lies, if it was built."""
    return Path(__file__).with_name(f"_d2_{variant}.so")


def open_library(path: Path) -> ctypes.CDLL:
    """Load one library, with every symbol resolved now. OpenMP's come from what torch has loaded."""
    mode = os.RTLD_NOW | os.RTLD_LOCAL
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError:  # a torch that keeps its OpenMP to itself: the system's then
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOW | os.RTLD_GLOBAL)
        return ctypes.CDLL(str(path), mode=mode)


def _wish() -> str:
    """The instruction set that torch uses on this CPU."""
    return _BY_CAPABILITY.get(torch.backends.cpu.get_cpu_capability(), "base")


@functools.cache
def _load() -> tuple[str, ctypes.CDLL] | None:
    """The library and its instruction set, or None after one warning."""
    wish = _wish()
    reinstall = "install a C compiler (gcc) and install easyscale-torch again: pip install --force-reinstall --no-deps"
    for variant in dict.fromkeys((wish, "base")):
        path = path_of(variant)
        if not path.exists():
            continue
        try:
            loaded = open_library(path)
            number = int(loaded.d2_abi())
        except (OSError, AttributeError) as error:
            _warn(f"{path.name} cannot be loaded: {error}", reinstall)
            return None
        if number != ABI:
            _warn(f"{path.name} was built from other sources than this code", "install easyscale-torch again with pip")
            return None
        return variant, loaded
    _warn("no C compiler was there when the package was built", reinstall)
    return None


def _warn(why: str, now: str) -> None:
    what = "level D2 runs by torch operators here: the same bits, but slow"
    warnings.warn(message(what, why, now), UserWarning, stacklevel=2)


def available() -> bool:
    """Whether the C kernels can be used. Warns the first time if not."""
    return _load() is not None


def which() -> str:
    """The instruction set of the loaded library: "avx512", "avx2" or "base"; "none" where there is none."""
    loaded = _load()
    return loaded[0] if loaded else "none"


def library() -> ctypes.CDLL:
    """The loaded library. Only where `available`."""
    loaded = _load()
    assert loaded is not None, "the D2 library is not available: ask available() first"
    return loaded[1]
