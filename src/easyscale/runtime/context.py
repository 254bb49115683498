"""The EST context: all that belongs to one EST alone and must travel with it.

Random states, loader cursor, registered state; plus what stock DDP would keep on that rank between two synchronised
steps: its own buffers while they are not synchronised, and gradients that `no_sync` has accumulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from easyscale.numerics.rng import RngState


@dataclass(slots=True)
class EstContext:
    est: int
    rng: RngState
    # The next forward starts from rank 0's buffers (DDP's `require_forward_param_sync`).
    synchronise_buffers: bool = True
    buffers: list[torch.Tensor] | None = None
    gradients: list[torch.Tensor | None] | None = None
    registered: dict[str, Any] = field(default_factory=dict)

    def to_tree(self) -> dict[str, Any]:
        return {
            "est": self.est,
            "rng": self.rng.to_tree(),
            "synchronise_buffers": self.synchronise_buffers,
            "buffers": self.buffers,
            "gradients": self.gradients,
            "registered": self.registered,
        }

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> EstContext:
        return cls(
            tree["est"],
            RngState.from_tree(tree["rng"]),
            tree["synchronise_buffers"],
            tree["buffers"],
            tree["gradients"],
            tree["registered"],
        )


def placed_like(current: Any, saved: Any) -> Any:
    """A saved state with its tensors where the object keeps its own: a checkpoint does not know their devices."""
    if isinstance(saved, torch.Tensor):
        return saved.to(current.device) if isinstance(current, torch.Tensor) else saved
    if isinstance(saved, dict):
        inner = current if isinstance(current, dict) else {}
        return {key: placed_like(inner.get(key), value) for key, value in saved.items()}
    if type(saved) in (list, tuple):
        peers = [*current, *[None] * len(saved)] if isinstance(current, (list, tuple)) else [None] * len(saved)
        return type(saved)(placed_like(peer, value) for peer, value in zip(peers, saved, strict=False))
    return saved
