"""Small models, data and two training loops for them: with EasyScale's five lines, and by hand with stock DDP.

The hand-written loop is the judge: it uses torch.nn.parallel.DistributedDataParallel, DistributedSampler and nothing of
ours. Both loops read the same `Case`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from cluster import seed_by_hand

SEED = 7


class Vectors(Dataset[Any]):
    """Seeded once, so that every process sees the same data."""

    def __init__(self, count: int = 61, width: int = 12, classes: int = 5) -> None:
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, width, generator=g)
        self.y = torch.randint(classes, (count,), generator=g)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[i], self.y[i]


class Pictures(Vectors):
    def __init__(self, count: int = 45) -> None:
        g = torch.Generator().manual_seed(2)
        self.x = torch.randn(count, 3, 8, 8, generator=g)
        self.y = torch.randint(5, (count,), generator=g)


class Augmented(Vectors):
    """Draws from all three random families, in the loader's process."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().__getitem__(i)
        return x + 0.1 * torch.randn(x.shape) + 0.1 * random.random() + 0.1 * float(np.random.rand()), y


class Tokens(Dataset[Any]):
    def __init__(self, count: int = 41) -> None:
        self.x = torch.randint(32, (count, 10), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[i, :-1], self.x[i, 1:]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 33), nn.Tanh(), nn.Dropout(0.3), nn.Linear(33, 17), nn.ReLU(), nn.Linear(17, 5))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 13, 3, stride=2), nn.BatchNorm2d(13),
        nn.ReLU(), nn.Dropout2d(0.2), nn.AvgPool2d(2, stride=1), nn.Flatten(), nn.Linear(52, 5),
    )  # fmt: skip


class PartlyUnused(nn.Module):
    """A parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.never = nn.Linear(12, 5), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class TinyTransformer(nn.Module):
    """Tied input and output embeddings, attention with dropout, a causal mask as a buffer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.position = nn.Parameter(torch.zeros(16, width))
        layer = nn.TransformerEncoderLayer(width, 2, 24, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 32, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        h = self.embed(x) + self.position[:n]
        return self.head(self.body(h, mask=self.mask[:n, :n], is_causal=True))


def cross_entropy(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, -2), y.flatten())


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training job, told to both loops."""

    model: Callable[[], nn.Module] = mlp
    data: Callable[[], Any] = Vectors
    loss: Callable[[Any, Any], torch.Tensor] = cross_entropy
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    schedule_each_step: bool = False
    batch: int = 4
    epochs: int = 2
    loader: dict[str, Any] = field(default_factory=dict)
    prepare: dict[str, Any] = field(default_factory=dict)  # DDP options of the same names
    init: dict[str, Any] = field(default_factory=dict)
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    autocast: torch.dtype | None = None
    scaler: bool = False
    average: bool = False  # EMA of the weights through es.register
    evaluate: bool = False
    ask_between: bool = False  # a checkpoint at the end of each epoch
    zero_first: bool = False
    set_to_none: bool = True
    device: str = "cpu"
    def mixed(self) -> Any:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, self.autocast)

    # The optimizer may want groups: given the model, returns what the optimizer is built from.
    groups: Callable[[nn.Module], Any] = lambda model: model.parameters()


MLP = Case()
CNN = Case(model=cnn, data=Pictures)
TRANSFORMER = Case(model=TinyTransformer, data=Tokens, optimizer=adam)


def with_easyscale(case: Case) -> Callable[[], dict[str, Any]]:
    """The loop of the README, with each feature as a user would write it."""

    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED, **case.init)
        model = case.model()
        optimizer = case.optimizer(case.groups(model))
        scheduler = case.scheduler(optimizer) if case.scheduler else None
        scaler = torch.amp.GradScaler(case.device, init_scale=2.0**12, growth_interval=3) if case.scaler else None
        loader = DataLoader(case.data(), batch_size=case.batch, **{"shuffle": True, **case.loader})
        things = [t for t in (model, optimizer, scheduler, scaler, loader) if t is not None]
        loader = es.prepare(*things, **case.prepare)[-1]
        average = None
        if case.average:
            average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=_ema, use_buffers=True)
            es.register("average", average)
        for _epoch in es.epochs(case.epochs):
            for x, y in loader:
                if case.zero_first:
                    optimizer.zero_grad(set_to_none=case.set_to_none)
                whole = (loader.batch_index + 1) % case.accumulate == 0
                with contextlib.nullcontext() if whole else model.no_sync():
                    with case.mixed():
                        loss = case.loss(model(x), y) / case.accumulate
                    (scaler.scale(loss) if scaler else loss).backward()
                es.log(loss=loss)
                if not whole:
                    continue
                _update(case, model, optimizer, scaler)
                if not case.zero_first:
                    optimizer.zero_grad(set_to_none=case.set_to_none)
                if scheduler and case.schedule_each_step:
                    scheduler.step()
                if average is not None:
                    average.update_parameters(model)
            if scheduler and not case.schedule_each_step:
                scheduler.step()
            if case.evaluate:
                _evaluate(model, case)
            if case.ask_between:
                es.checkpoint()
        result = {"rates": [g["lr"] for g in optimizer.param_groups]}
        if average is not None:
            result["average"] = es.fingerprint(average)
        return result

    return train


def by_hand(case: Case) -> Callable[[int, int], dict[str, Any]]:
    """Stock DDP, as people write it."""

    def train(rank: int, ranks: int) -> dict[str, Any]:
        from easyscale.numerics.fingerprint import fingerprint

        torch.use_deterministic_algorithms(True)
        seed_by_hand(SEED)
        model = case.model()
        model.to(case.device)
        optimizer = case.optimizer(case.groups(model))
        scheduler = case.scheduler(optimizer) if case.scheduler else None
        scaler = torch.amp.GradScaler(case.device, init_scale=2.0**12, growth_interval=3) if case.scaler else None
        dataset = case.data()
        options = {"shuffle": True, **case.loader}
        shuffle = options.pop("shuffle")
        sampler = DistributedSampler(dataset, ranks, rank, shuffle=shuffle, seed=SEED)
        loader = DataLoader(dataset, batch_size=case.batch, sampler=sampler, **options)
        ddp = DistributedDataParallel(model, **case.prepare)
        average = None
        if case.average:
            average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=_ema, use_buffers=True)
        seed_by_hand(SEED + rank)
        losses = []
        for epoch in range(case.epochs):
            sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(loader):
                x, y = x.to(case.device), y.to(case.device)
                if case.zero_first:
                    optimizer.zero_grad(set_to_none=case.set_to_none)
                whole = (i + 1) % case.accumulate == 0
                with contextlib.nullcontext() if whole else ddp.no_sync():
                    with case.mixed():
                        loss = case.loss(ddp(x), y) / case.accumulate
                    (scaler.scale(loss) if scaler else loss).backward()
                if not whole:
                    continue
                losses.append(loss.item())
                _update(case, model, optimizer, scaler)
                if not case.zero_first:
                    optimizer.zero_grad(set_to_none=case.set_to_none)
                if scheduler and case.schedule_each_step:
                    scheduler.step()
                if average is not None:
                    average.update_parameters(model)
            if scheduler and not case.schedule_each_step:
                scheduler.step()
            if case.evaluate:
                with torch.random.fork_rng():
                    _evaluate(ddp, case)
        result = {
            "fingerprint": fingerprint(model),
            "losses": losses,
            "rates": [g["lr"] for g in optimizer.param_groups],
        }
        if average is not None:
            result["average"] = fingerprint(average)
        return result

    return train


def _update(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
    if scaler and (case.clip_norm or case.clip_value):
        scaler.unscale_(optimizer)
    if case.clip_norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
    if case.clip_value:
        torch.nn.utils.clip_grad_value_(model.parameters(), case.clip_value)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def _ema(averages: Any, values: Any, _count: Any) -> None:
    for average, value in zip(averages, values, strict=True):
        if average.is_floating_point():
            average.lerp_(value, 0.1)
        else:
            average.copy_(value)


def _evaluate(model: nn.Module, case: Case) -> float:
    """As people do between epochs: eval mode, its own loader, which draws from the default generator."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in DataLoader(case.data(), batch_size=8, shuffle=True):
            total += float(case.loss(model(x), y))
    model.train()
    return total
