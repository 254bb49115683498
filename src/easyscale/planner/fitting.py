"""The reduction's cost from what was measured: non-negative least squares, drawn to an expected shape.

With few observations many laws fit. So the unknowns are factors on an expected `Reduction`, all of them drawn gently
to the one factor that explains the observations best on its own: one number of workers scales the expected shape,
several decide between its terms. Errors count in proportion, so that the many cheap reductions are not drowned by a few
dear ones; but not to the last microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from statistics import median

import numpy as np
from numpy.typing import NDArray

from easyscale.planner.reduction import Reduction

GENTLE = 0.005  # weight of the expectation against one observation
COARSE = 0.05  # of the dearest: a smaller reduction is not fitted more closely than this
SHORT = 1e-6  # seconds; no reduction is taken for shorter

# Assumed, until something was measured: a gigabyte a second, half of it between machines, some rounds of small messages
EXPECTED = Reduction(base=1e-3, per_worker=2e-4, seconds_per_byte=1e-9, across_nodes=2.0)


@dataclass(frozen=True, slots=True)
class Observed:
    """The typical reduction of one number of workers, spread over machines or not."""

    workers: int
    across: bool
    seconds: float


def fit(observed: Sequence[Observed], size: float, expected: Reduction = EXPECTED) -> Reduction:
    """`size`: bytes of the gradients. Without observations, what is expected."""
    alone = [entry.seconds for entry in observed if entry.workers == 1]
    expected = replace(expected, bytes=size, alone=median(alone) if alone else expected.alone)
    many = [entry for entry in observed if entry.workers > 1]
    if not many:
        return expected
    terms = [_terms(expected, entry) for entry in many]
    seconds = [max(entry.seconds - expected.alone, SHORT) for entry in many]
    common = median(took / max(sum(of), 1e-12) for took, of in zip(seconds, terms, strict=True))
    factors = [common] * 4 if len(many) == 1 else _factors(np.array(terms), np.array(seconds), common)
    base, per_worker, near, far = factors
    near_byte, far_byte = expected.seconds_per_byte * near, expected.seconds_per_byte * expected.across_nodes * far
    return replace(
        expected,
        base=expected.base * base,
        per_worker=expected.per_worker * per_worker,
        seconds_per_byte=near_byte if near_byte or not far_byte else far_byte,
        across_nodes=max(1.0, far_byte / near_byte) if near_byte else 1.0,
        known=tuple((entry.workers, entry.across, entry.seconds) for entry in many),
    )


def _factors(terms: NDArray[np.float64], seconds: NDArray[np.float64], common: float) -> list[float]:
    """On each term of the expected reduction. A term that no observation has keeps the common one."""
    weight = 1.0 / np.maximum(seconds, COARSE * seconds.max())
    relative = terms * weight[:, None] * common
    seen = relative.max(axis=0) > 0
    drawn = GENTLE * np.eye(int(seen.sum()))
    factors = np.ones(4)
    factors[seen] = non_negative(
        np.vstack([relative[:, seen], drawn]), np.concatenate([seconds * weight, drawn.sum(axis=1)])
    )
    return [common * float(factor) for factor in factors]


def _terms(expected: Reduction, entry: Observed) -> tuple[float, float, float, float]:
    sent = 2.0 * (entry.workers - 1) / entry.workers * expected.bytes * expected.seconds_per_byte
    near, far = (0.0, sent * expected.across_nodes) if entry.across else (sent, 0.0)
    return expected.base, expected.per_worker * (entry.workers - 1), near, far


def non_negative(rows: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least squares solution without negative parts, exactly: few unknowns, so each set of zeros is tried."""
    unknowns = rows.shape[1]
    best, least = np.zeros(unknowns), float(wanted @ wanted)
    for chosen in chain.from_iterable(combinations(range(unknowns), size) for size in range(1, unknowns + 1)):
        part = rows[:, list(chosen)]
        found = np.linalg.lstsq(part, wanted, rcond=None)[0]
        error = float(np.sum((part @ found - wanted) ** 2))
        if np.all(found >= 0) and error < least:
            best, least = np.zeros(unknowns), error
            best[list(chosen)] = found
    return best
