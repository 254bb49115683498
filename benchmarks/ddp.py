"""N workers of one EST each against stock DDP with N processes; and the bytes that a worker sends at p workers, N ESTs.

    python benchmarks/ddp.py [--small]

The jobs take turns; the median of their rounds counts. Bytes are counted where they are sent, by `bytes_sent` of the
report: the difference of two jobs of different length, over their global steps and the workers.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from parts.jobs import est_job, medians, stock_job
from parts.workload import build, chosen, device_name, save

SPLITS = ((1, 1), (2, 2), (1, 1, 1, 1), (3, 1), (4, 4), (2, 2, 2, 2), (3, 3, 2), (1,) * 8)


def against_stock(model: str, ranks: int, steps: int, rounds: int) -> dict[str, Any]:
    ours, stock = [], []
    for _ in range(rounds):
        ours.append(est_job(model, (1,) * ranks, steps))
        stock.append(stock_job(model, ranks, steps))
    one, other = medians(ours), medians(stock)
    row = {
        "model": model, "n": ranks, "est_ms": one["step_ms"], "ddp_ms": other["step_ms"],
        "ratio": other["step_ms"] / one["step_ms"], "est_cpu_ms": one["cpu_ms"], "ddp_cpu_ms": other["cpu_ms"],
        "cpu_ratio": other["cpu_ms"] / one["cpu_ms"], "device": device_name(), "torch": torch.__version__,
    }  # fmt: skip
    print(
        f"{model:10} N={ranks}  {row['est_ms']:8.1f} ms against {row['ddp_ms']:8.1f} ms: {row['ratio']:.3f} of stock "
        f"DDP's throughput ({row['cpu_ratio']:.3f} by processor time)",
        flush=True,
    )
    return row


def bytes_of(model: str, split: tuple[int, ...]) -> dict[str, Any]:
    gradients = sum(p.numel() * p.element_size() for p in build(model)[0].parameters())
    short, long = est_job(model, split, 1), est_job(model, split, 3)
    steps = long["steps"] - short["steps"]  # what a job sends once, such as the first weights, is in both
    n, p = sum(split), len(split)
    row = {
        "model": model, "split": "+".join(map(str, split)), "n": n, "p": p, "gradient_bytes": gradients,
        "sent": (long["bytes_sent"] - short["bytes_sent"]) / steps / p / gradients, "bound": (n - 1) / n + (p - 1) / p,
        "stock_n": 2 * (n - 1) / n, "stock_p": 2 * (p - 1) / p,
    }  # fmt: skip
    print(
        f"{model:10} {row['split']:12} sends {row['sent']:.3f} x the gradients a worker and step; bound "
        f"{row['bound']:.3f}, stock DDP on N ranks {row['stock_n']:.3f}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer rows, one round")
    parser.add_argument("--only", help="rows to measure, such as resnet50:4,encoder,bytes")
    arguments = parser.parse_args()
    small = arguments.small
    gpu = torch.cuda.is_available()
    counts = (1, 2) if small else (1, 2, 4)
    models = ("resnet50", "bert-base") if gpu else ("convnet", "encoder")
    steps, rounds = (4, 1) if gpu or small else (6, 3)
    for model, n in chosen([(model, n) for model in models for n in counts], arguments.only):
        save("ddp", [against_stock(model, n, steps, rounds)], ("model", "n"))
    splits = () if gpu else SPLITS[:2] if small else SPLITS
    for _, split in chosen([("bytes", split) for split in splits], arguments.only):
        save("bytes", [bytes_of("encoder", split)], ("model", "n", "p", "split"))


if __name__ == "__main__":
    main()
