"""How kernels of rows should take a row: microseconds on the device, by lanes, chunks that a thread keeps, and warps.

    python benchmarks/gpu/d2_shapes.py [--only softmax,norm]
    python benchmarks/gpu/d2_shapes.py --compile 3/16        # only compile that share of the choices: several at once

Bits do not depend on it. `gpu.row_shapes` has the fastest of the choices; the first line of each table is what it has
now, the next ones are the best of those that were tried. A choice that gives other bits is an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

# ruff: noqa: E402  the line above comes first
import torch
from benchmarks.gpu.d2_timing import Row, show
from torch import Tensor

from easyscale.numerics.kernels.gpu import fused, row_shapes, rows
from easyscale.numerics.kernels.gpu.row_shapes import Take

Job = Callable[[], Tensor]
Shape = tuple[int, int]  # rows and values
CALLS = 10
AHEAD = 4_000_000  # cycles for which the device is kept waiting, so that launches are queued
SHOWN = 6
MOST_KEPT = 64  # values of a row for each thread: with more, compilers take minutes
LONG: tuple[Shape, ...] = ((3072, 4608), (769, 30_522), (3072, 1000), (36_864, 384), (100_352, 49))
SHORT: tuple[Shape, ...] = ((3072, 768), (6272, 384), (25_088, 192), (100_352, 96), (1568, 3072), (512, 25_088))
PLANS = (
    fused._softmax_plan, fused._softmax_backward_plan, fused._norm_plan, fused._norm_backward_plan, rows.planned,
    rows._plan,
)  # fmt: skip


def softmax(shape: Shape) -> Job:
    x = torch.randn(shape, device="cuda")
    return lambda: fused.softmax(x, False, torch.float32)


def log_softmax(shape: Shape) -> Job:
    x = torch.randn(shape, device="cuda")
    return lambda: fused.softmax(x, True, torch.float32)


def softmax_backward(shape: Shape) -> Job:
    g, y = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda").softmax(1)
    return lambda: fused.softmax_backward(g, y, False, torch.float32)


def log_softmax_backward(shape: Shape) -> Job:
    g, y = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda").log_softmax(1)
    return lambda: fused.softmax_backward(g, y, True, torch.float32)


def norm(shape: Shape) -> Job:
    x, w = torch.randn(shape, device="cuda"), torch.rand(shape[1], device="cuda")
    return lambda: fused.row_norm(x, w, w, shape[0], 1, 1, 1e-5, True, torch.float32)[0]


def norm_backward(shape: Shape) -> Job:
    g, x = (torch.randn(shape, device="cuda") for _ in range(2))
    w, mean, rstd = torch.rand(shape[1], device="cuda"), x.mean(1), 1 / x.std(1)
    return lambda: fused.row_norm_backward(g, x, w, mean, rstd, 1, 1)


def sums(shape: Shape) -> Job:
    x = torch.randn(shape, device="cuda")
    return lambda: rows.tree_sum(x, (1,), torch.float32)


class Kernel(NamedTuple):
    """What is timed, the tables of `row_shapes` that it goes by, and rows that models have."""

    job: Callable[[Shape], Job]
    tables: tuple[str, ...]
    shapes: tuple[Shape, ...]


KERNELS = {
    "softmax": Kernel(softmax, ("SOFTMAX",), LONG),
    "log softmax": Kernel(log_softmax, ("SOFTMAX",), LONG[1:2]),
    "softmax backward": Kernel(softmax_backward, ("SOFTMAX_BACKWARD",), LONG),
    "log softmax backward": Kernel(log_softmax_backward, ("SOFTMAX_BACKWARD",), LONG[1:2]),
    "norm": Kernel(norm, ("NORM",), SHORT),
    "norm backward": Kernel(norm_backward, ("NORM_BACKWARD",), SHORT),
    "sums": Kernel(sums, ("SUM", "SUM_OF_FEW"), (*LONG[:2], *SHORT[:1], (132, 9000))),
}


def choices(n: int) -> Iterator[Take]:
    """Single rows of several chunks; of short rows, several as one chunk."""
    padded = row_shapes.power(n)
    for lanes in (128, 256, 512, 1024, 2048):
        for chunks in (1, 2, 4, 8, 16):
            for warps in (1, 2, 4, 8, 16):
                if lanes * chunks <= min(padded, 32 * warps * MOST_KEPT) and warps * 32 <= lanes:
                    yield Take(row_shapes.ANY, lanes, chunks, warps)
    for together in (256, 512, 1024, 2048):
        if padded <= together // 2:
            yield Take(row_shapes.ANY, padded, 1, 1, together)


def forget() -> None:
    for plan in PLANS:
        plan.cache_clear()


def microseconds(job: Job) -> float:
    """Of a call whose launches are queued before."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(AHEAD)
    start.record()
    for _ in range(CALLS):
        job()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / CALLS


def tried(kernel: Kernel, job: Job, take: Take) -> Tensor:
    """The result, with this choice in force until `forget`."""
    for table in kernel.tables:
        setattr(row_shapes, table, (take,))
    forget()
    return job().clone()


def table(kernel: Kernel, shape: Shape) -> list[Row]:
    before = {name: getattr(row_shapes, name) for name in kernel.tables}
    job = kernel.job(shape)
    forget()
    wanted = job().clone()
    found: list[Row] = [{"choice": "now", "microseconds": microseconds(job)}]
    try:
        for take in choices(shape[1]):
            assert torch.equal(tried(kernel, job, take), wanted), f"other bits with {take}"
            words = f"{take.lanes} lanes, {take.chunks} chunks, {take.warps} warps"
            words += f", {take.together} values together" if take.together else ""
            found.append({"choice": words, "microseconds": microseconds(job)})
    finally:
        for name, value in before.items():
            setattr(row_shapes, name, value)
        forget()
    return [found[0], *sorted(found[1:], key=lambda row: float(row["microseconds"]))[:SHOWN]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(KERNELS), help="kernels, separated by commas")
    parser.add_argument("--compile", help="a share of the choices, as 0/16")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    mine, shares = map(int, (chosen.compile or "0/1").split("/"))
    number = 0
    for title in chosen.only.split(","):
        kernel = KERNELS[title]
        for shape in kernel.shapes:
            if not chosen.compile:
                show(f"{title}, {shape[0]} x {shape[1]}", table(kernel, shape))
                continue
            job = kernel.job(shape)
            for take in choices(shape[1]):
                number += 1
                if number % shares == mine:
                    tried(kernel, job, take)
    return 0


if __name__ == "__main__":
    sys.exit(main())
