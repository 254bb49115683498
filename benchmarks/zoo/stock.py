"""The judge: the same training by hand with stock DistributedDataParallel, and nothing of ours but the sha256.

One call is one rank; `torch.distributed` is initialised by the caller.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from benchmarks.zoo.record import Size, Workload
from benchmarks.zoo.train import EPOCHS, SEED, samples
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train(work: Workload, size: Size, steps: int, device: str, rank: int, ranks: int) -> dict[str, Any]:
    """The rank's losses, the number of parameters, and on rank 0 the fingerprint."""
    torch.use_deterministic_algorithms(True)
    seed_everything(SEED)
    model = work.build(size).to(device)
    optimizer = work.optimizer(model)
    batch = work.batch_of(size)
    data = work.data(size, samples(steps, batch, ranks))
    sampler: DistributedSampler[Any] = DistributedSampler(data, ranks, rank, shuffle=True, seed=SEED)
    loader = DataLoader(data, batch_size=batch, sampler=sampler)
    ddp = DistributedDataParallel(model)
    seed_everything(SEED + rank)
    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for part in loader:
            loss = work.loss(ddp, placed(part, device))
            loss.backward()
            if work.clip is not None:
                torch.nn.utils.clip_grad_norm_(ddp.parameters(), work.clip)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    result = {"losses": losses, "parameters": sum(p.numel() for p in model.parameters())}
    return {**result, "fingerprint": fingerprint(model)} if rank == 0 else result


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def placed(part: Any, device: str) -> Any:
    if isinstance(part, dict):
        return {name: tensor.to(device) for name, tensor in part.items()}
    return [tensor.to(device) for tensor in part]


def fingerprint(model: torch.nn.Module) -> str:
    from easyscale.numerics.fingerprint import fingerprint as sha

    return sha(model)
