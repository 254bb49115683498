"""Slices of weights are cut once per global step: the bits are those without, and a changed weight is cut again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import easyscale as es
from cluster import run_job
from easyscale.numerics.kernels import primitives, products, weights
from easyscale.numerics.kernels.portable import products as portable


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    weights.end()


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """What is cut, by the portable kernels."""
    found: list[torch.Size] = []
    stock = portable._cut

    def counting(v: torch.Tensor, slices: int, most: torch.Tensor | None) -> Any:
        found.append(v.shape)
        return stock(v, slices, most)

    monkeypatch.setattr(portable, "_cut", counting)
    return found


def test_a_declared_weight_is_cut_once_until_the_global_step_is_over(cuts: list[torch.Size]) -> None:
    x, w = torch.randn(4, 6), nn.Parameter(torch.randn(5, 6))
    plain = portable.sliced_product(x, w.detach().t(), 4)
    weights.declare([w])
    cuts.clear()
    for _ in range(3):
        assert torch.equal(portable.sliced_product(x, w.detach().t(), 4), plain)
    assert cuts.count(w.shape) == 1
    assert cuts.count(x.shape) == 3, "activations are cut each time"
    weights.forget()
    portable.sliced_product(x, w.detach().t(), 4)
    assert cuts.count(w.shape) == 2


def test_without_a_declaration_nothing_is_kept(cuts: list[torch.Size]) -> None:
    x, w = torch.randn(4, 6), torch.randn(6, 5)
    for _ in range(2):
        portable.sliced_product(x, w, 4)
    assert len(cuts) == 4
    assert not weights._kept


def test_a_weight_that_is_changed_in_place_is_cut_again() -> None:
    x, w = torch.randn(4, 6), nn.Parameter(torch.randn(6, 5))
    weights.declare([w])
    before = portable.sliced_product(x, w, 4)
    with torch.no_grad():
        w[2, 3] += 1
    after = portable.sliced_product(x, w, 4)
    weights.end()
    assert torch.equal(after, portable.sliced_product(x, w, 4))
    assert not torch.equal(after, before), "a negative control: stale slices would have been seen"


def test_other_views_numbers_of_slices_and_layouts_are_kept_apart() -> None:
    w = nn.Parameter(torch.randn(6, 6))
    weights.declare([w])
    x = torch.randn(4, 6)
    kept = [portable.sliced_product(x, v, n) for v in (w, w.t(), w[:, :3], w[:, 3:]) for n in (3, 4)]
    weights.end()
    plain = [portable.sliced_product(x, v, n) for v in (w, w.t(), w[:, :3], w[:, 3:]) for n in (3, 4)]
    assert all(torch.equal(a, b) for a, b in zip(kept, plain, strict=True))


def test_in_inference_mode_nothing_is_kept() -> None:
    with torch.inference_mode():
        w = torch.randn(6, 5)
        weights.declare([w])
        portable.sliced_product(torch.randn(4, 6), w, 4)
    assert not weights._kept


def _job(keeps: bool) -> Any:
    """Two global steps of 4 ESTs with one linear layer by slices; how often its weight was cut."""

    def train() -> dict[str, Any]:
        products.SLICED_FROM, products.SLICED_SIDE, products.SLICED_STEPS = 1, 2, 1
        primitives.use_portable(True)
        if not keeps:
            weights.declare = lambda parameters: None
        found: list[torch.Size] = []
        stock = portable._cut

        def counting(v: torch.Tensor, slices: int, most: torch.Tensor | None) -> Any:
            found.append(v.shape)
            return stock(v, slices, most)

        portable._cut = counting
        es.init(seed=1)
        model: Any = nn.Linear(7, 3, bias=False)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(40, 7, generator=torch.Generator().manual_seed(1)))
        model, optimizer, loader = es.prepare(model, optimizer, DataLoader(data, batch_size=5))
        for _ in es.epochs(1):
            for (x,) in loader:
                model(x).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return {"fingerprint": es.fingerprint(model), "cuts": found.count(torch.Size((3, 7)))}

    return run_job(train, (4,), determinism="D2")


def test_four_ests_cut_a_weight_once_in_each_global_step_and_end_with_the_same_bits() -> None:
    kept, plain = _job(True), _job(False)
    assert kept["fingerprint"] == plain["fingerprint"]
    assert (kept["cuts"], plain["cuts"]) == (2, 8)
