"""The answers of a fleet, side by side: figures by policy with their spread, and what the report draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from easyscale.simulator.metrics import Figures, Spread, figures, over_seeds
from easyscale.simulator.result import Result, Segment
from easyscale.simulator.usage import Curve

QUANTILES = 200  # points of a distribution in the report


@dataclass(slots=True)
class Outcome:
    """All seeds of one policy. Curves and the timeline are those of the first seed."""

    label: str
    runs: dict[int, Figures] = field(default_factory=dict)
    jct: dict[int, list[float]] = field(default_factory=dict)  # by seed: QUANTILES + 1 quantiles
    curve: Curve | None = None
    timeline: list[Segment] = field(default_factory=list)
    wall_seconds: float = 0.0

    def add(self, seed: int, result: Result) -> None:
        """Keeps the figures and lets the records go."""
        self.runs[seed] = figures(result)
        times = result.jobs.finished - result.jobs.submitted
        self.jct[seed] = np.quantile(times, np.linspace(0, 1, QUANTILES + 1)).tolist()
        self.wall_seconds += result.wall_seconds
        if self.curve is None or seed == min(self.runs):
            self.curve, self.timeline = result.curve, result.timeline

    def spreads(self) -> dict[str, Spread]:
        return over_seeds([self.runs[seed] for seed in sorted(self.runs)])

    def distribution(self) -> list[float]:
        """Quantiles of the JCT, mean over seeds."""
        found: list[float] = np.mean(list(self.jct.values()), axis=0).tolist()
        return found


def as_json(outcomes: Sequence[Outcome], about: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer as plain data: each seed, and mean and spread of each figure."""
    return {
        **about,
        "policies": {
            outcome.label: {
                "figures": {name: asdict(spread) for name, spread in outcome.spreads().items()},
                "seeds": {str(seed): asdict(outcome.runs[seed]) for seed in sorted(outcome.runs)},
                "jct_quantiles": outcome.distribution(),
                "wall_seconds": outcome.wall_seconds,
            }
            for outcome in outcomes
        },
    }


def duration(seconds: float) -> str:
    """`611 s`, `1.48 h`, `3.2 d`: short enough for a column."""
    if seconds < 10_000:
        return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.1f} s"
    return f"{seconds / 3600:.2f} h" if seconds < 360_000 else f"{seconds / 86400:.2f} d"


def with_spread(spread: Spread, seeds: int) -> str:
    """`1.48 h ±3%`"""
    text = duration(spread.mean)
    return f"{text} ±{spread.half / spread.mean:.0%}" if seeds > 1 and spread.mean > 0 else text


COLUMNS = ("policy", "JCT", "median", "p99", "makespan", "util.", "queue", "fair", "worst", "switch")


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """The table: a row a policy, as text, best average JCT first."""
    found: list[tuple[str, ...]] = []
    for outcome in sorted(outcomes, key=lambda outcome: outcome.spreads()["jct"].mean):
        of, seeds = outcome.spreads(), len(outcome.runs)
        found.append((
            outcome.label, with_spread(of["jct"], seeds), duration(of["jct_median"].mean), duration(of["jct_p99"].mean),
            with_spread(of["makespan"], seeds), f"{of['utilization'].mean:.0%}", duration(of["queueing"].mean),
            f"{of['fairness'].mean:.2f}", f"{of['unfairest'].mean:.1f}", f"{of['switches'].mean:.1f}",
        ))  # fmt: skip
    return found
