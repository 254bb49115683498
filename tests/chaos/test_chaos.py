"""Many random events in one run, and in the end stock DDP's bits: no event changes them, none costs a global step.

    EASYSCALE_CHAOS_EVENTS=200 EASYSCALE_CHAOS_SEED=3 pytest -s tests/chaos       # `make chaos` takes a new seed
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.chaos.job import ESTS, Pace, job
from tests.chaos.masters import Masters
from tests.chaos.storm import EVENTS, Storm

from cluster import run_stock
from easyscale.master.limits import Limits
from workloads import by_hand, with_easyscale

COUNT = int(os.environ.get("EASYSCALE_CHAOS_EVENTS", "15"))
SEED = int(os.environ.get("EASYSCALE_CHAOS_SEED", "4"))
STEPS_AN_EVENT = 6  # so that some events meet while others are being dealt with, and most do not
# A worker that hangs is found after two seconds; lost workers are replaced, as often as it takes.
LIMITS = Limits(heartbeat=2.0, start=90.0, grace=20.0, max_restarts=100 * COUNT)


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * COUNT)
def test_random_events_change_no_bit_and_cost_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace()
    case, steps = job(COUNT * STEPS_AN_EVENT + 20, pace)
    stock = run_stock(by_hand(case), ESTS)
    assert len(stock["losses"]) == steps
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    checkpoints = {"checkpoint_dir": str(tmp_path / "checkpoints"), "checkpoint_every": 5}
    masters = Masters(with_easyscale(case), (2, 1, 2), LIMITS, tmp_path, timeout=60.0, **checkpoints)
    storm = Storm(masters, pace, SEED, COUNT, steps)
    print(f"\nEASYSCALE_CHAOS_SEED={SEED} EASYSCALE_CHAOS_EVENTS={COUNT}: {steps} global steps")
    try:
        storm.blow()
        code = masters.wait(120.0)
    except BaseException:
        print(masters.shown(), *storm.log, sep="\n", file=sys.stderr)
        raise
    finally:
        masters.end()
    print(*storm.log, dict(storm.thrown), sep="\n")
    report = masters.report()
    assert code == 0, report.get("error")
    known = {step: _known(losses, stock["losses"][step], int(step) in storm.untold)
             for step, losses in report["losses"].items()}  # fmt: skip
    assert known == stock["losses"]
    assert report["fingerprint"] == stock["fingerprint"]
    assert report["steps"] == steps
    seen = {event["what"] for event in report["events"]}
    if "restarting" not in seen:  # else a storm has killed all workers that had the state, newcomers aside
        assert report["lost_steps"] == 0
    assert {"plan", "worker-lost"} <= seen
    assert COUNT < 50 or set(storm.thrown) == set(EVENTS)


def _known(losses: list[float | None], stock: list[float], untold: bool) -> list[float | None]:
    """A worker that dies while there is no master takes along what it had yet to tell."""
    return [theirs if ours is None and untold else ours for ours, theirs in zip(losses, stock, strict=True)]
