"""Negative controls: leave one ingredient of the promise out, and the comparison must fail.

Each sabotage is applied inside the workers only; the reference stays stock. A control that still agreed would mean that
the tests above cannot see the ingredient.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cluster import run_job, run_stock
from workloads import CNN, MLP, Augmented, Case, by_hand, with_easyscale


class OnlyPython(Augmented):
    def __getitem__(self, i: int) -> Any:
        return self.x[i] + 0.1 * random.random(), self.y[i]


class OnlyNumpy(Augmented):
    def __getitem__(self, i: int) -> Any:
        return self.x[i] + 0.1 * float(np.random.rand()), self.y[i]


def no_dropout() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(12, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5))


def without_python_state() -> None:
    from easyscale.numerics import rng

    fake = type(rng)("random")
    fake.getstate, fake.setstate, fake.seed = random.getstate, lambda state: None, random.seed  # type: ignore[attr-defined]
    rng.random = fake  # type: ignore[assignment]


def without_numpy_state() -> None:
    from easyscale.numerics.rng import NumpyState

    NumpyState.restore = lambda self: None  # type: ignore[method-assign]


def without_torch_state() -> None:
    from easyscale.numerics.rng import RngState

    original = RngState.restore

    def restore(self: Any, *args: Any, **kwargs: Any) -> None:
        kept = torch.default_generator.get_state()
        original(self, *args, **kwargs)
        torch.default_generator.set_state(kept)

    RngState.restore = restore  # type: ignore[method-assign]


def without_rank_0_buffers() -> None:
    from easyscale.runtime.buffers import Buffers

    Buffers.put = lambda self, values: None  # type: ignore[method-assign]


def without_rebuilt_buckets() -> None:
    from easyscale.runtime.reduce import Reducer

    def keep(self: Any, ready: Any) -> None:
        self.ready = list(ready)

    Reducer.rebuild = keep  # type: ignore[method-assign]


def in_ascending_order() -> None:
    from easyscale.runtime import reduce

    def ascending(rows: Any, split: Any, group: Any) -> torch.Tensor:
        total = rows[0].clone()
        for row in rows[1:]:
            total += row
        return total

    reduce.chain_sum = ascending  # type: ignore[assignment]


def scaled_after_the_sum() -> None:
    from easyscale.runtime import reduce

    scale, add = reduce.scale_into, reduce.chain_sum

    def unscaled(views: Any, grads: Any, flat: Any, factor: float) -> None:
        scale(views, grads, flat, 1.0)

    def total(rows: Any, split: Any, group: Any) -> torch.Tensor:
        return add(rows, split, group) / len(rows)

    reduce.scale_into, reduce.chain_sum = unscaled, total


def without_loader_process_state() -> None:
    """All streams of a loader process share its one random state."""
    from easyscale.numerics.rng import RngState

    RngState.restore = lambda self, *args, **kwargs: None  # type: ignore[method-assign]


def seeded_alike() -> None:
    """Every EST continues under the same seed."""
    from easyscale.runtime import turns

    original = turns.seed_all
    turns.seed_all = lambda seed: original(MLP_SEED)


MLP_SEED = 7
CONTROLS: dict[str, tuple[Case, Callable[[], None]]] = {
    "Python random state": (replace(MLP, model=no_dropout, data=OnlyPython), without_python_state),
    "NumPy random state": (replace(MLP, model=no_dropout, data=OnlyNumpy), without_numpy_state),
    "torch random state": (MLP, without_torch_state),
    "a seed for each EST": (MLP, seeded_alike),
    "rank 0's buffers": (CNN, without_rank_0_buffers),
    "rebuilt buckets": (MLP, without_rebuilt_buckets),
    "order of additions": (MLP, in_ascending_order),
    "scaling before the sum": (MLP, scaled_after_the_sum),
    "state of loader processes": (
        replace(MLP, model=no_dropout, data=Augmented, loader={"num_workers": 2}),
        without_loader_process_state,
    ),
}


@cache
def stock(name: str) -> str:
    return str(run_stock(by_hand(CONTROLS[name][0]), 3)["fingerprint"])


@pytest.mark.parametrize("name", CONTROLS)
def test_without_one_ingredient_the_bits_differ(name: str) -> None:
    case, sabotage = CONTROLS[name]

    def train() -> dict[str, Any]:
        sabotage()
        return with_easyscale(case)()

    assert run_job(with_easyscale(case), (3,))["fingerprint"] == stock(name)
    assert run_job(train, (3,))["fingerprint"] != stock(name)


def test_without_the_loader_cursor_a_resumed_run_differs(tmp_path: Path) -> None:
    case = replace(MLP, model=no_dropout, data=Augmented, loader={"num_workers": 2})
    expected = run_stock(by_hand(case), 3)["fingerprint"]

    def train() -> dict[str, Any]:
        from easyscale.runtime.data.feed import Feed

        Feed.restore = lambda self, est, cursor: self.open(est, cursor["epoch"])  # type: ignore[method-assign]
        return with_easyscale(case)()

    run_job(with_easyscale(case), (3,), stop_at=3, handoff=str(tmp_path))
    assert run_job(with_easyscale(case), (2, 1), resume=str(tmp_path))["fingerprint"] == expected
    assert run_job(train, (2, 1), resume=str(tmp_path))["fingerprint"] != expected


def test_without_the_recorded_bucket_order_a_resumed_run_differs(tmp_path: Path) -> None:
    expected = run_stock(by_hand(MLP), 3)["fingerprint"]

    def train() -> dict[str, Any]:
        without_rebuilt_buckets()
        return with_easyscale(MLP)()

    run_job(with_easyscale(MLP), (3,), stop_at=3, handoff=str(tmp_path))
    assert run_job(train, (3,), resume=str(tmp_path))["fingerprint"] != expected
