"""Jobs at level D2, and their judges: stock DDP with D2's operators, in hand-written scripts over Gloo.

As a script (`python d2_cases.py NAME`, under the launcher) it runs one of the jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.optim import lr_scheduler

from cluster import run_stock
from easyscale.numerics.kernels import install
from workloads import CNN, TRANSFORMER, Case, Pictures, by_hand, with_easyscale

ESTS = 4


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=20)


CASES: dict[str, Case] = {
    # Batch norm, dropout, momentum, clipping, several buckets, batches that are padded; 8 global steps.
    "pictures": replace(
        CNN, data=lambda: Pictures(61), clip_norm=0.5, scheduler=one_cycle, schedule_each_step=True,
        prepare={"bucket_cap_mb": 0.001},
    ),
    # Attention, AdamW, mixed precision, two mini-batches an update.
    "words": replace(TRANSFORMER, autocast=torch.bfloat16, accumulate=2, clip_norm=1.0),
}  # fmt: skip


def at_d2(case: Case) -> Callable[[int, int], dict[str, Any]]:
    """Stock DDP as people write it, with D2's operators under it."""
    stock = by_hand(case)

    def train(rank: int, ranks: int) -> dict[str, Any]:
        install.install()
        return stock(rank, ranks)

    return train


@cache
def judge(name: str, level: str = "D2") -> dict[str, Any]:
    """What N stock processes end with."""
    case = CASES[name]
    return run_stock(at_d2(case) if level == "D2" else by_hand(case), ESTS)


def losses(result: dict[str, Any]) -> list[Any]:
    """Of each global step, in its order, by virtual rank."""
    return list(result["losses"].values())


if __name__ == "__main__":
    with_easyscale(CASES[sys.argv[1]])()
