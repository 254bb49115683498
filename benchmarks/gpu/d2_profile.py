"""Where the time and the memory of a training step go at D1 and at D2, on a GPU.

    python benchmarks/gpu/d2_profile.py [--models shufflenetv2,yolov3] [--results FILE]
    python benchmarks/gpu/d2_profile.py --device cpu --tiny        # a try of the program without a GPU

Milliseconds of one step: `wall` in a row of steps; `device`, the sum of all that the device did, by torch.profiler, or
where that shows nothing the time of a step whose launches were queued before (`queued`); `host`, until Python has
issued a step on an idle device; `alone`, until that is done. On a CPU, operators count, and those within them too.
Memory in MiB: the most in forward, backward and update, what of it is D2's workspace, and the tensors that are alive
between forward and backward, by size. Kernels are listed with the milliseconds and launches of a step, and the grid
that takes the most of it. Written after each model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "src")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products; read when cuBLAS starts

# ruff: noqa: E402  the lines above come first
import torch
from benchmarks.gpu.d2_models import ALL
from benchmarks.gpu.d2_steps import Step, prepared, trainer
from benchmarks.gpu.d2_timing import Kernel, Place, Row, level, profiled, show, stock_is_deterministic

from easyscale.numerics.kernels.gpu import workspace

RESULTS = ROOT / "benchmarks" / "results" / "d2-profile-gpu.json"
MODELS = ("bert", "swin", "electra", "shufflenetv2", "yolov3", "vgg19", "neumf", "gpt", "resnet50")
TITLES = {"stock": "D1", "d2": "D2"}
SHOWN = {"stock": 5, "d2": 15}  # kernels on the screen
KEPT = 40  # kernels with their grids in the file
CLOCK = 2e9  # cycles a second, about: how long a device is kept waiting


def clocks(step: Step, place: Place) -> Row:
    """Wall time of a step in a row, host time and both together on an idle device; the median of a few."""
    wall = place.seconds(step)
    host, alone = [], []
    for _ in range(1 if place.tiny else 5):
        place.wait()
        began = time.perf_counter()
        step()
        host.append(time.perf_counter() - began)
        place.wait()
        alone.append(time.perf_counter() - began)
    return {"wall": wall * 1e3, "host": median(host) * 1e3, "alone": median(alone) * 1e3}


def queued(step: Step, host: float) -> float:
    """Milliseconds of a step on the device while its launches lie ready. The queue has room for about a thousand: of
    longer steps this is more than their kernels take."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(1.5 * host / 1e3 * CLOCK))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def device_time(step: Step, place: Place, host: float) -> tuple[Row, dict[Kernel, tuple[float, int]]]:
    try:
        kernels = profiled(step, place)
    except RuntimeError as problem:  # no permission to trace, for one
        print(f"no profile: {problem}")
        kernels = {}
    row: Row = {"device": sum(spent for spent, _ in kernels.values()), "launches": sum(n for _, n in kernels.values())}
    if not kernels and place.device == "cuda":
        row["queued"] = queued(step, host)
    return row, kernels


# ------------------------------------------------------------------------------------------------ memory


class Peaks:
    """The most memory of each phase of a step, and what is alive after the forward."""

    def __init__(self, place: Place) -> None:
        self.there = place.device == "cuda"
        self.row: Row = {}
        self.alive: list[str] = []
        if self.there:
            torch.cuda.reset_peak_memory_stats()

    def after(self, phase: str) -> None:
        if not self.there:
            return
        self.row[phase] = torch.cuda.max_memory_allocated() >> 20
        if phase == "forward":
            self.alive = alive()
        torch.cuda.reset_peak_memory_stats()


def alive(shown: int = 8) -> list[str]:
    """The sizes that take the most memory now, as "count x MiB"."""
    sizes: Counter[int] = Counter()
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                sizes[block["size"]] += 1
    largest = sorted(sizes, key=lambda size: size * sizes[size], reverse=True)[:shown]
    return [f"{sizes[size]} x {size / 2**20:.4g}" for size in largest]


# ------------------------------------------------------------------------------------------------ models


def measured(name: str, kind: str, place: Place) -> Row:
    model, batches = prepared(name, "small" if place.tiny else "full", place.device, 1)
    watched: list[Callable[[str], None]] = []

    def after(phase: str) -> None:
        for look in watched:
            look(phase)

    with level(kind):
        step = trainer(ALL[name], model, batches, kind, after)
        for _ in range(1 if place.tiny else 3):
            step()
        place.wait()
        row: Row = {"model": name, "level": TITLES[kind], **clocks(step, place)}
        spent, kernels = device_time(step, place, row["host"])
        peaks = Peaks(place)
        watched.append(peaks.after)
        step()
        row |= {**spent, **peaks.row, "workspace": workspace.held() >> 20, "alive": peaks.alive}
    row["kernels"] = [[*kernel, *found] for kernel, found in list(kernels.items())[:KEPT]]
    row["names"] = by_name(kernels)
    return row


def by_name(kernels: dict[Kernel, tuple[float, int]]) -> list[list[Any]]:
    """Milliseconds, launches, name, and the costliest grid with its milliseconds."""
    found: dict[str, list[Any]] = {}
    for (name, grid), (spent, count) in kernels.items():  # the costliest first
        row = found.setdefault(name, [0.0, 0, name, grid, spent])
        row[0] += spent
        row[1] += count
    return sorted(found.values(), reverse=True)


def short(name: str) -> str:
    for word in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(word, "")
    return name[:34]


def printed(rows: list[Row]) -> None:
    """Short: of a run far away, only the last 12,000 characters may be seen."""
    hidden = ("kernels", "names", "alive")
    show("steps", [{name: value for name, value in row.items() if name not in hidden} for row in rows])
    for row in rows:
        kind = "stock" if row["level"] == "D1" else "d2"
        print(f"{row['model']} {row['level']}: {', '.join(row['alive'])}")
        for spent, count, name, grid, worst in row["names"][: SHOWN[kind]]:
            print(f"{spent:8.2f} x{count:<5}{short(name):34} {worst:.2f} at {grid}")
    print(flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program out")
    parser.add_argument("--results", type=Path, help=f"{RESULTS.name} by default, but for tiny sizes")
    chosen = parser.parse_args()
    models = chosen.models.split(",")
    unknown = [name for name in models if name not in ALL]
    if unknown:
        parser.error(f"no such models: {', '.join(unknown)}")
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu --tiny tries the program out")
    import torchvision_shim  # noqa: F401  torchvision beside a CPU build of torch

    warnings.simplefilter("ignore")  # of operators that have no deterministic form at stock
    stock_is_deterministic()
    results = chosen.results or (None if chosen.tiny else RESULTS)
    everything: Row = json.loads(results.read_text()) if results and results.exists() else {}
    place = Place(chosen.device, chosen.tiny, 1, 0.001 if chosen.tiny else 0.5)
    failed = 0
    for name in models:
        rows = []
        for kind in TITLES:
            try:
                rows.append(measured(name, kind, place))
            except Exception:
                print(f"{name} {TITLES[kind]}: {traceback.format_exc()[-1500:]}", flush=True)
                failed += 1
            if place.device == "cuda":
                torch.cuda.empty_cache()
        printed(rows)
        everything[name] = rows
        if results:
            results.write_text(json.dumps(everything, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
