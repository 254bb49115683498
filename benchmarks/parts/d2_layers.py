"""The convolution and linear layers of the eight published models at full size.

A model is built and run once on one sample; on torch's meta device, which knows shapes only,
where that will do. Relies on tests/d2_zoo.py being importable.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from d2_zoo import MODELS, batches
from easyscale.numerics.kernels import products


@dataclass(frozen=True, slots=True)
class Layer:
    """Shapes of one layer at a batch of one sample. A linear layer is a 1 x 1 convolution over its rows."""

    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    size: tuple[int, ...]  # of the input, in space
    positions: int  # of the output
    linear: bool

    def depths(self, batch: int) -> dict[str, tuple[int, int, int]]:
        """(M, N, K) of its three products at this batch, as `convolutions` defines them."""
        taps = torch.Size(self.kernel).numel()
        wide, narrow = self.outputs // self.groups, self.inputs // self.groups
        reached = batch * torch.Size(self.size).numel() // torch.Size(self.stride).numel()
        behind = wide * max(1, taps // torch.Size(self.stride).numel())
        return {
            "forward": (wide, batch * self.positions, narrow * taps),
            "input": (narrow, reached, behind),
            "weight": (wide, narrow * taps, batch * self.positions),
        }

    def forms(self, batch: int) -> dict[str, tuple[int, int]]:
        """Depth and number of slices (0: chains) of each product."""
        return {
            name: (k, products.slices_of(m, n, k, torch.float32))
            for name, (m, n, k) in self.depths(batch).items()
        }  # fmt: skip


@cache
def layers(name: str) -> list[Layer]:
    """Each kind of layer once, in the order of the model."""
    found: dict[Layer, None] = {}

    def note(module: nn.Module, inputs: Any, out: Any) -> None:
        x = inputs[0]
        if isinstance(module, nn.Conv2d):
            padding: Any = module.padding
            found[Layer(
                module.in_channels, module.out_channels, tuple(module.kernel_size), tuple(module.stride),
                tuple(padding), module.groups, tuple(x.shape[2:]), out.shape[2:].numel(), linear=False,
            )] = None  # fmt: skip
        elif isinstance(module, nn.Linear):
            rows = x.shape[:-1].numel()
            found[Layer(
                module.in_features, module.out_features, (1,), (1,), (0,), 1, (rows,), rows, linear=True
            )] = None  # fmt: skip

    work = MODELS[name]
    data = batches(work, "full", 1, 1)[0]
    if isinstance(data, dict):  # the language models look at their masks: they need numbers
        model = work.build("full")
    else:
        with torch.device("meta"):
            model, data = work.build("full"), [x.to("meta") for x in data]
    for module in (part for part in model.modules() if isinstance(part, nn.Conv2d | nn.Linear)):
        module.register_forward_hook(note)
    # the loss may ask for numbers, which are not there; all layers have run by then
    with torch.no_grad(), suppress(RuntimeError, NotImplementedError):
        work.loss(model, data)
    assert found, f"no layers seen in {name}"
    return list(found)
