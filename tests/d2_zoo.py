"""What D2 must be able to train: the eight published models of benchmarks/zoo, and a GPT, an MLP and an LSTM.

`trained` is the loss of each step and the sha256 over losses and parameters at the end. Call it under
`install.installed()`: weights and data are then drawn by D2's generator too. The tests, benchmarks/d2.py and whoever
runs the models on a GPU share these.
"""

from __future__ import annotations

import copy
import hashlib
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.zoo import MODELS as PUBLISHED
from benchmarks.zoo import Size, Workload
from benchmarks.zoo.optimizers import adamw, sgd
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

import torchvision_shim  # noqa: F401  before anything imports torchvision
from easyscale.numerics.fingerprint import fingerprint
from easyscale.numerics.kernels import randomness
from easyscale.numerics.kernels.registry import FORMS

SEED = 7


class Sentences(Dataset[Any]):
    """Rows of words; each follows from the one before it, more or less."""

    def __init__(self, count: int, words: int, length: int) -> None:
        generator = torch.Generator().manual_seed(5)
        steps = torch.randint(3, (count, length), generator=generator)
        self.words = (steps.cumsum(1) + torch.arange(count)[:, None]) % words

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> Tensor:
        return self.words[i]


class Points(Dataset[Any]):
    """Points and the class of each: the sum of its numbers, in five steps."""

    def __init__(self, count: int, width: int) -> None:
        self.points = torch.randn(count, width, generator=torch.Generator().manual_seed(6))
        self.kinds = (self.points.sum(1) * 4 / width**0.5).long().clamp(-2, 2) + 2

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.points[i], self.kinds[i]


class Lstm(nn.Module):
    """The next word from the words so far."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.memory = nn.LSTM(width, width, num_layers=2, dropout=0.1, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.memory(self.words(words))
        guesses: Tensor = self.out(states)
        return guesses


def gpt(size: Size) -> nn.Module:
    """GPT-2, at full size that of 124 million parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    if size == "full":
        return GPT2LMHeadModel(GPT2Config())
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=60, n_positions=24, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def mlp(size: Size) -> nn.Module:
    widths = [784, 2048, 2048, 5] if size == "full" else [20, 32, 32, 5]
    layers = [part for wide, narrow in pairwise(widths) for part in (nn.Linear(wide, narrow), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def lstm(size: Size) -> nn.Module:
    return Lstm(10_000, 512) if size == "full" else Lstm(60, 12)


def words_after(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=batch, labels=batch).loss
    return loss


def next_word(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def kind_of_point(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


MODELS: dict[str, Workload] = {
    **PUBLISHED,
    "gpt": Workload(
        title="GPT", batch=8, build=gpt, loss=words_after, optimizer=adamw(6e-4, 0.1), clip=1.0,
        data=lambda size, count: Sentences(count, *((50_257, 1024) if size == "full" else (60, 20))),
    ),
    "mlp": Workload(
        title="MLP", batch=128, build=mlp, loss=kind_of_point, optimizer=sgd(0.05, 1e-4),
        data=lambda size, count: Points(count, 784 if size == "full" else 20),
    ),
    "lstm": Workload(
        title="LSTM", batch=32, build=lstm, loss=next_word, optimizer=sgd(0.5, 0.0), clip=0.25,
        data=lambda size, count: Sentences(count, *((10_000, 36) if size == "full" else (60, 12))),
    ),
}  # fmt: skip


def batches(work: Workload, size: Size, steps: int, batch: int | None = None) -> list[Any]:
    """Mini-batches, one for each step."""
    each = batch or work.batch_of(size)
    data: Any = work.data(size, steps * each)
    return [default_collate([data[i] for i in range(step * each, (step + 1) * each)]) for step in range(steps)]


def steps_of(work: Workload, model: nn.Module, data: list[Any], steps: int | None = None) -> list[float]:
    """Train over the mini-batches, again from the first where there are fewer than steps; the losses."""
    optimizer = work.optimizer(model)
    losses = []
    for step in range(steps or len(data)):
        loss = work.loss(model, data[step % len(data)])
        loss.backward()
        if work.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), work.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trained(name: str, steps: int = 2, size: Size = "small") -> tuple[str, list[float]]:
    """The sha256 over losses, parameters and buffers, and the losses."""
    work = MODELS[name]
    torch.manual_seed(SEED)
    model = work.build(size)
    losses = steps_of(work, model, batches(work, size, steps))
    sha = hashlib.sha256(struct.pack(f"{len(losses)}d", *losses))
    sha.update(fingerprint(model).encode())
    return sha.hexdigest(), losses


@contextmanager
def stock_with_our_random_numbers() -> Iterator[None]:
    """Stock kernels, but D2's random generator: what a model draws (dropout, masks) is then the same at D1 and D2."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that a kernel is replaced
        for form in FORMS.values():
            if form.function.__module__ == randomness.__name__ and "cpu" in form.devices:
                library.impl(form.name, form.function, "CPU")
    try:
        yield
    finally:
        library._destroy()


def twins(name: str, steps: int, size: Size = "small", batch: int | None = None) -> tuple[nn.Module, nn.Module, Any]:
    """Two models of the same weights, and mini-batches for them."""
    torch.manual_seed(SEED)
    model = MODELS[name].build(size)
    return model, copy.deepcopy(model), batches(MODELS[name], size, steps, batch)
