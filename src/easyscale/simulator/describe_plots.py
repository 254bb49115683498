"""Plots of the study of a trace. matplotlib comes with the demo extra; it is loaded here and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from easyscale.core.errors import UsageError
from easyscale.simulator.describe import CLASS_NAMES, Columns, Replayed, busy_devices, columns
from easyscale.simulator.generator_spec import HOUR
from easyscale.simulator.workload import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(workload: Workload, folder: Path, *, waits: Replayed | None = None, form: str = "png") -> list[Path]:
    """One file a question. Returns their paths."""
    figure_of = _matplotlib()
    data = columns(workload, waits)
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[tuple[str, Figure]] = []
    for name, draw in (("sizes", _sizes), ("run-times", _run_times), ("load", _load), ("arrivals", _arrivals)):
        drawn.append((name, _drawn(figure_of, draw, data, workload)))
    if data.queued is not None:
        drawn.append(("queueing", _drawn(figure_of, _queueing, data, workload)))
    if waits is not None:
        drawn.append(("causes", _drawn(figure_of, lambda axes, data: _causes(axes, data, waits), data, workload)))
    paths = [folder / f"{workload.name}-{name}.{form}" for name, _ in drawn]
    for path, (_, figure) in zip(paths, drawn, strict=True):
        figure.savefig(path, dpi=120)
    return paths


def _matplotlib() -> Any:
    try:
        from matplotlib.figure import Figure  # no pyplot: nothing global, no display
    except ImportError:
        raise UsageError(
            "Plots need matplotlib, which is not installed.",
            "it is part of the demo extra, because nothing else needs it.",
            'pip install "easyscale-torch[demo]", or leave --plots out.',
        ) from None
    return Figure


def _drawn(figure_of: Any, draw: Any, data: Columns, workload: Workload) -> Figure:
    figure: Figure = figure_of(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    draw(axes, data)
    axes.set_title(workload.name, loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    if workload.origin:
        figure.text(0.995, 0.005, workload.origin, ha="right", va="bottom", fontsize=6, alpha=0.7)
    return figure


def _sizes(axes: Axes, data: Columns) -> None:
    jobs = np.array([np.mean(data.kind == place) for place in range(len(CLASS_NAMES))])
    hours = np.array(
        [np.nansum((data.devices * data.seconds)[data.kind == place]) for place in range(len(CLASS_NAMES))]
    )
    places = np.arange(len(CLASS_NAMES))
    axes.bar(places - 0.2, jobs * 100, 0.4, label="jobs")
    axes.bar(places + 0.2, hours / max(hours.sum(), 1e-9) * 100, 0.4, label="device-hours")
    axes.set_xticks(places, CLASS_NAMES)
    axes.set_xlabel("devices")
    axes.set_ylabel("%")
    axes.legend()


def _run_times(axes: Axes, data: Columns) -> None:
    _distribution(axes, data, data.seconds / 60)
    axes.set_xlabel("run time (minutes)")


def _queueing(axes: Axes, data: Columns) -> None:
    assert data.queued is not None
    _distribution(axes, data, np.maximum(data.queued, 1.0) / 60)
    axes.set_xlabel("queueing time (minutes)")


def _distribution(axes: Axes, data: Columns, values: Any) -> None:
    for place, name in enumerate(CLASS_NAMES):
        mine = np.sort(values[(data.kind == place) & np.isfinite(values)])
        if len(mine):
            shown = mine[np.linspace(0, len(mine) - 1, min(len(mine), 2000)).astype(int)]
            axes.step(
                shown,
                np.linspace(1 / len(mine), 1, len(shown)),
                where="post",
                label=f"{name} device{'s' * (name != '1')}",
            )
    axes.set_xscale("log")
    axes.set_ylabel("share of jobs")
    axes.legend()


def _load(axes: Axes, data: Columns) -> None:
    busy = busy_devices(data.time, data.seconds, data.devices)
    axes.plot(np.arange(len(busy)) / 24, busy, linewidth=0.8)
    axes.set_xlabel("days")
    axes.set_ylabel("devices wanted")


def _arrivals(axes: Axes, data: Columns) -> None:
    counts = np.bincount((data.time // HOUR).astype(int) % 24, minlength=24)
    axes.bar(np.arange(24), counts / counts.mean())
    axes.set_xlabel("hour of the day, from the start of the trace")
    axes.set_ylabel("jobs against the mean")


def _causes(axes: Axes, data: Columns, waits: Replayed) -> None:
    fair, scattered = np.zeros(len(CLASS_NAMES)), np.zeros(len(CLASS_NAMES))
    jobs = np.maximum(np.bincount(data.kind, minlength=len(CLASS_NAMES)), 1)
    for place, wait in zip(data.kind, waits, strict=True):
        if wait is not None:
            fair[place] += wait.fair_share
            scattered[place] += wait.fragmentation
    places = np.arange(len(CLASS_NAMES))
    axes.bar(places, fair / jobs / 60, 0.6, label="fair share")
    axes.bar(places, scattered / jobs / 60, 0.6, bottom=fair / jobs / 60, label="fragmentation")
    axes.set_xticks(places, CLASS_NAMES)
    axes.set_xlabel("devices")
    axes.set_ylabel("minutes queued, mean of a job")
    axes.legend()
