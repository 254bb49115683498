"""The matrix: every row and every split ends with the bits of hand-written DDP. docs/parity.md is its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import run_job
from parity.families import FAMILIES
from parity.judge import differences, judge, stock
from parity.matrix import FACTORS, Row, case, cheap, compiled, matrix, splits
from parity.table import excluded_lines, row_line, split_names
from workloads import with_easyscale

# What torch says about loaders, compilers and schedulers of skipped steps is not what is tested.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ESTS = [int(n) for n in FACTORS["N"]]


def name(row: Row) -> str:
    return f"{row['family']}-{row['N']}-{row['plan']}-{row['data']}".replace(" ", "_")


@pytest.mark.parametrize("row", matrix(), ids=name)
def test_a_row_ends_with_stock_ddps_bits(row: Row) -> None:
    assert judge(row) == []


@pytest.mark.parametrize("row", compiled(), ids=name)
def test_a_compiled_row_ends_with_stock_ddps_bits(row: Row) -> None:
    assert judge(row) == []


@pytest.mark.parametrize("ests", ESTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_of_workers_and_uneven_splits_end_with_stock_ddps_bits(family: str, ests: int) -> None:
    row = cheap(family, ests)
    expected = stock(row)
    assert {str(split): differences(row, [(split, None)], expected) for split in splits(ests)} == {
        str(split): [] for split in splits(ests)
    }


@pytest.mark.parametrize("ests", ESTS)
def test_the_splits_have_each_number_of_workers_and_two_uneven_ones(ests: int) -> None:
    shares = splits(ests)
    assert {len(split) for split in shares} == set(range(1, ests + 1))
    assert all(sum(split) == ests for split in shares)
    if ests > 2:
        assert sum(max(split) != min(split) for split in shares) >= 2


def test_the_scaler_of_the_rows_skips_steps_and_takes_others() -> None:
    row = {**cheap("mlp", 2), "precision": "autocast fp16, scaler"}
    result, untouched = stock(row), stock({**row, "precision": "fp32"})
    assert result["scale"] < case(row).scale
    assert result["optimizer"] != untouched["optimizer"]
    assert len(set(result["losses"]["0"])) == 2


def test_the_page_has_these_rows_splits_and_exclusions() -> None:
    page = (Path(__file__).parents[2] / "docs" / "parity.md").read_text()
    found = [line for line in page.splitlines() if line.startswith("| ")]
    for number, row in enumerate([*matrix(), *compiled()], 1):
        assert sum(line.startswith(row_line(number, row)) for line in found) == 1, "run python tests/parity/table.py"
    assert sum(line.split(" | ")[1] in FACTORS["family"] for line in found) == len(matrix()) + len(compiled())
    for expected in [*excluded_lines(), *(split_names(ests) for ests in ESTS)]:
        assert expected in page, "run python tests/parity/table.py"


def test_after_a_window_that_an_epoch_cuts_off_every_worker_shows_est_0s_buffers(tmp_path: Path) -> None:
    """Said in docs/how-it-works.md and docs/howto/evaluation.md; stock DDP's ranks differ here."""
    row = {**cheap("cnn", 2), "accumulation": "3, across epochs"}

    def train() -> dict[str, str]:
        result = with_easyscale(case(row))()
        (tmp_path / result["model"]).touch()
        return {}

    run_job(train, (1, 1))
    assert len(list(tmp_path.iterdir())) == 1
