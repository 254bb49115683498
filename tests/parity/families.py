"""The five families of models that the matrix trains, with data for them.

Small, but each has what makes its family special: batch norm's buffers, tied weights and a mask, tables whose rows get
gradients from few samples, weights that are used at each step of a sequence. All data are drawn upon: each sample takes
numbers from Python, NumPy and torch when it is read, so that a random state out of place shows in the next loss.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from workloads import TinyTransformer, cnn, cross_entropy, mlp


class Recommender(nn.Module):
    """Most weights are in tables; a bag of past items, two single ids, a few plain numbers."""

    def __init__(self, rows: int = 150, width: int = 6) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(rows, width), nn.Embedding(rows, width)
        self.past = nn.EmbeddingBag(rows, width, mode="sum")
        self.head = nn.Sequential(nn.Linear(3 * width + 4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        user, item = self.user(x["user"]), self.item(x["item"])
        numbers = x["numbers"].to(user.dtype)
        return self.head(torch.cat([user * item, item, self.past(x["past"]), numbers], 1)).squeeze(1)


class Recurrent(nn.Module):
    """An LSTM with dropout between its layers, outside of autocast as oneDNN has none for every CPU, then a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 9, num_layers=2, dropout=0.2, batch_first=True)
        self.gru = nn.GRU(9, 7, batch_first=True)
        self.out = nn.Linear(7, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = self.lstm(x)[0]
        return self.out(self.gru(x)[0][:, -1])


class Data(Dataset[Any]):
    """Seeded once, so that every process sees the same samples; noise comes from the reader's random states."""

    def __init__(self, count: int, make: Callable[[int, torch.Generator], tuple[Any, torch.Tensor]]) -> None:
        self.x, self.y = make(count, torch.Generator().manual_seed(1))
        self.noise = True

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Any, torch.Tensor]:
        x = tree_map(lambda values: values[i], self.x)
        return (tree_map(_disturbed, x) if self.noise else x), self.y[i]


def _disturbed(x: torch.Tensor) -> torch.Tensor:
    if x.is_floating_point():
        return x + 0.1 * torch.randn(x.shape) + 0.1 * random.random() + 0.1 * float(np.random.rand())
    if x.dim() == 0:
        return x
    return x.roll(int(torch.randint(4, ())) + random.randrange(4) + int(np.random.randint(4)))


class Stream(IterableDataset[Any]):
    """So many samples for each rank. Shards itself, and says where it stands, so that a resume reads nothing again."""

    def __init__(self, data: Data, samples: int) -> None:
        self.data, self.samples, self.at = data, samples, 0

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[Any]:
        rank, ranks = _rank()
        info = get_worker_info()
        parts, part = (info.num_workers, info.id) if info else (1, 0)
        while self.at < self.samples:
            self.at += 1
            if self.at % parts == part:
                yield self.data[(self.at * ranks + rank) % len(self.data)]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def _rank() -> tuple[int, int]:
    """As a script asks that runs by hand and with EasyScale, which has no default process group."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    import easyscale as es

    return es.rank(), es.world_size()


class UnevenBatches:
    """A batch sampler of one's own: batches of 3 and 4 samples, in an order that the epoch's number decides."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(2 * self.count / 7)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        for number in range(len(self)):
            start = number // 2 * 7 + number % 2 * 3
            yield order[start : start + 3 + number % 2]


class Recomputed(nn.Module):
    """Activation checkpointing around a whole model, dropout and batch norm inside."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return checkpoint(self.body, x, use_reentrant=False)


class SometimesUnused(nn.Module):
    """One parameter that some ranks use in a step, one that the others use, one that nobody uses."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.warm, self.cold, self.never = (nn.Parameter(torch.tensor([value])) for value in (1.0, 1.1, 1.2))

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        return y * (self.warm if y.detach().flatten()[0] > 0 else self.cold)


class Cast(nn.Module):
    """A model in a type of its own, for data that come as fp32."""

    def __init__(self, body: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.body, self.dtype = body.to(dtype), dtype

    def forward(self, x: Any) -> Any:
        return self.body(tree_map(lambda part: part.to(self.dtype) if part.is_floating_point() else part, x))


def click_loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(output.float(), y)


def class_loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output.float(), y)


@dataclass(frozen=True)
class Family:
    model: Callable[[], nn.Module]
    samples: Callable[[int, torch.Generator], tuple[Any, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = class_loss


def _classes(*shape: int) -> Callable[[int, torch.Generator], tuple[Any, torch.Tensor]]:
    return lambda count, g: (torch.randn(count, *shape, generator=g), torch.randint(5, (count,), generator=g))


def _tokens(count: int, g: torch.Generator) -> tuple[Any, torch.Tensor]:
    tokens = torch.randint(32, (count, 10), generator=g)
    return tokens[:, :-1], tokens[:, 1:]


def _clicks(count: int, g: torch.Generator) -> tuple[Any, torch.Tensor]:
    def ids(*shape: int) -> torch.Tensor:
        return torch.randint(150, (count, *shape), generator=g)

    numbers = torch.randn(count, 4, generator=g)
    return {"user": ids(), "item": ids(), "past": ids(5), "numbers": numbers}, (numbers[:, 0] > 0).float()


FAMILIES = {
    "mlp": Family(mlp, _classes(12)),
    "cnn": Family(cnn, _classes(3, 8, 8)),
    "transformer": Family(TinyTransformer, _tokens),
    "recommender": Family(Recommender, _clicks, click_loss),
    "rnn": Family(Recurrent, _classes(7, 6)),
}
