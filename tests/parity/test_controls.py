"""Negative controls for the matrix: spoil one ingredient inside the workers, and a row must go red.

`tests/e2e/test_controls.py` has the plants for random states, buffers, buckets and sums; here rows of the matrix meet
them, on other plans, with those for epochs, cursors, gates and states that a resume brings back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from e2e.test_controls import (
    seeded_alike,
    without_numpy_state,
    without_python_state,
    without_rank_0_buffers,
    without_rebuilt_buckets,
    without_torch_state,
)
from parity.judge import Plant, judge
from parity.matrix import SPLITS, Row, matrix

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def always_epoch_0() -> None:
    from easyscale.runtime.data.feed import Feed

    original = Feed.open
    Feed.open = lambda self, est, epoch: original(self, est, 0)  # type: ignore[method-assign]


def without_cursor() -> None:
    """A resumed loader begins its epoch again."""
    from easyscale.runtime.data.feed import Feed

    Feed.restore = lambda self, est, cursor: self.open(est, cursor["epoch"])  # type: ignore[method-assign]


def updates_once_an_est() -> None:
    """Schedulers, scalers and averages change in each turn."""
    from easyscale.runtime.gates import Rhythm

    Rhythm.shared_update = lambda self: True  # type: ignore[method-assign]


def without_accumulated_gradients() -> None:
    """What a window left over at the end of an epoch is dropped."""
    from easyscale.runtime.turns import Turns

    original = Turns.batch_drawn

    def batch_drawn(self: Any) -> None:
        assert self.current is not None
        self.contexts[self.current].gradients = None
        original(self)

    Turns.batch_drawn = batch_drawn  # type: ignore[method-assign]


def without_optimizer_state() -> None:
    torch.optim.Optimizer.load_state_dict = lambda self, state: None  # type: ignore[method-assign]


def without_scale() -> None:
    torch.amp.GradScaler.load_state_dict = lambda self, state: None  # type: ignore[method-assign]


def shared(row: Row) -> bool:
    """Some worker has several ESTs from start to end, and enough of them that the order of a sum matters."""
    return row["plan"] in SPLITS and row["plan"] != "N workers" and int(row["N"]) > 2


def resumed(row: Row) -> bool:
    return row["plan"] in ("4 plans", "stop, resume") and row["accumulation"] == "none"


def inline(row: Row) -> bool:
    """Batches are made in the training process, from a map-style data set."""
    return row["data"] in ("in order", "shuffled", "drop_last", "weighted sampler")


CONTROLS: dict[str, tuple[Callable[[Row], bool], Plant]] = {
    "torch random state": (lambda r: shared(r) and inline(r), without_torch_state),
    "Python random state": (lambda r: shared(r) and inline(r), without_python_state),
    "NumPy random state": (lambda r: shared(r) and inline(r), without_numpy_state),
    "a seed for each EST": (lambda r: r["plan"] == "N workers", seeded_alike),
    "rank 0's buffers": (lambda r: r["family"] == "cnn" and shared(r), without_rank_0_buffers),
    "bucket order": (lambda r: shared(r) and r["accumulation"] == "none", without_rebuilt_buckets),
    "epoch": (lambda r: r["data"] == "shuffled", always_epoch_0),
    "cursor": (lambda r: resumed(r) and inline(r), without_cursor),
    "scheduler once a step": (lambda r: r["scheduler"] == "OneCycle each step" and shared(r), updates_once_an_est),
    "average once a step": (
        lambda r: r["average"] == "EMA each step" and r["scheduler"] != "OneCycle each step" and shared(r),
        updates_once_an_est,
    ),
    "gradients of a cut window": (
        lambda r: r["accumulation"] == "3, across epochs" and r["data"] != "drop_last",  # 3 batches: nothing is cut
        without_accumulated_gradients,
    ),
    "optimizer state": (resumed, without_optimizer_state),
    "scale": (lambda r: resumed(r) and "scaler" in r["precision"], without_scale),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_row_goes_red_without(name: str) -> None:
    chosen, plant = CONTROLS[name]
    row = next(row for row in matrix() if chosen(row))
    assert judge(row, plant) != [], row
