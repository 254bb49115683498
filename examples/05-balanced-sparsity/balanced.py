"""Plain PyTorch: a network, a task for it, and pruning that leaves as many weights in each block of a row."""

from typing import Any

import torch
from torch import Tensor, nn

WIDTH, CLASSES = 64, 4


def task(samples: int) -> tuple[Tensor, Tensor]:
    """Labels by a network that nobody sees, of a quarter of the inputs."""
    inputs = torch.randn(samples, WIDTH)
    hidden = nn.Sequential(nn.Linear(WIDTH // 4, 32), nn.Tanh(), nn.Linear(32, CLASSES)).requires_grad_(False)
    return inputs, hidden(inputs[:, : WIDTH // 4]).argmax(1)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 64), nn.ReLU(),
        nn.Linear(64, CLASSES),
    )  # fmt: skip


class BalancedPruner:
    """Zeroes the smallest weights, `block` by `block` of each row, to a sparsity that grows over the steps.

    Every `every` steps the masks are made anew from the weights. Between these steps they hold what was pruned at zero.
    What is pruned stays pruned. So the masks are state: the weights alone do not tell them.
    """

    def __init__(
        self, model: nn.Module, *, block: int = 16, sparsity: float = 0.75, until: int = 28, every: int = 4
    ) -> None:
        self.weights = {name: m.weight for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        self.masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in self.weights.items()}
        self.block, self.sparsity, self.until, self.every = block, sparsity, until, every
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """After each step of the optimizer."""
        self.steps += 1
        for name, weight in self.weights.items():
            if self.steps <= self.until and self.steps % self.every == 0:
                self.masks[name] = self._largest(weight, self.masks[name])
            weight.masked_fill_(~self.masks[name], 0)

    def kept(self) -> int:
        """Weights that a block keeps: most of the pruning is early, when the network can still recover."""
        done = min(self.steps / self.until, 1.0)
        return self.block - round(self.block * self.sparsity * (1 - (1 - done) ** 3))

    def _largest(self, weight: Tensor, mask: Tensor) -> Tensor:
        sizes = weight.abs().masked_fill(~mask, -1).unflatten(1, (-1, self.block))
        chosen = sizes.topk(self.kept(), -1).indices
        return torch.zeros_like(sizes, dtype=torch.bool).scatter_(-1, chosen, True).flatten(1)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "masks": self.masks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for name, mask in self.masks.items():
            mask.copy_(state["masks"][name])
