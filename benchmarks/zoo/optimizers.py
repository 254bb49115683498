"""The optimizers that people train these models with. Each function returns what builds one for a model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Build = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(rate: float, decay: float) -> Build:
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=decay)


def adam(rate: float) -> Build:
    return lambda model: torch.optim.Adam(model.parameters(), lr=rate)


def adamw(rate: float, decay: float) -> Build:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
