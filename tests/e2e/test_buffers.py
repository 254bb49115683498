"""Buffers that the script changes itself, outside of forward(): as on the ranks of stock DDP, or refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from cluster import JobFailedError, run_job, run_reference, run_stock, seed_by_hand, splits_of
from easyscale.numerics.fingerprint import fingerprint
from workloads import Vectors

ESTS, SEED = 3, 7


class Masked(nn.Linear):
    """Prunes its weights by a mask that is a buffer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("mask", torch.ones_like(self.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)

    def prune(self) -> None:
        size = self.weight.detach().abs()
        self.mask.copy_((size > size.median()).float())


class Scaled(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * self.scale, self.bias)


def masked() -> nn.Module:
    return nn.Sequential(Masked(12, 16), nn.Tanh(), Masked(16, 5))


def prune(model: Any) -> None:
    for layer in model:
        if isinstance(layer, Masked):
            layer.prune()


def scaled() -> nn.Module:
    return nn.Sequential(Scaled(12, 16), nn.BatchNorm1d(16), nn.Tanh(), Scaled(16, 5))


def rescale(model: Any, rank: int) -> None:
    for layer in model:
        if isinstance(layer, Scaled):
            layer.scale.mul_(1.01 + 0.1 * rank)


def by_hand(make: Callable[[], nn.Module], *, before: bool) -> Callable[[int, int], dict[str, Any]]:
    def train(rank: int, ranks: int) -> dict[str, Any]:
        torch.use_deterministic_algorithms(True)
        seed_by_hand(SEED)
        model, data = make(), Vectors(36)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        sampler = DistributedSampler(data, ranks, rank, seed=SEED)
        ddp = DistributedDataParallel(model)
        seed_by_hand(SEED + rank)
        losses = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for x, y in DataLoader(data, batch_size=3, sampler=sampler):
                if before:
                    rescale(model, rank)
                loss = F.cross_entropy(ddp(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if not before:
                    prune(model)
                losses.append(loss.item())
        return {"fingerprint": fingerprint(model), "losses": losses}

    return train


def pruned_after_the_step(gate: str) -> Callable[[], None]:
    def train() -> None:
        import easyscale as es

        es.init(seed=SEED)
        model = masked()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(36), batch_size=3, shuffle=True))
        if gate == "hook":
            optimizer.register_step_post_hook(lambda *_: prune(model))
        for _ in es.epochs(2):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if gate == "body" or (gate == "completes_step" and loader.completes_step):
                    prune(model)
                es.log(loss=loss)

    return train


def scaled_before_the_forward() -> None:
    import easyscale as es

    es.init(seed=SEED)
    model = scaled()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, loader = es.prepare(model, optimizer, DataLoader(Vectors(36), batch_size=3, shuffle=True))
    for _ in es.epochs(2):
        for x, y in loader:
            rescale(model, es.rank())
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            es.log(loss=loss)


@cache
def stock(before: bool) -> Any:
    return run_stock(by_hand(scaled if before else masked, before=before), ESTS)


GATES = ["completes_step", "hook", "body"]


@pytest.mark.parametrize("split", splits_of(ESTS), ids=str)
@pytest.mark.parametrize("gate", GATES)
def test_a_buffer_made_anew_after_the_step(gate: str, split: tuple[int, ...]) -> None:
    job = run_job(pruned_after_the_step(gate), split)
    assert job["fingerprint"] == stock(False)["fingerprint"]
    assert job["losses"] == stock(False)["losses"]


@pytest.mark.parametrize("gate", GATES)
def test_the_reference_engine_agrees(gate: str) -> None:
    assert run_reference(pruned_after_the_step(gate), ESTS)["fingerprint"] == stock(False)["fingerprint"]


def test_the_masks_matter() -> None:
    """Negative control: without pruning the bits are others."""
    assert run_job(pruned_after_the_step("never"), (ESTS,))["fingerprint"] != stock(False)["fingerprint"]


def test_a_buffer_changed_before_the_forward_on_one_worker() -> None:
    job = run_job(scaled_before_the_forward, (ESTS,))
    assert job["fingerprint"] == stock(True)["fingerprint"]
    assert job["losses"] == stock(True)["losses"]
    assert run_reference(scaled_before_the_forward, ESTS)["fingerprint"] == stock(True)["fingerprint"]


@pytest.mark.parametrize("split", [split for split in splits_of(ESTS) if len(split) > 1], ids=str)
def test_a_buffer_changed_before_the_forward_is_refused_on_several(split: tuple[int, ...]) -> None:
    """What EST 0 writes would have to reach the others before their forward: they are already on their way."""
    with pytest.raises(JobFailedError) as caught:
        run_job(scaled_before_the_forward, split)
    assert caught.value.kind == "UnsupportedError"
    assert "buffer" in caught.value.error
