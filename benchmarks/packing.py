"""k ESTs in one worker against k processes of stock DDP packed on the same device: throughput and memory.

    python benchmarks/packing.py [--small]

Both do the same k mini-batches and one reduction a global step, under the same settings. The jobs take turns; the
median of their rounds counts. Device memory is what the device reports as used, contexts of the processes included.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from parts.jobs import est_job, medians, stock_job
from parts.workload import chosen, device_name, save


def measure(model: str, k: int, steps: int, rounds: int) -> dict[str, Any]:
    ests, packed = [], []
    for _ in range(rounds):
        ests.append(est_job(model, (k,), steps, "host"))
        packed.append(stock_job(model, k, steps))
    one, many = medians(ests), medians(packed)
    memory = "device_mib" if torch.cuda.is_available() else "host_mib"
    row = {
        "model": model, "k": k, "est_ms": one["step_ms"], "packed_ms": many["step_ms"],
        "speedup": many["step_ms"] / one["step_ms"], "est_cpu_ms": one["cpu_ms"], "packed_cpu_ms": many["cpu_ms"],
        "est_mib": one[memory], "packed_mib": many[memory], "memory_share": one[memory] / many[memory],
        "est_host_mib": one["host_mib"], "packed_host_mib": many["host_mib"], "device": device_name(),
        "torch": torch.__version__,
    }  # fmt: skip
    print(
        f"{model:10} k={k:<2} ESTs {row['est_ms']:8.1f} ms  packed {row['packed_ms']:8.1f} ms  {row['speedup']:.2f}x  "
        f"memory {row['est_mib']:7.0f} against {row['packed_mib']:7.0f} MiB ({row['memory_share']:.2f})",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer rows, one round")
    parser.add_argument("--only", help="rows to measure, such as resnet50:4,bert-base")
    arguments = parser.parse_args()
    small = arguments.small
    counts = (1, 2) if small else (1, 2, 4, 8)
    models = ("resnet50", "bert-base") if torch.cuda.is_available() else ("convnet",)
    steps, rounds = (3, 1) if torch.cuda.is_available() or small else (3, 2)
    if not torch.cuda.is_available():  # the one device that all share is one core
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for model, k in chosen([(model, k) for model in models for k in counts], arguments.only):
        save("packing", [measure(model, k, steps, rounds)], ("model", "k"))


if __name__ == "__main__":
    main()
