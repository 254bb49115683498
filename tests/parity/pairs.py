"""Covering arrays: few rows in which every two values of different factors meet.

Greedy, one row at a time: from an uncovered pair, each further factor takes the value that meets the most values for
the first time. No randomness, so that a row keeps its place from run to run. Exclusions are rules with a reason; a pair
that no allowed row can hold is not asked for.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Row = dict[str, str]
Value = tuple[str, str]  # factor, value
Pair = tuple[Value, Value]
STARTS = 12  # uncovered pairs from which a row is tried; more give hardly fewer rows


@dataclass(frozen=True)
class Exclusion:
    """Rows that have one of these values in each of these factors are left out, and why."""

    where: Mapping[str, Sequence[str]]
    reason: str

    def forbids(self, row: Mapping[str, str]) -> bool:
        return all(factor in row and row[factor] in values for factor, values in self.where.items())


class Pairwise:
    """The rows for some factors and exclusions."""

    def __init__(self, factors: Mapping[str, Sequence[str]], exclusions: Sequence[Exclusion] = ()) -> None:
        self.factors = {name: list(values) for name, values in factors.items()}
        self.exclusions = list(exclusions)
        bound = {name for exclusion in exclusions for name in exclusion.where}
        self._bound = [name for name in self.factors if name in bound]  # the others can always be filled in
        self._place = {name: i for i, name in enumerate(self.factors)}
        self._hardest = sorted(self.factors, key=lambda name: -len(self.factors[name]))

    def rows(self) -> list[Row]:
        missing = dict.fromkeys(pair for pair in self.pairs() if self.possible(dict(pair)))
        found: list[Row] = []
        while missing:
            used = Counter(value for row in found for value in row.items())
            starts = list(itertools.islice(missing, STARTS))
            tries = [self._grow(start, missing, used) for start in starts]
            found.append(max(tries, key=lambda row: sum(pair in missing for pair in _pairs_of(row))))
            for pair in _pairs_of(found[-1]):
                missing.pop(pair, None)
        return found

    def pairs(self) -> Iterator[Pair]:
        """Every two values of two different factors, those that no row can hold among them."""
        for (f, some), (g, others) in itertools.combinations(self.factors.items(), 2):
            yield from (((f, a), (g, b)) for a in some for b in others)

    def possible(self, part: Row) -> bool:
        """Whether some allowed row holds this part."""
        if any(exclusion.forbids(part) for exclusion in self.exclusions):
            return False
        free = next((name for name in self._bound if name not in part), None)
        return free is None or any(self.possible({**part, free: value}) for value in self.factors[free])

    def _grow(self, start: Pair, missing: Mapping[Pair, None], used: Mapping[Value, int]) -> Row:
        """A row around a pair. Of values that cover as many pairs, the one that is rarest so far."""
        row = dict(start)
        for name in self._hardest:
            if name in row:
                continue
            choices = [value for value in self.factors[name] if self.possible({**row, name: value})]
            row[name] = max(choices, key=lambda value: self._worth(row, (name, value), missing, used))
        return {name: row[name] for name in self.factors}

    def _worth(
        self, row: Row, value: Value, missing: Mapping[Pair, None], used: Mapping[Value, int]
    ) -> tuple[int, int]:
        ordered = (sorted((value, other), key=lambda v: self._place[v[0]]) for other in row.items())
        return sum(tuple(pair) in missing for pair in ordered), -used[value]


def _pairs_of(row: Row) -> Iterator[Pair]:
    return itertools.combinations(row.items(), 2)
