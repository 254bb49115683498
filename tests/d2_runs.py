"""Small training runs whose sha256 is the same on every device at D2: a CNN, a transformer, a recommender and an RNN.

Each is called as `(optimizer, autocast, device, steps) -> sha256` over the loss of each step and all parameters and
buffers at the end. Weights and data come from torch's default generator on the CPU and are moved to the device; what
the model draws there (dropout) comes from the device's own generator. Call them under `install.installed()`. The CPU
tests, the tests on a GPU and `tests/gpu/record_golden.py`, which writes the golden fingerprints, all run these.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from easyscale.numerics.fingerprint import fingerprint

OptimizerName = Literal["sgd", "adamw"]
Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], Tensor]

SEED = 20
WORDS = 40
OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "adamw")


class Convolutions(nn.Module):
    """Plain, depthwise, strided and 1x1 convolutions, batch and group norm, pooling and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, stride=2, groups=8, bias=False), nn.GroupNorm(2, 8), nn.SiLU(),
            nn.Conv2d(8, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.AvgPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(12 * 2 * 2, 5))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))
        return scores


class Transformer(nn.Module):
    """Two blocks of causal attention over a sequence of words, GELU, layer norm and dropout; tied output weights."""

    def __init__(self, width: int = 16, longest: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mix(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        widened: Tensor = self.wide(self.second(x))
        return x + widened


class Recommender(nn.Module):
    """Tables of users and items, a bag of tags, pairwise products, a perceptron; Adam-like updates of whole tables."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(30, width), nn.Embedding(20, width)
        self.tags = nn.EmbeddingBag(25, width, mode="mean")
        self.top = nn.Sequential(nn.Linear(3 * width + 3, 24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 1))

    def forward(self, users: Tensor, items: Tensor, tags: Tensor) -> Tensor:
        rows = torch.stack((self.users(users), self.items(items), self.tags(tags)), dim=1)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)[:, [1, 2, 5]]
        score: Tensor = self.top(torch.cat((rows.flatten(1), products), dim=1))
        return score.squeeze(1)


class Recurrent(nn.Module):
    """Words through an LSTM of two layers; the next word is guessed at each place."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.memory = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.memory(self.words(words))
        guesses: Tensor = self.out(states)
        return guesses


@dataclass(frozen=True, slots=True)
class Case:
    """A model, what it is trained on and its loss."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Loss

    def __call__(
        self, optimizer: OptimizerName = "sgd", autocast: bool = False, device: str = "cpu", steps: int = 4
    ) -> str:
        """The sha256 after these steps. The seed is set before the weights, and again before training: by then all data
        is drawn, so that the device's generator is at the same place on every device."""
        torch.manual_seed(SEED)
        model = self.build()
        batches = [self.batch() for _ in range(steps)]
        model.to(device)
        torch.manual_seed(SEED + 1)
        digest = hashlib.sha256()
        for value in self.losses(model, batches, optimizer, autocast):
            digest.update(struct.pack("<d", value))
        digest.update(fingerprint(model).encode())
        return digest.hexdigest()

    def losses(
        self, model: nn.Module, batches: list[Batch], optimizer: OptimizerName = "sgd", autocast: bool = False
    ) -> list[float]:
        """Train on these batches, where the model is."""
        device = next(model.parameters()).device
        chosen = optimizer_of(model, optimizer)
        found = []
        for data in batches:
            placed = tuple(tensor.to(device) for tensor in data)
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                value = self.loss(model, placed)
            chosen.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            chosen.step()
            found.append(value.item())
        return found


def pictures() -> Batch:
    return torch.randn(6, 3, 16, 16), torch.randint(5, (6,))


def kind_of_picture(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


def clicks() -> Batch:
    pairs = torch.randint(30, (16,)), torch.randint(20, (16,)), torch.randint(25, (16, 4))
    return *pairs, torch.randint(2, (16,)).float()


def clicked(model: nn.Module, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(*batch[:3]), batch[3])


def sentences() -> Batch:
    words = torch.randint(WORDS, (4, 10))
    return words[:, :-1], words[:, 1:]


def next_word(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


RUNS: dict[str, Case] = {
    "cnn": Case(Convolutions, pictures, kind_of_picture),
    "transformer": Case(Transformer, sentences, next_word),
    "recommender": Case(Recommender, clicks, clicked),
    "rnn": Case(Recurrent, sentences, next_word),
}


def fingerprints(device: str = "cpu") -> dict[str, str]:
    """Of all runs: each optimizer, in fp32 and under bf16 autocast."""
    return {
        f"{name}/{optimizer}/{'bf16' if autocast else 'fp32'}": run(optimizer, autocast, device)
        for name, run in RUNS.items() for optimizer in OPTIMIZERS for autocast in (False, True)
    }  # fmt: skip


def optimizer_of(model: nn.Module, name: OptimizerName) -> torch.optim.Optimizer:
    """One update a parameter, as D2 jobs have it: torch's default on CUDA is another form, which rounds differently."""
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=False)
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01, foreach=False)
