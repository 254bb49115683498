"""By how many lanes and chunks the kernels of softmax should take a row: microseconds on the device, by shape.

    python benchmarks/gpu/d2_softmax.py [--compile NUMBER]      # only compile choice NUMBER: several at a time

Bits do not depend on it. The first line of each table is what `gpu.fused` has; the last line of all names the choices
that are the fastest over all shapes, as `gpu.fused` writes them.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

# ruff: noqa: E402  the line above comes first
import torch
from benchmarks.gpu.d2_timing import Job, Place, Row, profiled, show

from easyscale.numerics.kernels.gpu import fused

SHAPES = ((3072, 4608), (769, 30_522), (4096, 50_257))  # rows and values
Choice = dict[str, int]
FORWARD: tuple[Choice, ...] = tuple({"KEPT": kept} for kept in (fused.KEPT, 4, 16, 32))
BACKWARD: tuple[Choice, ...] = tuple(
    {"SLOPE_LANES": lanes, "SLOPE_KEPT": kept}
    for lanes, kept in (
        (fused.SLOPE_LANES, fused.SLOPE_KEPT), (128, 8), (256, 4), (256, 8), (512, 2), (512, 8), (1024, 2), (1024, 4),
        (2048, 4),
    )
)  # fmt: skip
CALLS = 5


def jobs(rows: int, n: int, forward: bool) -> dict[str, Job]:
    g, y = (torch.rand(rows, n, device="cuda") for _ in range(2))
    if forward:
        return {
            name: (lambda logarithm=logarithm: fused.softmax(y, logarithm, torch.float32))
            for name, logarithm in (("softmax", False), ("log softmax", True))
        }
    return {
        name: (lambda logarithm=logarithm: fused.softmax_backward(g, y, logarithm, torch.float32))
        for name, logarithm in (("softmax", False), ("log softmax", True))
    }


def tried(rows: int, n: int, choice: Choice, place: Place) -> Row:
    row: Row = dict(choice)
    with patch.multiple(fused, **choice):
        for plan in (fused._softmax_plan, fused._softmax_backward_plan):
            plan.cache_clear()
        for name, job in jobs(rows, n, "KEPT" in choice).items():

            def several(job: Job = job) -> None:
                for _ in range(CALLS):
                    job()

            several()
            row[name] = sum(spent for spent, _ in profiled(several, place).values()) / CALLS * 1e3
    for plan in (fused._softmax_plan, fused._softmax_backward_plan):
        plan.cache_clear()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", type=int)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    place = Place("cuda", False, 1, 0.01)
    if chosen.compile is not None:
        choice = (*FORWARD, *BACKWARD)[chosen.compile]
        for rows, n in SHAPES:
            tried(rows, n, choice, place)
        return 0
    best = []
    for title, choices in (("forward", FORWARD), ("backward", BACKWARD)):
        sums = [0.0] * len(choices)
        for rows, n in SHAPES:
            found = [tried(rows, n, choice, place) for choice in choices]
            show(f"{title}, {rows} x {n}", found)
            for i, row in enumerate(found):
                sums[i] += math.log(row["softmax"] * row["log softmax"])
        best.append(choices[sums.index(min(sums))])
    print(" ".join(f"{name}={value}" for choice in best for name, value in choice.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
