"""The models of these benchmarks, with one mini-batch and an optimizer: both kinds of scripts build them here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from parts.workload import build, sgd
from torch import nn

WIDTH = 4560  # four such layers are 83 million parameters: with AdamW's two moments a state of 1 GB


def model_of(name: str) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    """`1gb`: a large state and little to compute. Else a name of `parts.workload`."""
    torch.manual_seed(0)
    if name.startswith("1gb"):
        width = WIDTH if name == "1gb" else int(name.partition("-")[2])
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Linear(width, width), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(width, 10))
        return model, torch.optim.AdamW(model.parameters()), torch.randn(8, width), torch.randint(10, (8,))
    model, x, y = build(name)
    return model, sgd(model), x, y


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """What a worker that joins needs, but for the contexts, which are some kilobytes."""
    moments = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    tensors: list[Any] = [*model.state_dict().values(), *moments]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
