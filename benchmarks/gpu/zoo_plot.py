"""Draws zoo_parity.py's losses: `python benchmarks/gpu/zoo_plot.py RESULTS.json docs/img/models-loss.svg`.

A panel a model: the loss of the last EST through the published schedule on top of the last DDP rank's; the stages of
the plan are shaded.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

STAGES = ("4 workers", "2 workers", "3 workers")
SHADES = ("#ffffff", "#dfe8f2", "#f2e8df")


def draw(everything: dict[str, Any], target: Path) -> None:
    models = everything["models"]
    figure, axes = plt.subplots(2, 4, figsize=(14, 6), squeeze=False)
    for axis, found in zip(axes.flat, models.values(), strict=False):
        panel(axis, found)
    for axis in axes.flat[len(models) :]:
        axis.set_visible(False)
    axes.flat[0].legend(fontsize=8, loc="upper right")
    machine = everything["machine"]
    figure.suptitle(f"Loss of the last EST and of the last DDP rank: {machine['device']}, torch {machine['torch']}")
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)


def panel(axis: Any, found: dict[str, Any]) -> None:
    steps = list(range(found["steps"]))
    edges = [0, *found["stops"], found["steps"]]
    for i, (begin, end) in enumerate(pairwise(edges)):
        axis.axvspan(begin - 0.5, end - 0.5, color=SHADES[i], zorder=0)
        axis.text((begin + end - 1) / 2, 0.02, STAGES[i], transform=axis.get_xaxis_transform(), ha="center", fontsize=7)
    for label, run, style in (("stock DDP", "stock", "k-"), ("EasyScale", "schedule", "r.")):
        result = found["runs"][run]
        if "losses" in result:
            axis.plot(steps, [result["losses"][str(s)][-1] for s in steps], style, label=label)
    verdict = found["runs"]["schedule"]["verdict"]
    axis.set_title(f"{found['title']}: {'same bits' if verdict == 'same' else verdict}", fontsize=10)
    axis.set_xlabel("global step", fontsize=8)
    axis.set_xlim(-0.5, found["steps"] - 0.5)
    axis.margins(y=0.15)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
