"""Random states of all families that training draws from: Python, NumPy, torch CPU, CUDA, and loader generators.

`RngState` is a value: captured from the live generators, put back into them. Neither touches a device queue:
CUDA generators keep seed and offset on the host.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from easyscale.core.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class NumpyState:
    """NumPy's global Mersenne Twister: its words and position as bytes, and the second half of a normal pair.

    NumPy's own get_state and set_state take 40 us each, word by word; copying the bytes through the address that NumPy
    publishes takes one. Where the kept half of a pair cannot be seen that way, NumPy's own functions are used.
    """

    raw: bytes
    has_gauss: int
    gauss: float

    @classmethod
    def capture(cls) -> NumpyState:
        words = _words_address()
        half = _half_pair()
        if half is not None:
            return cls(ctypes.string_at(words, _WORDS_BYTES), *half)
        state: Any = np.random.get_state(legacy=False)
        raw = np.asarray(state["state"]["key"], dtype=np.uint32).tobytes()
        raw += int(state["state"]["pos"]).to_bytes(4, "little")
        return cls(raw, int(state["has_gauss"]), float(state["gauss"]))

    def restore(self) -> None:
        if not self.has_gauss and _half_pair() == (0, 0.0):
            ctypes.memmove(_words_address(), self.raw, _WORDS_BYTES)
            return
        key = np.frombuffer(self.raw, dtype=np.uint32, count=624)
        inner = {"key": key, "pos": int.from_bytes(self.raw[-4:], "little")}
        np.random.set_state(
            {"bit_generator": "MT19937", "state": inner, "has_gauss": self.has_gauss, "gauss": self.gauss}
        )

    def to_tree(self) -> dict[str, Any]:
        words = torch.frombuffer(bytearray(self.raw), dtype=torch.uint8)
        return {"state": words, "has_gauss": self.has_gauss, "gauss": self.gauss}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> NumpyState:
        return cls(tree["state"].numpy().tobytes(), tree["has_gauss"], tree["gauss"])


_WORDS_BYTES = 624 * 4 + 4  # struct { uint32_t key[624]; int pos; }, the same in each release of NumPy since 1.17


def _words_address() -> int:
    """Where NumPy's global generator keeps its words. Looked up each time: a script may replace the generator."""
    family: Any = np.random  # the function is public, the type stub does not know it
    generator = family.get_bit_generator()
    if not isinstance(generator, np.random.MT19937):
        raise UnsupportedError(
            f"NumPy's global generator was replaced by {type(generator).__name__}.",
            "its state is not known to EasyScale, so it could not travel with the ESTs.",
            "leave np.random's generator as it is, or use a numpy.random.Generator of your own and es.register() it.",
        )
    return int(generator.ctypes.state_address)


def _half_pair() -> tuple[int, float] | None:
    """(is the second half of a normal pair kept, its value) of NumPy's global generator; None: cannot be seen."""
    offset = _half_pair_offset()
    if offset is None:
        return None
    address = id(np.random.mtrand._rand) + offset
    kept = ctypes.c_int.from_address(address).value
    return kept, ctypes.c_double.from_address(address + 8).value if kept else 0.0


@lru_cache(maxsize=1)
def _half_pair_offset() -> int | None:
    """Where a RandomState keeps `int has_gauss; double gauss;`: found, and checked, on one of our own."""
    probe = np.random.RandomState(1)
    state: Any = probe.get_state(legacy=False)
    mark = 1.234567890123e-300
    probe.set_state({**state, "has_gauss": 1, "gauss": mark})
    size = type(probe).__basicsize__
    memory = ctypes.string_at(id(probe), size)
    at = memory.find(struct.pack("<d", mark)) - 8
    if at < 0 or memory.count(struct.pack("<d", mark)) != 1 or memory[at : at + 4] != struct.pack("<i", 1):
        return None
    probe.set_state({**state, "has_gauss": 0, "gauss": 0.0})
    return at if ctypes.string_at(id(probe), size)[at : at + 4] == struct.pack("<i", 0) else None


@dataclass(slots=True)
class RngState:
    """The state of each family at one moment. `extra` holds the caller's own generators, in its order."""

    python: tuple[Any, ...]
    numpy: NumpyState
    cpu: Tensor
    cuda: Tensor | None = None
    extra: tuple[Tensor, ...] = ()

    @classmethod
    def capture(cls, device: torch.device | None = None, extra: Sequence[Generator] = ()) -> RngState:
        return cls(
            random.getstate(),
            NumpyState.capture(),
            torch.default_generator.get_state(),
            _cuda_generator(device).get_state() if _is_cuda(device) else None,
            tuple(generator.get_state() for generator in extra),
        )

    def restore(self, device: torch.device | None = None, extra: Sequence[Generator] = ()) -> None:
        random.setstate(self.python)
        self.numpy.restore()
        torch.default_generator.set_state(self.cpu)
        if self.cuda is not None and _is_cuda(device):
            _cuda_generator(device).set_state(self.cuda)
        for generator, state in zip(extra, self.extra, strict=True):
            generator.set_state(state)

    def to_tree(self) -> dict[str, Any]:
        """Plain containers and tensors, for a checkpoint."""
        version, words, gauss = self.python
        return {
            "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
            "numpy": self.numpy.to_tree(),
            "torch": self.cpu,
            "cuda": self.cuda,
            "extra": list(self.extra),
        }

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> RngState:
        python = tree["python"]
        return cls(
            (python["version"], tuple(python["words"].tolist()), python["gauss"]),
            NumpyState.from_tree(tree["numpy"]),
            tree["torch"],
            tree["cuda"],
            tuple(tree["extra"]),
        )

    def same_as(self, other: RngState) -> bool:
        """Equal to the bit, so that an unchanged state need not travel."""
        return (
            self.python == other.python
            and self.numpy == other.numpy
            and torch.equal(self.cpu, other.cpu)
            and (self.cuda is None) == (other.cuda is None)
            and (self.cuda is None or other.cuda is None or torch.equal(self.cuda, other.cuda))
            and len(self.extra) == len(other.extra)
            and all(torch.equal(a, b) for a, b in zip(self.extra, other.extra, strict=True))
        )


def seed_all(seed: int) -> None:
    """Seed each family as scripts do by hand. NumPy takes 32 bits only."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _is_cuda(device: torch.device | None) -> bool:
    return device is not None and device.type == "cuda"


def _cuda_generator(device: torch.device | None) -> torch.Generator:
    assert device is not None
    torch.cuda.init()
    index = device.index if device.index is not None else torch.cuda.current_device()
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator
