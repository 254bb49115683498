"""State of each EST that the body changes after backward(), from numbers that it draws there.

A worker that dies in the optimizer step has run these bodies; whoever adopts its ESTs runs them once more, and every
number must come out as it did. The state weighs the next loss, so that a wrong one shows in the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from cluster import run_stock, seed_by_hand
from faults.cases import pictures
from faults.judge import Strike, check, run
from workloads import SEED, Scores, _loader_of_rank, _outcome, _whole_loader, cross_entropy

ESTS = 4


class Memory:
    """What one rank remembers of its losses, with some noise."""

    def __init__(self) -> None:
        self.value, self.noise = 1.0, torch.zeros(3)

    def look(self, loss: torch.Tensor) -> None:
        self.noise += torch.rand(3)
        self.value = 0.5 * self.value + float(loss.detach() * torch.rand(()))

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * (1 + 0.1 * self.value) + 0.01 * float(self.noise.sum()) * loss

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "noise": self.noise.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.noise = state["value"], state["noise"].clone()


def train() -> dict[str, Any]:
    import easyscale as es

    case = pictures(ESTS)
    es.init(seed=SEED)
    model, optimizer, _, _ = case.build()
    model, optimizer, loader = es.prepare(model, optimizer, _whole_loader(case), **case.prepare)
    memory = Memory()
    es.register("memory", memory, per_est=True)
    for _ in es.epochs(case.epochs):
        for x, y in loader:
            loss = memory.weigh(cross_entropy(model(x), y))
            loss.backward()
            es.log(loss=loss)
            memory.look(loss)
            optimizer.step()
            optimizer.zero_grad()
            memory.look(loss)
    return _outcome(model, optimizer, None, None, None, Scores())


def by_hand(rank: int, ranks: int) -> dict[str, Any]:
    torch.use_deterministic_algorithms(True)
    case = pictures(ranks)
    seed_by_hand(SEED)
    model, optimizer, _, _ = case.build()
    loader, set_epoch = _loader_of_rank(case, rank, ranks)
    ddp = DistributedDataParallel(model, **case.prepare)
    memory, losses = Memory(), []
    seed_by_hand(SEED + rank)
    for epoch in range(case.epochs):
        set_epoch(epoch)
        for x, y in loader:
            loss = memory.weigh(cross_entropy(ddp(x), y))
            loss.backward()
            losses.append(loss.item())
            memory.look(loss)
            optimizer.step()
            optimizer.zero_grad()
            memory.look(loss)
    result = _outcome(model, optimizer, None, None, None, Scores())
    return {**result, "fingerprint": result["model"], "losses": losses}


stock: Callable[[], dict[str, Any]] = cache(lambda: run_stock(by_hand, ESTS))


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize(
    "place", ["easyscale.runtime.data.feed:Feed.next", "torch.optim:SGD.step", "easyscale.runtime.turns:Turns.end"]
)
def test_it_goes_on_where_it_was(place: str, worker: int) -> None:
    strike = Strike(worker=worker, place=place, step=2, nth=2 if place.endswith("next") else 1)
    check(run("pictures", (2, 2), [strike], train=train), stock(), [strike], lost=1)
