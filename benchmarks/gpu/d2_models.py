"""Models that D2 is shown on besides the eight of the zoo: a GPT of 124 million parameters, an MLP and an RNN.

Records of the zoo's kind, so that whoever trains those trains these. transformers is imported when the GPT is built.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.zoo import MODELS
from benchmarks.zoo.optimizers import adamw, sgd
from benchmarks.zoo.record import Size, Workload
from torch import nn
from torch.utils.data import Dataset, TensorDataset

WORDS = {"full": 50_257, "small": 150}
LENGTH = {"full": 512, "small": 24}
WIDTH = {"full": 1024, "small": 16}


class Words(Dataset[Any]):
    """Sentences of random words, and the same ones a place further."""

    def __init__(self, count: int, words: int, length: int) -> None:
        self.words = torch.randint(words, (count, length + 1), generator=torch.Generator().manual_seed(4))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.words[i, :-1], self.words[i, 1:]


def words(size: Size, count: int) -> Words:
    return Words(count, WORDS[size], LENGTH[size])


def gpt(size: Size) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    if size == "full":
        return GPT2LMHeadModel(GPT2Config(use_cache=False))
    narrow = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": WORDS[size]}
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **narrow))


def next_word(model: nn.Module, batch: Any) -> torch.Tensor:
    result = model(batch[0])
    scores = getattr(result, "logits", result)
    return F.cross_entropy(scores.flatten(0, 1), batch[1].flatten())


class Recurrent(nn.Module):
    """Words through an LSTM of two layers with dropout between them."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.memory = nn.LSTM(width, width, num_layers=2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.memory(self.words(words))[0])
        return scores


def few_words(size: Size, count: int) -> Words:
    """Short sentences: an RNN takes one step after the other, each a launch of many small kernels."""
    return Words(count, WORDS["small"], 32 if size == "full" else 8)


def recurrent(size: Size) -> nn.Module:
    return Recurrent(WORDS["small"], WIDTH[size] // 2)


def vectors(size: Size, count: int) -> TensorDataset:
    g = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(count, WIDTH[size], generator=g), torch.randint(10, (count,), generator=g))


def mlp(size: Size) -> nn.Module:
    wide = 4 * WIDTH[size]
    return nn.Sequential(
        nn.Linear(WIDTH[size], wide), nn.GELU(), nn.LayerNorm(wide), nn.Dropout(0.1), nn.Linear(wide, wide), nn.Tanh(),
        nn.Linear(wide, 10),
    )  # fmt: skip


def classified(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


OTHERS: dict[str, Workload] = {
    "gpt": Workload(
        title="GPT-124M", batch=8, build=gpt, data=words, loss=next_word, optimizer=adamw(3e-4, 0.1), clip=1.0
    ),
    "mlp": Workload(title="MLP", batch=256, build=mlp, data=vectors, loss=classified, optimizer=sgd(0.05, 1e-4)),
    "rnn": Workload(title="RNN", batch=64, build=recurrent, data=few_words, loss=next_word, optimizer=adamw(1e-3, 0.0)),
}
ALL: dict[str, Workload] = MODELS | OTHERS
