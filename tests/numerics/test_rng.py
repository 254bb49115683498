"""Random states come back to the bit, whatever was drawn in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.rng import RngState, seed_all

DRAWS: list[Callable[[], Any]] = [
    random.random,
    lambda: random.gauss(0, 1),
    lambda: float(np.random.rand()),
    lambda: float(np.random.normal()),  # keeps the other half of a pair
    lambda: np.random.permutation(7).tolist(),
    lambda: torch.rand(3).tolist(),
    lambda: torch.randn(17).tolist(),
]


def sample() -> list[Any]:
    return [draw() for draw in DRAWS]


@given(steps=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, len(DRAWS) - 1), max_size=5)), max_size=12))
@settings(deadline=None, max_examples=80)
def test_streams_that_take_turns_give_what_they_give_alone(steps: list[tuple[int, list[int]]]) -> None:
    alone: dict[int, list[Any]] = {}
    for stream in range(3):
        seed_all(100 + stream)
        alone[stream] = [DRAWS[d]() for s, draws in steps if s == stream for d in draws]
    states = {}
    for stream in range(3):
        seed_all(100 + stream)
        states[stream] = RngState.capture()
    together: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for stream, draws in steps:
        states[stream].restore()
        together[stream] += [DRAWS[d]() for d in draws]
        states[stream] = RngState.capture()
    assert together == alone


@given(before=st.lists(st.integers(0, len(DRAWS) - 1), max_size=6))
@settings(deadline=None, max_examples=40)
def test_a_state_survives_a_checkpoint(before: list[int]) -> None:
    seed_all(5)
    for d in before:
        DRAWS[d]()
    state = RngState.capture()
    expected = sample()
    back = RngState.from_tree(state.to_tree())
    assert back.same_as(state)
    seed_all(6)
    back.restore()
    assert sample() == expected


def test_any_draw_makes_a_state_differ() -> None:
    seed_all(1)
    for draw in DRAWS:
        before = RngState.capture()
        draw()
        assert not RngState.capture().same_as(before)


def test_a_replaced_numpy_generator_is_refused() -> None:
    kept = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        with pytest.raises(UnsupportedError, match="PCG64"):
            RngState.capture()
    finally:
        np.random.set_bit_generator(kept)


def test_both_ways_of_reading_numpys_state_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from easyscale.numerics import rng

    assert rng._half_pair_offset() is not None, "the fast way is not available with this NumPy"
    for draws in range(5):
        np.random.seed(3)
        for _ in range(draws):
            np.random.normal()
        fast = rng.NumpyState.capture()
        with monkeypatch.context() as patch:
            patch.setattr(rng, "_half_pair", lambda: None)
            slow = rng.NumpyState.capture()
            assert fast == slow
            np.random.seed(4)
            slow.restore()
        after = [np.random.normal() for _ in range(3)]
        np.random.seed(4)
        fast.restore()
        assert [np.random.normal() for _ in range(3)] == after
