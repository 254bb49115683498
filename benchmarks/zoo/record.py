"""What the zoo says of a model, and nothing of how it is trained: both training loops read the same record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import Dataset

Size = Literal["small", "full"]
SMALL_BATCH = 4


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One published workload. `small` has the same kinds of layers, narrow, so that a CPU trains it in seconds."""

    title: str
    batch: int  # the published mini-batch of one worker
    build: Callable[[Size], nn.Module]
    data: Callable[[Size, int], Dataset[Any]]  # that many generated samples
    loss: Callable[[nn.Module, Any], torch.Tensor]  # one forward of the model on one mini-batch
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    clip: float | None = None  # largest norm of the gradients

    def batch_of(self, size: Size) -> int:
        return self.batch if size == "full" else SMALL_BATCH
