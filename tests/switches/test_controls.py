"""Negative controls: a switch that forgets one ingredient, and the comparison with stock DDP must see it.

Each is planted inside the workers; without the switch the same job agrees, so that it is the switch which is judged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cluster import Result
from easyscale.core.spec import WorkerSpec
from switches.stage import PICTURES, Play, judge, play, stock, wished
from workloads import MLP, Augmented, Case

ESTS = 4
NOISY = replace(MLP, data=Augmented)


def without_cursor(spec: WorkerSpec) -> None:
    """An EST that moves begins its epoch again."""
    from easyscale.runtime.data.feed import Feed

    Feed.restore = lambda self, est, cursor: self.open(est, cursor["epoch"])  # type: ignore[method-assign]


def without_random_state(family: str) -> Callable[[WorkerSpec], None]:
    """An EST that moves goes on with other random numbers."""

    def plant(spec: WorkerSpec) -> None:
        from easyscale.numerics.rng import NumpyState
        from easyscale.runtime import state

        original = state.context_of

        def context_of(*args: Any) -> Any:
            context = original(*args)
            if family == "python":
                context.rng.python = random.Random(5).getstate()
            elif family == "numpy":
                np.random.seed(5)
                context.rng.numpy = NumpyState.capture()
            else:
                context.rng.cpu = torch.Generator().manual_seed(5).get_state()
            return context

        state.context_of = context_of  # type: ignore[assignment]

    return plant


def without_rank_0_buffers(spec: WorkerSpec) -> None:
    """What EST 0 left in the buffers stays where it is."""
    from easyscale.runtime.buffers import Buffers

    Buffers.share_base = lambda self: None  # type: ignore[method-assign]


def without(*path: str) -> Callable[[WorkerSpec], None]:
    """A part of the state does not come to who joins."""

    def plant(spec: WorkerSpec) -> None:
        from easyscale.runtime import joining

        original = joining.receive_tree

        def receive_tree(*args: Any) -> Any:
            tree = original(*args)
            for part in tree["shared"][path[0]]:
                part[path[1]] = {} if isinstance(part[path[1]], dict) else part[path[1]] * 3
            return tree

        joining.receive_tree = receive_tree  # type: ignore[assignment]

    return plant


def without_weights(spec: WorkerSpec) -> None:
    """Who joins keeps the weights with which its script began."""
    from easyscale.runtime import state

    state._load_model = lambda session, snapshot: None  # type: ignore[assignment]


STEPPED = replace(
    MLP, scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 0.8**n), schedule_each_step=True
)
GROW, LEAVE = {1: wished(workers=3)}, {1: wished(leave=0)}
CONTROLS: dict[str, tuple[Case, dict[int, Any], Callable[[WorkerSpec], None]]] = {
    "loader cursor": (PICTURES, GROW, without_cursor),
    "loader cursor of an heir": (PICTURES, LEAVE, without_cursor),
    "torch's random state": (PICTURES, GROW, without_random_state("torch")),
    "python's random state": (NOISY, GROW, without_random_state("python")),
    "numpy's random state": (NOISY, LEAVE, without_random_state("numpy")),
    "rank 0's buffers": (PICTURES, LEAVE, without_rank_0_buffers),
    "optimizer state": (PICTURES, GROW, without("optimizers", "state")),
    "scheduler state": (STEPPED, GROW, without("schedulers", "last_epoch")),
    "weights": (PICTURES, GROW, without_weights),
}


def agrees(played: Play, expected: Result) -> bool:
    try:
        judge(played, expected)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("forgotten", CONTROLS)
def test_a_switch_that_forgets_is_found_out(forgotten: str) -> None:
    case, way, plant = CONTROLS[forgotten]
    expected = stock({id(PICTURES): "pictures", id(NOISY): "noisy"}.get(id(case), "stepped"), case, ESTS)
    played = play(case, (2, 2), way, surround=plant)
    assert not agrees(played, expected)
    assert len(played.plans) == 2  # the switch took place


@pytest.mark.parametrize("forgotten", ["rank 0's buffers", "torch's random state"])
def test_without_a_switch_nothing_is_forgotten(forgotten: str) -> None:
    case, _, plant = CONTROLS[forgotten]
    assert agrees(play(case, (2, 2), surround=plant), stock("pictures", case, ESTS))
