"""What k ESTs on one device cost against the bare loop over the same k mini-batches, side by side in one process.

    python benchmarks/step_cost.py [--small]       # this machine's device; writes results/ and docs/benchmarks.md

The two loops take turns in windows, so that a busy machine slows both. "Bare" is forward and backward of k mini-batches
into the same gradients and one optimizer step: no ESTs, no sums. On a CPU the ratio is one of processor time, and of
several processes: where a process's memory lies moves both loops by up to a tenth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from parts.workload import (
    Batches,
    bare_steps,
    build,
    chosen,
    device_name,
    est_steps,
    in_own_process,
    resident_mib,
    save,
    sgd,
    wait,
)  # fmt: skip
from torch.utils.data import DataLoader

WINDOWS = 3 if torch.cuda.is_available() else 5  # turns of each loop; the median counts
PROCESSES = 3  # on a CPU


def measure(name: str, ests: int, staging: str, steps: int) -> dict[str, Any]:
    """One row: seconds per global step of both loops, and the memory that the ESTs need."""
    import easyscale as es

    es.init(seed=0, ests=ests, staging=staging)  # type: ignore[arg-type]
    device = es.device()
    model, x, y = build(name)
    x, y = x.to(device), y.to(device)
    model.to(device)
    model, optimizer, loader = es.prepare(model, sgd(model), DataLoader(Batches(x, y), batch_size=None))
    est = est_steps(model, optimizer, loader)
    for _ in range(3 * ests):
        next(est)
    memory = peak(device, lambda: [next(est) for _ in range(2 * ests)])
    bare_model = build(name)[0].to(device)
    for ours, theirs in zip(model.parameters(), bare_model.parameters(), strict=True):
        theirs.data = ours.data  # one place in memory: on a CPU another one alone can cost some percent
    bare = bare_steps(bare_model, sgd(bare_model), x, y, ests)
    for _ in range(2):
        next(bare)
    host = {
        "host_bare_ms": host_time(device, ests, lambda: F.cross_entropy(bare_model(x), y).backward()),
        "host_est_ms": host_time(device, ests, lambda: next(est)),
    }
    next(bare)
    times: dict[str, list[tuple[float, float]]] = {"bare": [], "est": []}
    for _ in range(WINDOWS):
        times["bare"].append(window(device, steps, lambda: next(bare)))
        times["est"].append(window(device, steps, lambda: [next(est) for _ in range(ests)]))
    wall = {key: statistics.median(w for w, _ in values) for key, values in times.items()}
    cpu = {key: statistics.median(c for _, c in values) for key, values in times.items()}
    return {
        "model": name, "k": ests, "staging": staging, "bare_ms": wall["bare"] * 1e3, "est_ms": wall["est"] * 1e3,
        "ratio": wall["bare"] / wall["est"], "bare_cpu_ms": cpu["bare"] * 1e3, "est_cpu_ms": cpu["est"] * 1e3,
        "cpu_ratio": cpu["bare"] / cpu["est"], **memory, **host, "switch_us": switch_cost(device),
        "device": device_name(), "torch": torch.__version__,
    }  # fmt: skip


def window(device: torch.device, steps: int, body: Callable[[], Any]) -> tuple[float, float]:
    """Seconds a step: of the clock, and of this process's processor time."""
    wait(device)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        body()
    wait(device)
    return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


def host_time(device: torch.device, count: int, body: Callable[[], Any]) -> float:
    """Milliseconds in which the host launches one mini-batch, when it never has to wait for a full queue."""
    total = 0.0
    for _ in range(count):
        wait(device)
        began = time.perf_counter()
        body()
        total += time.perf_counter() - began
    return total / count * 1e3


def peak(device: torch.device, body: Callable[[], Any]) -> dict[str, float | None]:
    if device.type != "cuda":
        body()
        return {"peak_mib": None, "held_mib": None, "host_mib": resident_mib()}
    wait(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    body()
    wait(device)
    return {
        "peak_mib": torch.cuda.max_memory_allocated(device) / 2**20,
        "held_mib": torch.cuda.max_memory_reserved(device) / 2**20,
        "host_mib": resident_mib(),
    }


def switch_cost(device: torch.device) -> float:
    """Microseconds of the host to put one EST's random states away and take another's up."""
    from easyscale.numerics.rng import RngState

    other = RngState.capture(device)
    began = time.perf_counter()
    for _ in range(200):
        RngState.capture(device)
        other.restore(device)
    return (time.perf_counter() - began) / 200 * 1e6


def plan(small: bool) -> list[tuple[str, int, str, int]]:
    counts = (1, 4) if small else (1, 4, 8, 16)
    if torch.cuda.is_available():
        return [(m, k, s, 2) for m in ("resnet50", "bert-base") for k in counts for s in ("device", "host")]
    return [(m, k, "auto", 1 if small else 2) for m in ("convnet", "encoder") for k in counts]


def run(name: str, ests: int, staging: str, steps: int) -> dict[str, Any]:
    """On a CPU, the process whose ratio is in the middle."""
    processes = 1 if torch.cuda.is_available() else PROCESSES
    key = "ratio" if torch.cuda.is_available() else "cpu_ratio"
    rows = [in_own_process("step_cost.py", "--one", f"{name},{ests},{staging},{steps}") for _ in range(processes)]
    rows.sort(key=lambda row: row[key])
    row: dict[str, Any] = {**rows[len(rows) // 2], "spread": [rows[0][key], rows[-1][key]]}
    memory = f"host {row['host_mib']:7.0f} MiB" + (f"  device {row['peak_mib']:7.0f} MiB" if row["peak_mib"] else "")
    print(
        f"{name:10} k={ests:<3} {staging:7} bare {row['bare_ms']:9.2f} ms  ests {row['est_ms']:9.2f} ms  "
        f"{row['ratio']:.3f} of the bare loop's throughput ({row['cpu_ratio']:.3f} by processor time)  "
        f"switch {row['switch_us']:.0f} us  {memory}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer rows")
    parser.add_argument("--only", help="rows to measure, such as bert-base:16:host,resnet50")
    parser.add_argument("--one", help="MODEL,K,STAGING,STEPS: measure one row and print it as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        name, ests, staging, steps = arguments.one.split(",")
        print(json.dumps(measure(name, int(ests), staging, int(steps))))
    else:
        for row in chosen(plan(arguments.small), arguments.only):
            save("step_cost", [run(*row)], ("model", "k", "staging"))


if __name__ == "__main__":
    main()
