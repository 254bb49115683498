"""How kernels of rows should take a row: microseconds on the device, by choices of lanes, chunks and registers.

    python benchmarks/gpu/d2_shapes.py [--only softmax,norm]
    python benchmarks/gpu/d2_shapes.py --compile NUMBER          # only compile choice NUMBER: several at a time

Bits do not depend on it. The first line of each table is what `gpu.fused` and `gpu.rows` have; the last lines name for
each kernel the choice that is the fastest over all shapes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

# ruff: noqa: E402  the line above comes first
import torch
from benchmarks.gpu.d2_timing import Job, Place, Row, profiled, show

from easyscale.numerics.kernels.gpu import fused, rows

Choice = dict[str, int]
Shape = tuple[int, int]  # rows and values
CALLS = 5
LONG, SHORT = ((3072, 4608), (769, 30_522), (4096, 50_257)), ((3072, 768), (4096, 768), (1568, 3072), (100_352, 96))


def softmax(shape: Shape) -> dict[str, Job]:
    x = torch.rand(shape, device="cuda")
    return {
        name: (lambda logarithm=logarithm: fused.softmax(x, logarithm, torch.float32))
        for name, logarithm in (("softmax", False), ("log softmax", True))
    }


def slope(shape: Shape) -> dict[str, Job]:
    g, y = (torch.rand(shape, device="cuda") for _ in range(2))
    return {
        name: (lambda logarithm=logarithm: fused.softmax_backward(g, y, logarithm, torch.float32))
        for name, logarithm in (("softmax", False), ("log softmax", True))
    }


def norm(shape: Shape) -> dict[str, Job]:
    x, w = torch.rand(shape, device="cuda"), torch.rand(shape[1], device="cuda")
    return {"layer norm": lambda: fused.row_norm(x, w, w, shape[0], 1, 1, 1e-5, True, torch.float32)}


def norm_slope(shape: Shape) -> dict[str, Job]:
    g, x = (torch.rand(shape, device="cuda") for _ in range(2))
    w, mean, rstd = torch.rand(shape[1], device="cuda"), *(torch.rand(shape[0], device="cuda") for _ in range(2))
    return {"layer norm": lambda: fused.row_norm_backward(g, x, w, mean, rstd, 1, 1)}


def named(module: Any, *names: str) -> Choice:
    """What is there now."""
    return {name: getattr(module, name) for name in names}


KERNELS: dict[str, tuple[Callable[[Shape], dict[str, Job]], tuple[Shape, ...], tuple[Choice, ...]]] = {
    "softmax": (
        softmax, LONG,
        (
            named(fused, "KEPT", "REGISTERS"), {"KEPT": 16}, {"KEPT": 4, "REGISTERS": 64}, {"KEPT": 8, "REGISTERS": 64},
            {"KEPT": 8, "REGISTERS": 80}, {"KEPT": 16, "REGISTERS": 128},
        ),
    ),
    "slope of softmax": (
        slope, LONG,
        (
            named(fused, "SLOPE_LANES", "SLOPE_KEPT", "SLOPE_REGISTERS"), {"SLOPE_LANES": 1024, "SLOPE_KEPT": 4},
            {"SLOPE_LANES": 512, "SLOPE_KEPT": 8}, {"SLOPE_REGISTERS": 64},
            {"SLOPE_LANES": 1024, "SLOPE_REGISTERS": 64},
            {"SLOPE_LANES": 2048, "SLOPE_REGISTERS": 64}, {"SLOPE_LANES": 1024, "SLOPE_KEPT": 2},
        ),
    ),
    "norm": (
        norm, SHORT, (named(rows, "WARP"), {"WARP": 256}, {"WARP": 512}, {"WARP": 2048}),
    ),
    "slope of norm": (
        norm_slope, SHORT, (named(fused, "KEPT_OF_TWO"), {"KEPT_OF_TWO": 2}, {"KEPT_OF_TWO": 8}),
    ),
}  # fmt: skip
PLANS = (
    fused._softmax_plan, fused._softmax_backward_plan, fused._norm_plan, fused._norm_backward_plan, rows.row_shape,
    rows.row_shape_at_once,
)  # fmt: skip


def forget() -> None:
    for plan in PLANS:
        plan.cache_clear()


def tried(jobs: Callable[[Shape], dict[str, Job]], shape: Shape, choice: Choice, place: Place) -> Row:
    row: Row = {"choice": ", ".join(f"{name} {value}" for name, value in choice.items())}
    with ExitStack() as stack:
        for name, value in choice.items():
            module = fused if hasattr(fused, name) else rows
            stack.enter_context(patch.object(module, name, value))
        forget()
        for name, job in jobs(shape).items():

            def several(job: Job = job) -> None:
                for _ in range(CALLS):
                    job()

            several()
            row[name] = sum(spent for spent, _ in profiled(several, place).values()) / CALLS * 1e3
    forget()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(KERNELS), help="kernels, separated by commas")
    parser.add_argument("--compile", type=int)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    place = Place("cuda", False, 1, 0.01)
    number = 0
    best = []
    for title in chosen.only.split(","):
        jobs, shapes, choices = KERNELS[title]
        if chosen.compile is not None:
            mine = [choice for i, choice in enumerate(choices) if number + i == chosen.compile]
            number += len(choices)
            for shape in shapes if mine else ():
                tried(jobs, shape, mine[0], place)
            continue
        sums = [0.0] * len(choices)
        for shape in shapes:
            found = [tried(jobs, shape, choice, place) for choice in choices]
            show(f"{title}, {shape[0]} x {shape[1]}", found)
            for i, row in enumerate(found):
                sums[i] += sum(math.log(value) for value in row.values() if isinstance(value, float))
        best.append(f"{title}: {choices[sums.index(min(sums))]}")
    print("\n".join(best))
    return 0


if __name__ == "__main__":
    sys.exit(main())
