"""Workers that come, go and die while they train on a GPU: the bits of stock DDP on CUDA tensors.

All workers share the one device, over Gloo. Run by pytest with `-m gpu`, or as a script, which prints a table.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# ruff: noqa: E402  the two lines above come first

from cluster import run_stock
from easyscale.core.plan import parse_schedule
from elasticity import Fault, run_with_master
from workloads import CNN, Case, by_hand, with_easyscale

R = "easyscale.runtime."
PLACES = {
    "loading": f"{R}data.feed:Feed.next",
    "in a sum": f"{R}group:Group.send",
    "all-reduce": f"{R}group:Group.all_reduce",
    "commit": f"{R}undo:Undo.keep",
    "optimizer": "torch.optim:SGD.step",
    "sharing": f"{R}buffers:Buffers.share_base",
}
KILLS = [
    ((2, 2), 0, "loading"), ((2, 2), 1, "optimizer"), ((2, 2), 0, "optimizer"), ((2, 2), 0, "in a sum"),
    ((1, 2, 1), 1, "in a sum"), ((1, 2, 1), 0, "sharing"), ((1, 1, 1, 1), 2, "all-reduce"),
    ((1, 1, 1, 1), 0, "commit"), ((1, 1, 1, 1), 3, "optimizer"),
]  # fmt: skip
SCHEDULES = ["0:4,2:2,3:1,4:3", "0:1,2:2+2,4:3+1", "0:2,1:4,5:1"]
CASES = {
    "device rows": replace(CNN, device="cuda", init={"staging": "device"}),
    "host rows": replace(CNN, device="cuda", init={"staging": "host"}),
}

pytestmark = pytest.mark.gpu


def killed(case: Case, split: tuple[int, ...], victim: int, place: str, step: int = 2) -> tuple[str | None, int]:
    fault = Fault(worker=victim, step=step, place=PLACES[place])
    run = run_with_master(with_easyscale(case), split, faults=[fault], device="cuda", timeout=60)
    return run.fingerprint, len(run.happened("worker-lost"))


def scheduled(case: Case, schedule: str) -> tuple[str | None, int]:
    run = run_with_master(with_easyscale(case), parse_schedule(schedule, 4), device="cuda", timeout=60)
    return run.fingerprint, len(run.state.plans)


@pytest.fixture(scope="module")
def stock() -> str:
    found: str = run_stock(by_hand(CASES["device rows"]), 4)["fingerprint"]
    return found


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize(("split", "victim", "place"), KILLS)
def test_a_killed_worker(stock: str, kind: str, split: tuple[int, ...], victim: int, place: str) -> None:
    assert killed(CASES[kind], split, victim, place) == (stock, 1)


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_changing_plan(stock: str, kind: str, schedule: str) -> None:
    assert scheduled(CASES[kind], schedule) == (stock, len(schedule.split(",")))


if __name__ == "__main__":
    judge = run_stock(by_hand(CASES["device rows"]), 4)["fingerprint"]
    bad = 0
    for kind, case in CASES.items():
        for split, victim, place in KILLS:
            began = time.monotonic()
            outcome = killed(case, split, victim, place)
            same = outcome == (judge, 1)
            bad += not same
            print(f"{kind:12} {split!s:14} worker {victim} {place:12} {'same' if same else outcome} {time.monotonic() - began:.1f} s", flush=True)  # noqa: E501
        for schedule in SCHEDULES:
            began = time.monotonic()
            outcome = scheduled(case, schedule)
            same = outcome == (judge, len(schedule.split(",")))
            bad += not same
            print(f"{kind:12} {schedule:24} {'same' if same else outcome} {time.monotonic() - began:.1f} s", flush=True)
    print(f"{bad} different")
    sys.exit(bool(bad))
