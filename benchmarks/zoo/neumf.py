"""NeuMF (He et al., Neural Collaborative Filtering, 2017) on generated ratings of MovieLens-20M's size.

Two towers over users and items: generalised matrix factorisation multiplies their embeddings, a multi-layer perceptron
takes them side by side. One linear layer joins both.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.zoo.record import Size
from torch import nn
from torch.utils.data import Dataset

USERS, ITEMS = 138_493, 26_744  # MovieLens-20M
NEGATIVES = 4  # items that the user did not rate, for each one that he did


class NeuMF(nn.Module):
    def __init__(self, users: int, items: int, factors: int, widths: list[int]) -> None:
        super().__init__()
        self.user_factors, self.item_factors = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_vector, self.item_vector = nn.Embedding(users, widths[0] // 2), nn.Embedding(items, widths[0] // 2)
        for table in (self.user_factors, self.item_factors, self.user_vector, self.item_vector):
            nn.init.normal_(table.weight, std=0.01)
        layers: list[nn.Module] = []
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        self.perceptron = nn.Sequential(*layers)
        self.join = nn.Linear(factors + widths[-1], 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        product = self.user_factors(user) * self.item_factors(item)
        hidden = self.perceptron(torch.cat([self.user_vector(user), self.item_vector(item)], 1))
        logits: torch.Tensor = self.join(torch.cat([product, hidden], 1))
        return logits.squeeze(1)


class Ratings(Dataset[Any]):
    """Sample i: a user, an item, and whether he rated it. Few items are popular, as in the real data."""

    def __init__(self, count: int, users: int, items: int) -> None:
        g = torch.Generator().manual_seed(2)
        self.users = torch.randint(users, (count,), generator=g).tolist()
        self.items = (torch.rand(count, generator=g) ** 3 * items).long().tolist()

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, i: int) -> tuple[int, int, int]:
        return self.users[i], self.items[i], int(i % (NEGATIVES + 1) == 0)


def neumf(size: Size) -> nn.Module:
    if size == "full":
        return NeuMF(USERS, ITEMS, 64, [256, 256, 128, 64])
    return NeuMF(50, 30, 8, [16, 16, 8])


def ratings(size: Size, count: int) -> Ratings:
    return Ratings(count, USERS, ITEMS) if size == "full" else Ratings(count, 50, 30)


def rated(model: nn.Module, batch: Any) -> torch.Tensor:
    user, item, label = batch
    return F.binary_cross_entropy_with_logits(model(user, item), label.float())
