"""The generator of the matrix: every two values meet, no excluded row appears, and the rows are the same each time."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parity.pairs import Exclusion, Pairwise


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, list[str]], list[Exclusion]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    factors = {f"f{i}": [f"v{j}" for j in range(size)] for i, size in enumerate(sizes)}
    exclusions = []
    for _ in range(draw(st.integers(0, 4))):
        names = draw(st.lists(st.sampled_from(sorted(factors)), min_size=1, max_size=3, unique=True))
        where = {
            name: draw(st.lists(st.sampled_from(factors[name]), min_size=1, max_size=2, unique=True)) for name in names
        }
        exclusions.append(Exclusion(where, "a reason"))
    return factors, exclusions


def allowed(factors: dict[str, list[str]], exclusions: list[Exclusion]) -> list[dict[str, str]]:
    """By brute force: every row that no exclusion forbids."""
    everything = (dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values()))
    return [row for row in everything if not any(exclusion.forbids(row) for exclusion in exclusions)]


def pairs_in(rows: list[dict[str, str]]) -> set[Any]:
    return {pair for row in rows for pair in itertools.combinations(row.items(), 2)}


@given(problems())
def test_every_pair_that_is_not_excluded_occurs_in_some_row(problem: Any) -> None:
    rows = Pairwise(*problem).rows()
    possible = allowed(*problem)
    assert pairs_in(rows) == pairs_in(possible)
    assert all(row in possible for row in rows)


@given(problems())
def test_the_same_factors_give_the_same_rows(problem: Any) -> None:
    assert Pairwise(*problem).rows() == Pairwise(*problem).rows()


@given(problems())
def test_a_part_is_possible_exactly_if_an_allowed_row_holds_it(problem: Any) -> None:
    pairwise, rows = Pairwise(*problem), allowed(*problem)
    for pair in pairwise.pairs():
        assert pairwise.possible(dict(pair)) == any(set(pair) <= set(row.items()) for row in rows)


def test_a_row_adds_something_and_the_array_is_small() -> None:
    factors = {f"f{i}": [f"v{j}" for j in range(4)] for i in range(10)}
    rows = Pairwise(factors).rows()
    assert len(rows) <= 32  # 16 are the least; all combinations are 1,048,576
    for i in range(len(rows)):
        assert pairs_in(rows[:i]) != pairs_in(rows[: i + 1])
