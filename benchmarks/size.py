"""Time per global step and memory as the ESTs of a worker, the workers and the model grow.

    python benchmarks/size.py [--small]

Three series, each with one thing that grows: `k` (one worker, N = k), `N` (two workers, or one EST a worker), `model`.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from parts.jobs import est_job
from parts.workload import build, chosen, device_name, save

GPU = torch.cuda.is_available()


def series(small: bool) -> list[tuple[str, float, str, tuple[int, ...]]]:
    """(series, what grows, model, split)."""
    base = "bert-2" if GPU else "mlp-512"
    counts = (1, 2, 4) if small else (1, 4, 16) if GPU else (1, 2, 4, 8, 16, 32)
    rows: list[tuple[str, float, str, tuple[int, ...]]] = [("k", k, base, (k,)) for k in counts]
    rows += [("N on 2 workers", n, base, (n // 2, n // 2)) for n in counts if 1 < n <= 16]
    models = [f"bert-{n}" for n in (1, 3, 9, 27)] if GPU else [f"mlp-{n}" for n in (128, 256, 512, 1024, 2048)]
    for model in models[: 2 if small else None]:
        elements = sum(p.numel() for p in build(model)[0].parameters())
        rows.append(("model", elements, model, (4,)))
    return rows


def measure(name: str, grows: float, model: str, split: tuple[int, ...], steps: int) -> dict[str, Any]:
    job = est_job(model, split, steps, "host")
    row = {
        "series": name, "grows": grows, "model": model, "split": "+".join(map(str, split)), "step_ms": job["step_ms"],
        "cpu_ms": job["cpu_ms"], "host_mib": job["host_mib"], "peak_mib": job["peak_mib"] if GPU else None,
        "device": device_name(), "torch": torch.__version__,
    }  # fmt: skip
    memory = f"{row['host_mib']:8.0f} MiB" + (f"  device {row['peak_mib']:8.0f} MiB" if GPU else "")
    print(f"{name:16} {grows:>12,} {model:10} {row['split']:8} {row['step_ms']:9.2f} ms  {memory}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer and smaller rows")
    parser.add_argument("--only", help="series to measure: k, `N on 2 workers` or model")
    arguments = parser.parse_args()
    for row in chosen(series(arguments.small), arguments.only):
        save("size", [measure(*row, steps=2 if arguments.small else 4)], ("series", "grows", "model"))


if __name__ == "__main__":
    main()
