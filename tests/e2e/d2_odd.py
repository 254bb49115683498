"""Scripts at level D2 with something odd in them, and how it is asserted that they are refused or corrected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from cluster import JobFailedError, run_job
from faults.judge import Marks
from workloads import MLP, SEED, Vectors, mlp

Body = Callable[..., None]


def ordinary(es: Any, model: Any, optimizer: Any, x: Any, y: Any) -> None:
    loss = MLP.loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    es.log(loss=loss)


def job(
    body: Body = ordinary, model: Callable[[], nn.Module] = mlp, first: Callable[[], Any] | None = None,
    updates: Marks | None = None, **init: Any,
) -> Callable[[], Any]:  # fmt: skip
    """A script whose loop body is `body(es, model, optimizer, x, y)`. It counts updates; `first` comes before init."""

    def train() -> dict[str, Any]:
        import easyscale as es

        if first is not None:
            first()
        es.init(seed=SEED, **init)
        m = model()
        optimizer = MLP.optimizer(m.parameters())
        if updates is not None:
            optimizer.register_step_post_hook(lambda *_: updates.raise_())
        m, optimizer, loader = es.prepare(m, optimizer, DataLoader(Vectors(24), batch_size=4))
        for _epoch in es.epochs(1):
            for x, y in loader:
                body(es, m, optimizer, x, y)
        return {}

    return train


def refused(kind: str, *words: str, split: tuple[int, ...] = (2,), level: Any = "D2", **job_: Any) -> str:
    """Before any update of the model."""
    device, updates = job_.pop("device", "cpu"), Marks()
    with pytest.raises(JobFailedError) as caught:
        run_job(job(updates=updates, **job_), split, determinism=level, device=device)
    error = caught.value.error
    assert caught.value.kind == kind, error
    assert "why:" in error
    assert "now:" in error
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert updates[0] == 0
    return error


def told(result: dict[str, Any]) -> list[str]:
    return [event["text"] for event in result["events"] if event["what"] == "corrected"]


class Around(nn.Module):
    """A model with something odd in its forward."""

    def __init__(self, odd: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.odd = mlp(), Odd(odd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.odd(x))  # type: ignore[no-any-return]


class Odd(nn.Module):
    def __init__(self, odd: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = odd

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)
