"""Random states of all families that training draws from: Python, NumPy, torch CPU, CUDA, and loader generators.

`RngState` is a value: captured from the live generators, put back into them. Neither touches a device queue:
CUDA generators keep seed and offset on the host.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor


@dataclass(slots=True)
class RngState:
    """The state of each family at one moment. `extra` holds the caller's own generators, in its order."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    cpu: Tensor
    cuda: Tensor | None = None
    extra: tuple[Tensor, ...] = ()

    @classmethod
    def capture(cls, device: torch.device | None = None, extra: Sequence[Generator] = ()) -> RngState:
        return cls(
            random.getstate(),
            np.random.get_state(legacy=False),
            torch.default_generator.get_state(),
            _cuda_generator(device).get_state() if _is_cuda(device) else None,
            tuple(generator.get_state() for generator in extra),
        )

    def restore(self, device: torch.device | None = None, extra: Sequence[Generator] = ()) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.default_generator.set_state(self.cpu)
        if self.cuda is not None and _is_cuda(device):
            _cuda_generator(device).set_state(self.cuda)
        for generator, state in zip(extra, self.extra, strict=True):
            generator.set_state(state)

    def to_tree(self) -> dict[str, Any]:
        """Plain containers and tensors, for a checkpoint."""
        version, words, gauss = self.python
        inner = self.numpy["state"]
        return {
            "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
            "numpy": {
                "bit_generator": self.numpy["bit_generator"],
                "key": torch.from_numpy(np.asarray(inner["key"]).astype(np.int64)),
                "pos": int(inner["pos"]),
                "has_gauss": int(self.numpy["has_gauss"]),
                "gauss": float(self.numpy["gauss"]),
            },
            "torch": self.cpu,
            "cuda": self.cuda,
            "extra": list(self.extra),
        }

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> RngState:
        python, numpy = tree["python"], tree["numpy"]
        return cls(
            (python["version"], tuple(python["words"].tolist()), python["gauss"]),
            {
                "bit_generator": numpy["bit_generator"],
                "state": {"key": numpy["key"].numpy().astype(np.uint32), "pos": numpy["pos"]},
                "has_gauss": numpy["has_gauss"],
                "gauss": numpy["gauss"],
            },
            tree["torch"],
            tree["cuda"],
            tuple(tree["extra"]),
        )

    def same_as(self, other: RngState) -> bool:
        """Equal to the bit, so that an unchanged state need not travel."""
        return (
            self.python == other.python
            and self.numpy["state"]["pos"] == other.numpy["state"]["pos"]
            and self.numpy["has_gauss"] == other.numpy["has_gauss"]
            and self.numpy["gauss"] == other.numpy["gauss"]
            and bool(np.array_equal(self.numpy["state"]["key"], other.numpy["state"]["key"]))
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
