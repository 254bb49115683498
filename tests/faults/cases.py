"""The jobs that faults strike. Each draws from the random states wherever it can, so that one out of place shows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler

from e2e.test_features import Branches, ReadsItsBuffer
from parity.families import Data, Stream
from workloads import CNN, MLP, Case, Pictures, adam

SAMPLES = 16  # a rank and epoch: 4 global steps


class Noisy(Pictures):
    """Draws from all three random families, in the loader's process."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().__getitem__(i)
        return x + 0.1 * torch.randn(x.shape) + 0.1 * random.random() + 0.1 * float(np.random.rand()), y


class NoisyVectors(Noisy):
    def __init__(self, count: int) -> None:
        g = torch.Generator().manual_seed(3)
        self.x, self.y = torch.randn(count, 12, generator=g), torch.randint(5, (count,), generator=g)


def _vectors(count: int, g: torch.Generator) -> tuple[Any, torch.Tensor]:
    return torch.randn(count, 12, generator=g), torch.randint(5, (count,), generator=g)


def pictures(ests: int) -> Case:
    """Batch norm and dropout, several buckets, a last batch that is padded."""
    count = SAMPLES * ests - 1
    return replace(CNN, data=lambda: Noisy(count), held_out=Pictures, prepare={"bucket_cap_mb": 0.001})


def _with(**changes: Any) -> Callable[[int], Case]:
    def case(ests: int) -> Case:
        whole = pictures(ests)
        prepare = {**whole.prepare, **changes.get("prepare", {})}
        return replace(whole, **{**changes, "prepare": prepare})

    return case


def _vectors_with(**changes: Any) -> Callable[[int], Case]:
    return lambda ests: replace(MLP, **{"data": lambda: NoisyVectors(SAMPLES * ests - 1), **changes})


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)


def after_backward(model: nn.Module) -> Any:
    """The optimizer's parameter groups, and hooks that draw random numbers when gradients are there."""

    def draw(*_: Any) -> None:
        torch.rand(3)
        random.random()
        np.random.rand()

    next(iter(model.parameters())).register_post_accumulate_grad_hook(draw)
    return model.parameters()


# Names with `Adam` in them step with AdamW.
FEATURES: dict[str, Callable[[int], Case]] = {
    "GradScaler": _with(scaler=True, scale=2.0**60, autocast=torch.bfloat16, clip_norm=0.5),
    "clipping": _with(clip_norm=0.1, clip_value=0.01),
    "accumulation": _with(accumulate=2, epochs=3),
    "accumulation over epochs": _vectors_with(accumulate=3, epochs=3),
    "a schedule by step": _with(scheduler=lambda o: lr_scheduler.StepLR(o, 2, 0.5), schedule_each_step=True),
    "OneCycle": _with(scheduler=one_cycle, schedule_each_step=True),
    "an average of the weights": _vectors_with(average=True),
    "own buffers": _with(prepare={"broadcast_buffers": False}),
    "unused parameters": _vectors_with(model=Branches, prepare={"find_unused_parameters": True}),
    "gradients set to zero": _with(set_to_none=False),
    "zeroed at the top": _with(set_to_none=False, zero_first=True),
    "loader processes": _with(loader={"num_workers": 2}),
    "lasting loader processes": _with(loader={"num_workers": 2, "persistent_workers": True}),
    "a stream": _vectors_with(data=lambda: Stream(Data(64, _vectors), SAMPLES)),
    "a stream from processes": _vectors_with(
        data=lambda: Stream(Data(64, _vectors), SAMPLES), loader={"num_workers": 2}
    ),
    "draws in backward": _with(groups=after_backward),
    "Adam": _with(optimizer=adam),
    "an evaluation between the epochs": _with(evaluate=True),
    "an evaluation inside the loop": _with(evaluate_inside=True),
    "reads its buffers": _vectors_with(model=ReadsItsBuffer),
}  # fmt: skip

# Each rank of stock DDP averages the buffers that its own batches left; the one that people keep is rank 0's.
AVERAGED_BUFFERS = "an average of weights and buffers"

CASES: dict[str, Callable[[int], Case]] = {
    "pictures": pictures,
    AVERAGED_BUFFERS: _with(average=True),
    "tree": _with(init={"reduction": "tree"}),
    **FEATURES,
}


def case_of(name: str, ests: int) -> Case:
    return CASES[name](ests)
