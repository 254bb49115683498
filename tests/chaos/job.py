"""The job that the storm blows on: dropout, batch norm, augmentation, a scheduler, loader processes, uneven splits.

Its pace follows the storm. While the storm is behind, each local step takes longer, at places that are drawn by chance,
so that the job is not over before the last event, and events meet it in all phases of a step.
"""

from __future__ import annotations

import mmap
import random
import struct
import time
from typing import Any

import torch
from torch import nn

from elasticity import step_here
from workloads import Augmented, Case, Pictures, cross_entropy

ESTS = 5
STEPS_AN_EPOCH = 20
BATCH = 4
SLOWER, MOST = 0.02, 0.3  # seconds for each step that the job is ahead of the storm


class Shaken(Augmented, Pictures):
    """Pictures that are augmented in a loader's process, some too few for the last batches."""

    def __init__(self) -> None:
        super().__init__(ESTS * BATCH * STEPS_AN_EPOCH - 7)


class Pace:
    """The step up to which the job may run freely; in memory that forked processes share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)
        self._chance = random.Random()  # not seeded: it decides about time alone
        self.free_until(1 << 30)

    def free_until(self, step: int) -> None:
        self._memory[:] = struct.pack("<q", step)

    def wait(self) -> None:
        """Half of the times, so that it is sometimes the forward and sometimes the backward that takes long."""
        ahead = step_here() - struct.unpack("<q", self._memory[:])[0]
        if ahead >= 0 and self._chance.random() < 0.5:
            time.sleep(min(SLOWER * (1 + ahead), MOST))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.2), nn.AvgPool2d(4), nn.Flatten(),
        nn.Linear(24, 5),
    )  # fmt: skip


def job(steps: int, pace: Pace) -> tuple[Case, int]:
    """The case, and how many global steps it has: `steps`, made up to whole epochs."""

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pace.wait()
        output.register_hook(lambda gradient: pace.wait())
        return cross_entropy(output, y)

    def scheduler(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)

    epochs = -(-steps // STEPS_AN_EPOCH)
    case = Case(
        model=network, data=Shaken, loss=loss, batch=BATCH, epochs=epochs, loader={"num_workers": 1},
        scheduler=scheduler, schedule_each_step=True, clip_norm=1.0,
    )  # fmt: skip
    return case, epochs * STEPS_AN_EPOCH
