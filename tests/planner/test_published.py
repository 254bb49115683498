"""What EasyScale (SC'23) published, where its files are at hand."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median

import pytest

from easyscale.planner.assignment import assign_types
from easyscale.planner.priors import MEASURED

STEP_TIMES = Path(__file__).parents[2].parent / "shared" / "traces" / "easyscale" / "overhead.csv"


def test_the_published_mapping_of_four_ests_is_found() -> None:
    """Stage 2 of the published check: one V100 with two ESTs, two P100 with one each (ResNet50 at D2)."""
    found = assign_types(4, {"v100": 1, "p100": 2}, {"v100": 0.586, "p100": 1.160})
    assert found.loads == {"v100": (2,), "p100": (1, 1)}


@pytest.mark.skipif(not STEP_TIMES.exists(), reason="needs EasyScale's step times in ../shared/traces")
@pytest.mark.parametrize(("level", "column"), [("D1", "ddp_determinism"), ("D2", "ddp_hetero")])
def test_the_ratios_between_types_are_those_of_the_published_step_times(level: str, column: str) -> None:
    with STEP_TIMES.open() as file:
        rows = list(csv.DictReader(file))
    seconds = {(row["model"], row["gpu"]): float(row[column]) for row in rows}
    for kind, (middle, low, high) in MEASURED[level].items():
        ratios = [taken / seconds[model, "v100"] for (model, gpu), taken in seconds.items() if gpu == kind]
        assert (median(ratios), min(ratios), max(ratios)) == pytest.approx((middle, low, high), abs=0.01)
