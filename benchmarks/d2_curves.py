"""Loss curves at D1 and D2 from the same weights and data: the published models, a GPT, an MLP and an LSTM, small.

    python benchmarks/d2_curves.py [--steps 300] [--only bert,swin]

Both levels draw the same random numbers (D2's generator), so that dropout and masks are the same and only rounding
differs. Mini-batches of 8 samples, 20 of them again and again. One thread. A curve is the loss of each step.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from d2_zoo import MODELS, steps_of, stock_with_our_random_numbers, twins
from easyscale.numerics.kernels import install

HERE = Path(__file__).parent
BATCH, BATCHES = 8, 20


def curves(name: str, steps: int) -> dict[str, Any]:
    """The losses of one model at both levels."""
    stock, ours, data = twins(name, BATCHES, batch=BATCH)
    row: dict[str, Any] = {"model": MODELS[name].title, "name": name}
    for level, model in (("D1", stock), ("D2", ours)):
        torch.manual_seed(1)
        with install.installed() if level == "D2" else stock_with_our_random_numbers():
            losses = steps_of(MODELS[name], model, data, steps)
        row[level] = [float(f"{loss:.6g}") for loss in losses]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default=",".join(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # as in a job
    rows = []
    for name in options.only.split(","):
        began = perf_counter()
        row = curves(name, options.steps)
        rows.append(row)
        last = {level: sum(row[level][-50:]) / len(row[level][-50:]) for level in ("D1", "D2")}
        took = perf_counter() - began
        print(f"{row['model']:14} D1 {last['D1']:9.5g}  D2 {last['D2']:9.5g}  {took:.0f} s", flush=True)
    about = {"torch": torch.__version__, "steps": options.steps, "batch": BATCH, "batches": BATCHES, **install.status()}
    (HERE / "results" / "d2-curves.json").write_text(json.dumps({"about": about, "curves": rows}) + "\n")


if __name__ == "__main__":
    main()
