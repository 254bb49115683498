"""A D2 job whose plan changes, whose workers die, that stops and goes on: stock DDP's bits with the same operators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import easyscale.runtime.session  # noqa: F401  once here, not once in each forked worker
from cluster import run_job
from e2e import d2_cases
from e2e.d2_cases import CASES, judge, losses
from easyscale.core.plan import parse_schedule
from elasticity import Fault, Run, run_with_master
from workloads import with_easyscale

pytestmark = pytest.mark.slow

PICTURES = CASES["pictures"]
TESTS = Path(__file__).parents[1]


def assert_judged(run: Run) -> None:
    expected = judge("pictures")
    assert run.exit_code == 0, run.text
    assert run.fingerprint == expected["fingerprint"]
    assert run.state.losses == {int(step): row for step, row in expected["losses"].items()}
    assert run.state.lost_steps == 0


def test_a_job_that_goes_from_four_workers_to_two_to_three_in_flight_keeps_its_bits() -> None:
    run = run_with_master(with_easyscale(PICTURES), parse_schedule("0:4,3:2,5:3", 4), determinism="D2")
    assert_judged(run)
    assert [plan.split for _, plan in run.state.plans] == [(1, 1, 1, 1), (2, 2), (2, 1, 1)]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(worker=1, step=3, place="torch.optim:SGD.step"),
        Fault(worker=0, step=2, place="torch.nn.functional:conv2d", nth=3),
    ],
    ids=["before the update", "in the forward of its second EST"],
)
def test_a_worker_that_is_killed_in_a_step_costs_no_bit(fault: Fault) -> None:
    run = run_with_master(with_easyscale(PICTURES), (2, 2), faults=[fault], determinism="D2")
    assert_judged(run)
    assert len(run.happened("worker-lost")) == 1


def test_a_job_that_stops_goes_on_under_other_plans_with_the_same_bits(tmp_path: Path) -> None:
    """Mixed precision and accumulation: 4 workers, then 1, then 3, with a cut inside an epoch and one at its end."""
    expected, train = judge("words"), with_easyscale(CASES["words"])
    rows: list[Any] = []
    before, result = None, {}
    for i, (split, until) in enumerate([((1, 1, 1, 1), 1), ((4,), 2), ((1, 2, 1), None)]):
        handoff = str(tmp_path / str(i))
        result = run_job(train, split, determinism="D2", stop_at=until, handoff=handoff, resume=before)
        rows += losses(result)
        before = handoff
    assert result["fingerprint"] == expected["fingerprint"]
    assert rows == losses(expected)


def test_the_command_keeps_d2_s_bits_through_a_schedule_and_on_other_threads(tmp_path: Path) -> None:
    flags = ("--ests", "4", "--device", "cpu", "--schedule", "0:2,3:1", "--threads", "2", "--determinism", "d2")
    done = subprocess.run(
        (sys.executable, "-m", "easyscale", "run", *flags, "--report", "report.json", d2_cases.__file__, "pictures"),
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    assert report["fingerprint"] == judge("pictures")["fingerprint"]
    assert list(report["losses"].values()) == losses(judge("pictures"))
