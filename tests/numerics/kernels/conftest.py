"""Inputs of the tests of operators are random, and the same in every run; no plan outlives what it was made by."""

from __future__ import annotations

import pytest
import torch

from easyscale.numerics.kernels import products


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(20)


@pytest.fixture(autouse=True)
def _plans_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests change the constants by which the form of a product is chosen, which nothing else does."""
    for name in ("_plan", "_batch_plan"):
        monkeypatch.setattr(products, name, getattr(products, name).__wrapped__)
