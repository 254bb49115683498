"""Times, errors and tables of benchmarks/gpu/d2.py: stock kernels and D2 in turn, in one process."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from easyscale.numerics.kernels import install

PROFILED = 2  # calls
Row = dict[str, Any]
Kernel = tuple[str, str]  # name and grid
Job = Callable[[], Any]


@dataclass(frozen=True)
class Place:
    """Where it is measured, and how long."""

    device: str
    tiny: bool
    rounds: int
    least: float  # seconds of one measurement

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, job: Job) -> float:
        """Of one call. The first ones compile kernels and are not counted."""
        for _ in range(2):
            job()
        self.wait()
        began = perf_counter()
        job()
        self.wait()
        calls = max(1, min(200, round(self.least / max(perf_counter() - began, 1e-6))))
        began = perf_counter()
        for _ in range(calls):
            job()
        self.wait()
        return (perf_counter() - began) / calls


def profiled(job: Job, place: Place) -> dict[Kernel, tuple[float, int]]:
    """Milliseconds and number of each kernel in one call; on a CPU, of each operator."""
    there = place.device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if there else ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED):
            job()
        place.wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    wanted = ("kernel", "gpu_memcpy", "gpu_memset") if there else ("cpu_op",)
    times: Counter[Kernel] = Counter()
    counts: Counter[Kernel] = Counter()
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in wanted:
            kernel = event["name"], "x".join(map(str, event.get("args", {}).get("grid", ())))
            times[kernel] += event["dur"] / 1e3 / PROFILED
            counts[kernel] += 1
    return {kernel: (spent, round(counts[kernel] / PROFILED)) for kernel, spent in times.most_common()}


def stock_is_deterministic() -> None:
    """The vendor's deterministic fp32: what D1 has on a GPU."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # as in a job
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def level(name: str) -> AbstractContextManager[Any]:
    return install.installed() if name == "d2" else nullcontext()


def compared(job: Job, place: Place) -> Row:
    """Milliseconds of both, and the speed of D2 against stock's (above 1: D2 is faster)."""
    times: dict[str, list[float]] = {"stock": [], "d2": []}
    for _ in range(place.rounds):
        for name, found in times.items():
            with level(name):
                found.append(place.seconds(job))
    speed = median(a / b for a, b in zip(times["stock"], times["d2"], strict=True))
    return {"stock_ms": median(times["stock"]) * 1e3, "d2_ms": median(times["d2"]) * 1e3, "speed": speed}


def on_device(job: Job, place: Place) -> Row:
    """Milliseconds of the kernels alone, of both: what a job costs where the host is ahead of the device."""
    found: Row = {}
    if place.device != "cuda":
        return found
    for name in ("stock", "d2"):
        with level(name):
            for _ in range(3):
                job()
            found[f"{name}_device_ms"] = sum(spent for spent, _ in profiled(job, place).values())
    ratio = found["stock_device_ms"] / found["d2_device_ms"] if found["d2_device_ms"] else 0.0
    return {**found, "device_speed": ratio}


def errors(job: Callable[..., Any], inputs: Sequence[Any]) -> Row:
    """Of both, against fp64: the root of the mean square, relative to the result's; of the worst result."""

    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    exact = _tensors(job(*[wide(x) for x in inputs]))
    found: Row = {}
    for name in ("stock", "d2"):
        with level(name):
            results = _tensors(job(*inputs))
        found[f"{name}_error"] = max(
            float((ours.double() - theirs).norm() / theirs.norm().clamp(min=1e-300))
            for ours, theirs in zip(results, exact, strict=True)
        )
    return found


def _tensors(result: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor) and x.is_floating_point()]


def weighted(rows: Sequence[Row]) -> Row:
    """All layers of a model together: each as often as it occurs."""
    stock, ours = (sum(row[name] * row["count"] for row in rows) for name in ("stock_ms", "d2_ms"))
    return {"stock_ms": stock, "d2_ms": ours, "speed": stock / ours if ours else 0.0}


def show(title: str, rows: Sequence[Row]) -> None:
    """As a Markdown table."""
    if not rows:
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(_cell(row.get(name, '')) for name in columns)} |")
    print(flush=True)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return " ".join(_cell(one) for one in value)
    return str(value)
