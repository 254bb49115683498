"""The layers of a model as the products and convolutions that one training step of it computes.

A layer that gets the batch itself, as the first one of a vision model does, needs no gradient of its input, and
training computes none: it is left out here too, for stock and D2 alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.gpu.d2_models import ALL
from benchmarks.zoo.record import Size
from torch import Tensor, nn
from torch.utils.data import DataLoader

aten = torch.ops.aten


@dataclass(frozen=True)
class Product:
    """rows x inner times inner x columns."""

    rows: int
    inner: int
    columns: int
    slope: bool  # the input needs a gradient

    def __str__(self) -> str:
        return f"{self.rows} x {self.inner} x {self.columns}{'' if self.slope else ', of the batch'}"

    def inputs(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Activations, weight and the gradient of the output."""
        x, w = torch.randn(self.rows, self.inner, device=device), torch.randn(self.columns, self.inner, device=device)
        return x, w / self.inner**0.5, torch.randn(self.rows, self.columns, device=device)

    def forward_and_backward(self, x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return torch.mm(x, w.t()), *((torch.mm(g, w),) if self.slope else ()), torch.mm(g.t(), x)


@dataclass(frozen=True)
class Convolution:
    """Of pictures (images, channels, height, width) with a weight."""

    pictures: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    slope: bool  # the input needs a gradient

    def __str__(self) -> str:
        over, end = "x".join(map(str, self.pictures)), "" if self.slope else ", of the batch"
        return f"{over} by {'x'.join(map(str, self.weight))} / {self.stride[0]}, {self.groups} groups{end}"

    def inputs(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        x, w = torch.randn(self.pictures, device=device), torch.randn(self.weight, device=device)
        return x, w / w[0].numel() ** 0.5, torch.randn_like(self.forward(x, w))

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        out: Tensor = aten.convolution(x, w, None, *self._window())
        return out

    def forward_and_backward(self, x: Tensor, w: Tensor, g: Tensor) -> tuple[Any, ...]:
        back = aten.convolution_backward(g, x, w, None, *self._window(), [self.slope, True, False])
        return self.forward(x, w), *back[not self.slope : 2]

    def _window(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, False, [0, 0], self.groups


Layer = Product | Convolution


def layers(name: str, size: Size) -> Counter[Layer]:
    """How often each occurs in one forward of the model on its mini-batch."""
    work = ALL[name]
    model = work.build(size)
    (batch,) = DataLoader(work.data(size, work.batch_of(size)), batch_size=work.batch_of(size))
    found: Counter[Layer] = Counter()

    def seen(module: nn.Module, inputs: Any, output: Tensor) -> None:
        slope = inputs[0].requires_grad
        if isinstance(module, nn.Linear):
            rows = inputs[0].numel() // module.in_features
            found[Product(rows, module.in_features, module.out_features, slope)] += 1
        elif isinstance(module, nn.Conv2d):
            assert not isinstance(module.padding, str)
            shape = tuple(inputs[0].shape), tuple(module.weight.shape)
            window = module.stride, module.padding, module.dilation
            found[Convolution(*shape, *window, module.groups, slope)] += 1

    hooks = [m.register_forward_hook(seen) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.autograd.graph.saved_tensors_hooks(lambda _saved: None, lambda nothing: nothing):  # no backward follows
        work.loss(model, batch)
    for hook in hooks:
        hook.remove()
    return found
