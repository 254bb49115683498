"""Counts what Python does for one training step of a few layers as on a GPU; prints it as JSON.

A program of its own: `benchmarks/d2_host.py` takes meta tensors' Python kernels away from the whole process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2])]
from benchmarks import d2_host  # noqa: E402

from easyscale.runtime.d2 import plain_updates  # noqa: E402


class Block(nn.Module):
    """What BERT has between two attentions, and what a small convolutional network is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(768, 3072), nn.Linear(3072, 768)
        self.norm, self.drop = nn.LayerNorm(768), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x + self.drop(self.narrow(nn.functional.gelu(self.wide(x)))))
        return y


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(58, 58, 1, bias=False), nn.BatchNorm2d(58), nn.ReLU(inplace=True),
        nn.Conv2d(58, 58, 3, padding=1, groups=58, bias=False), nn.BatchNorm2d(58),
    )  # fmt: skip


def step_of(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Callable[[], torch.Tensor]:
    with torch.device("meta"):
        model, x = build(), torch.empty(shape, requires_grad=True)
    optimizer = torch.optim.AdamW(model.parameters())
    plain_updates(optimizer)

    def step() -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def counts(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> dict[str, object]:
    found = d2_host.counted(lambda: step_of(build, shape))
    return {"launches": found.launches, "calls": found.calls.total(), "of": found.calls}


def main() -> None:
    transformer = {f"{n} blocks": counts(lambda n=n: nn.Sequential(*[Block() for _ in range(n)]), (8, 384, 768))
                   for n in (1, 3)}  # fmt: skip
    print(json.dumps({**transformer, "convolutions": counts(convolutional, (128, 58, 28, 28))}))


if __name__ == "__main__":
    main()
