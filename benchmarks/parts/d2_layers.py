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
from easyscale.numerics.kernels import products, sliced_convolutions
from easyscale.numerics.kernels.sliced_convolutions import Correlation


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

    def over(self, batch: int) -> dict[str, tuple[int, int, Correlation]]:
        """Channels out and in of a group, and how taps lie over pictures, of its three products. That of the input is
        the phase with the most taps, that of the weight is the forward's."""
        wide, narrow = self.outputs // self.groups, self.inputs // self.groups
        still = (1,) * len(self.kernel)
        forward = Correlation(self.kernel, self.padding, (self.positions, *still[1:]), self.stride, still)
        taps = tuple(-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))
        reached = tuple(-(-n // s) for n, s in zip(self.size, self.stride, strict=True))
        phase = Correlation(taps, self.padding, reached, still, still)
        return {"forward": (wide, narrow, forward), "input": (narrow, wide, phase), "weight": (wide, narrow, forward)}

    def forms(self, batch: int) -> dict[str, tuple[int, int]]:
        """Depth and number of slices (0: chains) of each product at this batch."""
        found = {}
        for name, (out, inner, over) in self.over(batch).items():
            depth, places = inner * torch.Size(over.kernel).numel(), batch * torch.Size(over.size).numel()
            n, k = (depth, places) if name == "weight" else (places, depth)
            if self.linear:
                slices = products.slices_of(out, n, k, torch.float32)
            elif name == "weight":
                slices = sliced_convolutions.slices_of(batch, inner, out, over, self.groups, torch.float32)
            else:
                images = (batch, inner, *(self.size if name == "forward" else (self.positions,)))
                slices = sliced_convolutions.slices_by_image(images, out, over, self.groups, torch.float32)
            found[name] = (k, slices)
        return found


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
