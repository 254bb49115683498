"""Small models, data and two training loops for them: with EasyScale's five lines, and by hand with stock DDP.

The hand-written loop is the judge: it uses torch.nn.parallel.DistributedDataParallel, DistributedSampler and nothing of
ours. Both loops read the same `Case`.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

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


class Within(nn.Module):
    """A module as people write them: torch compiles it in place, and leaves a Sequential alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


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
    held_out: Callable[[], Any] | None = None  # what evaluation reads; by default the same data
    loss: Callable[[Any, Any], torch.Tensor] = cross_entropy
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    # The optimizer may want groups: given the model, returns what the optimizer is built from.
    groups: Callable[[nn.Module], Any] = lambda model: model.parameters()
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    schedule_each_step: bool = False
    plateau: bool = False  # the scheduler follows the evaluation's score
    batch: int = 4
    epochs: int = 2
    loader: dict[str, Any] = field(default_factory=dict)
    sampler: Callable[[Any], Any] | None = None  # of the whole data set; ranks take every N-th
    batches: Callable[[Any], Any] | None = None  # the same for a batch sampler
    prepare: dict[str, Any] = field(default_factory=dict)  # DDP options of the same names
    init: dict[str, Any] = field(default_factory=dict)
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    close_windows: bool = False  # the end of an epoch ends an accumulation window; else it goes on in the next
    autocast: torch.dtype | None = None
    scaler: bool = False
    scale: float = 2.0**12  # with which the scaler begins
    average: bool = False  # EMA of the weights through es.register
    average_each_epoch: bool = False  # the plain mean instead, between the loops
    evaluate: bool = False
    evaluate_inside: bool = False  # also in the middle of an epoch, on a deep copy
    ask_between: bool = False  # a checkpoint at the end of each epoch
    zero_first: bool = False
    set_to_none: bool = True
    device: str = "cpu"

    def mixed(self) -> Any:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, self.autocast)

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer, Any, Any]:
        """Model, optimizer, scheduler, scaler: the same calls in both loops, under the same seed."""
        model = self.model()
        optimizer = self.optimizer(self.groups(model))
        scheduler = self.scheduler(optimizer) if self.scheduler else None
        scaler = torch.amp.GradScaler(self.device, init_scale=self.scale, growth_interval=3) if self.scaler else None
        return model, optimizer, scheduler, scaler

    def averaged(self, model: nn.Module) -> Any:
        if self.average_each_epoch:
            return torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        if self.average:
            return torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=_ema, use_buffers=True)
        return None

    def ends_window(self, batch: int, length: Any) -> bool:
        """`length` is a function: a loader may have none, and is then not asked."""
        return (batch + 1) % self.accumulate == 0 or (self.close_windows and batch + 1 == length())


MLP = Case()
CNN = Case(model=cnn, data=Pictures)
TRANSFORMER = Case(model=TinyTransformer, data=Tokens, optimizer=adam)


class Scores:
    """What evaluation found so far; a resumed job goes on with it."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = list(state["values"])


def with_easyscale(case: Case) -> Callable[[], dict[str, Any]]:
    """The loop of the README, with each feature as a user would write it."""

    def train() -> dict[str, Any]:
        import easyscale as es

        es.init(seed=SEED, **case.init)
        model, optimizer, scheduler, scaler = case.build()
        loader = _whole_loader(case)
        things = [t for t in (model, optimizer, scheduler, scaler, loader) if t is not None]
        loader = es.prepare(*things, **case.prepare)[-1]
        average, scores = case.averaged(model), Scores()
        if case.evaluate or case.evaluate_inside:
            es.register("scores", scores)
        if average is not None:
            es.register("average", average)
        for _epoch in es.epochs(case.epochs):
            for x, y in loader:
                if case.zero_first:
                    optimizer.zero_grad(set_to_none=case.set_to_none)
                whole = case.ends_window(loader.batch_index, loader.__len__)
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
                if average is not None and not case.average_each_epoch:
                    average.update_parameters(model)
                if case.evaluate_inside and loader.completes_step and loader.batch_index % 2:
                    with torch.random.fork_rng():
                        scores.values.append(_evaluate(copy.deepcopy(model), case))
            if case.average_each_epoch:
                average.update_parameters(model)
            if case.evaluate:
                scores.values.append(_evaluate(model, case))
            if scheduler and not case.schedule_each_step:
                scheduler.step(*scores.values[-1:]) if case.plateau else scheduler.step()
            if case.ask_between:
                es.checkpoint()
        return _outcome(model, optimizer, scheduler, scaler, average, scores)

    return train


def by_hand(case: Case) -> Callable[[int, int], dict[str, Any]]:
    """Stock DDP, as people write it."""

    def train(rank: int, ranks: int) -> dict[str, Any]:
        torch.use_deterministic_algorithms(True)
        seed_by_hand(SEED)
        model, optimizer, scheduler, scaler = case.build()
        model.to(case.device)
        loader, set_epoch = _loader_of_rank(case, rank, ranks)
        ddp = DistributedDataParallel(model, **case.prepare)
        average, scores = case.averaged(model), Scores()
        seed_by_hand(SEED + rank)
        losses = []
        for epoch in range(case.epochs):
            set_epoch(epoch)
            for i, (x, y) in enumerate(loader):
                x, y = tree_map(lambda part: part.to(case.device), (x, y))
                if case.zero_first:
                    optimizer.zero_grad(set_to_none=case.set_to_none)
                whole = case.ends_window(i, loader.__len__)
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
                if average is not None and not case.average_each_epoch:
                    average.update_parameters(model)
                if case.evaluate_inside and i % 2:
                    with torch.random.fork_rng():
                        scores.values.append(_evaluate(copy.deepcopy(model), case))
            if case.average_each_epoch:
                average.update_parameters(model)
            if case.evaluate:
                with torch.random.fork_rng():
                    scores.values.append(_evaluate(ddp, case))
            if scheduler and not case.schedule_each_step:
                scheduler.step(*scores.values[-1:]) if case.plateau else scheduler.step()
        result = _outcome(model, optimizer, scheduler, scaler, average, scores)
        return {**result, "fingerprint": result["model"], "losses": losses}

    return train


def _whole_loader(case: Case) -> DataLoader[Any]:
    """One loader of the whole data set, as for training without ranks."""
    data = case.data()
    if case.batches:
        return DataLoader(data, batch_sampler=case.batches(data), **case.loader)
    if case.sampler:
        return DataLoader(data, batch_size=case.batch, sampler=case.sampler(data), **case.loader)
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=case.batch, **case.loader)
    return DataLoader(data, batch_size=case.batch, **{"shuffle": True, **case.loader})


def _loader_of_rank(case: Case, rank: int, ranks: int) -> tuple[DataLoader[Any], Callable[[int], None]]:
    """A rank's own loader, and what it must be told at the top of each epoch."""
    data = case.data()
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=case.batch, **case.loader), lambda epoch: None
    if case.batches:
        dealt = Dealt(case.batches(data), ranks, rank)
        return DataLoader(data, batch_sampler=dealt, **case.loader), dealt.set_epoch
    if case.sampler:
        dealt = Dealt(case.sampler(data), ranks, rank)
        return DataLoader(data, batch_size=case.batch, sampler=dealt, **case.loader), dealt.set_epoch
    options = {"shuffle": True, **case.loader}
    sampler = DistributedSampler(data, ranks, rank, shuffle=options.pop("shuffle"), seed=SEED)
    return DataLoader(data, batch_size=case.batch, sampler=sampler, **options), sampler.set_epoch


class Dealt(Sampler[Any]):
    """Any sampler for one rank: drawn alike on all ranks, padded from its beginning, every N-th from `rank` on."""

    def __init__(self, sampler: Any, ranks: int, rank: int) -> None:
        self.sampler, self.ranks, self.rank, self.epoch = sampler, ranks, rank, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return math.ceil(len(self.sampler) / self.ranks)

    def __iter__(self) -> Iterator[Any]:
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        seed_by_hand(SEED + self.epoch)
        everything = list(self.sampler)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        padded = itertools.islice(itertools.cycle(everything), len(self) * self.ranks)
        return iter(list(padded)[self.rank :: self.ranks])


def _outcome(model: nn.Module, optimizer: Any, scheduler: Any, scaler: Any, average: Any, scores: Scores) -> Any:
    """What both loops leave, as sha256 of all its values."""
    result = {
        "model": digest(model.state_dict()),
        "parameters": digest(dict(model.named_parameters())),
        "optimizer": digest(optimizer.state_dict()),
        "rates": [group["lr"] for group in optimizer.param_groups],
        "scores": scores.values,
        "scale": scaler.get_scale() if scaler else None,
    }
    named = {"scheduler": scheduler, "scaler": scaler, "average": average}
    return result | {name: digest(thing.state_dict()) for name, thing in named.items() if thing is not None}


def digest(tree: Any) -> str:
    """sha256 of a state: of a model's, it is the fingerprint."""
    from easyscale.numerics.fingerprint import fingerprint

    return fingerprint(_flat(tree))


def _flat(tree: Any, name: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        parts = [_flat(value, f"{name}.{key}" if name else str(key)) for key, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        parts = [_flat(value, f"{name}.{i}") for i, value in enumerate(tree)]
    else:
        return {name: tree}
    return {key: value for part in parts for key, value in part.items()}


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
    """As people do between epochs: eval mode, a loader of its own. It draws from the default generator."""
    model.eval()
    total = float(torch.rand(()) * 0)
    with torch.no_grad():
        for x, y in DataLoader((case.held_out or case.data)(), batch_size=8):
            x, y = tree_map(lambda part: part.to(case.device), (x, y))
            total += float(case.loss(model(x), y))
    model.train()
    return total
