"""The page of zoo_parity.py's results, which writes it by itself. Once more from a file:

    python benchmarks/gpu/zoo_page.py RESULTS.json docs/parity-models.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = {
    "4": "4 workers", "3": "3 (2+1+1)", "2": "2 (2+2)", "1": "1 (4)", "schedule": "4 -> 2 -> 3",
}  # fmt: skip


def page(everything: dict[str, Any]) -> str:
    machine, models = everything["machine"], everything["models"]
    cuda = f", CUDA {machine['cuda']}" if machine["cuda"] else ""
    lines = [
        "# Parity of the published models",
        "",
        f"Written by `python benchmarks/gpu/zoo_parity.py` on one {machine['device']}, torch {machine['torch']}{cuda},",
        f"torchvision {machine['torchvision']}, transformers {machine['transformers']}, Python {machine['python']}.",
        f"Models of `benchmarks/zoo` at {everything['size']} size, fp32 without TF32, generated data, D1, 4 ESTs.",
        "",
        "The judge is hand-written stock DDP over Gloo with 4 processes on the same device. A column is a plan; the",
        "last one is the published schedule: 4 workers, then 2, then 3 of which one has two ESTs. `same`: the final",
        "sha256, and each loss of each EST at each step.",
        "",
        f"| model | batch | parameters | gradients, MiB | steps | {' | '.join(COLUMNS.values())} | sha256 | s |",
        "|---" * (len(COLUMNS) + 7) + "|",
    ]
    lines += [row(found) for found in models.values()]
    good = sum(found["good"] for found in models.values())
    lines += ["", f"{good} of {len(models)} models have stock DDP's bits on every plan. `s`: seconds for all runs of a"]
    lines += ["model, several at a time on the one device; no measure of speed.", ""]
    lines += ["![Loss of the last EST and of the last rank of stock DDP, step by step](img/models-loss.svg)", ""]
    lines += [note for found in models.values() for note in notes(found)]
    return "\n".join(lines)


def row(found: dict[str, Any]) -> str:
    runs = found["runs"]
    cells = [runs[label]["verdict"] for label in COLUMNS]
    cells = [cell if cell == "same" else f"**{cell}**" for cell in cells]
    sha = runs["stock"].get("fingerprint", "")[:12] or "failed"
    return (
        f"| {found['title']} | {found['batch']} | {found['parameters']:,} | {found['parameters'] * 4 / 2**20:.1f} | "
        f"{found['steps']} | {' | '.join(cells)} | {sha} | {found['seconds']:.0f} |"
    )


def notes(found: dict[str, Any]) -> list[str]:
    lines = []
    if "stock_agrees_with_itself" in found:
        word = "the same" if found["stock_agrees_with_itself"] else "other"
        lines += [f"- {found['title']}: a second run of stock DDP had {word} bits as its first one."]
    for label, run in found["runs"].items():
        if "error" in run:
            last = run["error"].strip().splitlines()[-1]
            lines += [f"- {found['title']}, {COLUMNS.get(label, label)}: failed with `{last[:200]}`."]
    return lines


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(page(json.loads(Path(sys.argv[1]).read_text())))
