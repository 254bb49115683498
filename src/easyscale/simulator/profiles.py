"""Measured profiles of applications, read from the files of published artifacts. The files are the user's own."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from easyscale.core.errors import UsageError
from easyscale.simulator.tables import PlacementTable, Shape

# Pollux (OSDI'21 artifact): a device holds no more YOLOv3 samples than this; other limits are the largest measured.
_MOST_LOCAL_BATCH = {"yolov3": 8}


@dataclass(eq=False)
class Profile:
    """One application of the Pollux artifact: step times, and how training progresses at measured batch sizes.

    Progress is counted in steps of the initial batch. A step of a larger batch is worth more, by the gradients' noise;
    how much changes from epoch to epoch.
    """

    name: str
    table: PlacementTable
    batches: NDArray[np.float64]  # that were measured, ascending
    progress: NDArray[np.float64]  # at the end of each epoch
    signal: NDArray[np.float64]  # squared norm of the gradient: batch x epoch
    noise: NDArray[np.float64]  # its variance
    least_local_batch: int
    most_local_batch: int
    _memo: dict[float, float] = field(default_factory=dict, repr=False)

    @property
    def initial_batch(self) -> int:
        return int(self.batches[0])

    @property
    def most_batch(self) -> int:
        return int(self.batches[-1])

    def steps(self, batch: float) -> float:
        """Global steps from start to end at this batch."""
        found = self._memo.get(batch)
        if found is None:
            signal, noise = (
                np.array([np.interp(batch, self.batches, epoch) for epoch in values.T])
                for values in (self.signal, self.noise)
            )
            scale = batch / self.initial_batch
            gain = (noise + signal) / (noise / scale + signal)
            found = self._memo[batch] = float(np.sum(np.diff(self.progress, prepend=0.0) / gain))
        return found


@cache
def pollux_profile(folder: Path) -> Profile:
    """`folder` has placements.csv, scalability.csv and validation-BATCH.csv of one application."""
    runs: dict[int, dict[str, NDArray[np.float64]]] = {}
    for path in folder.glob("validation-*.csv"):
        runs[int(path.stem.split("-")[-1])] = _columns(path)
    if not runs:
        raise UsageError(
            f"{folder} is no profile.",
            "there is no validation-BATCH.csv in it.",
            "name the folder with one folder per application (--read profiles=DIR).",
        )
    batches = sorted(runs)
    epochs = min(len(run["progress"]) for run in runs.values())

    def stacked(column: str) -> NDArray[np.float64]:
        return np.stack([runs[batch][column][:epochs] for batch in batches])

    placements, scalability = _columns(folder / "placements.csv"), _columns(folder / "scalability.csv")
    local = placements["local_bsz"]
    return Profile(
        name=folder.name,
        table=_placement_table(placements, scalability),
        batches=np.array(batches, dtype=float),
        progress=stacked("progress").min(axis=0),
        signal=stacked("grad_sqr"),
        noise=stacked("grad_var"),
        least_local_batch=int(local.min()),
        most_local_batch=_MOST_LOCAL_BATCH.get(folder.name, int(local.max())),
    )


def _placement_table(
    placements: Mapping[str, NDArray[np.float64]], scalability: Mapping[str, NDArray[np.float64]]
) -> PlacementTable:
    rows = np.stack([placements[name] for name in ("local_bsz", "step_time", "sync_time")], axis=1)
    shapes = [tuple(map(int, str(int(written)))) for written in placements["placement"]]
    of: dict[Shape, list[int]] = {}
    alike: dict[tuple[int, int, float], list[int]] = {}
    for place, shape in enumerate(shapes):
        of.setdefault(shape, []).append(place)
        alike.setdefault((len(shape), sum(shape), float(rows[place, 0])), []).append(place)
    means = [(*key, *rows[places, 1:].mean(axis=0)) for key, places in sorted(alike.items())]
    names = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    return PlacementTable(
        exact={shape: rows[places][np.argsort(rows[places, 0])] for shape, places in of.items()},
        coarse=np.concatenate([np.array(means), np.stack([scalability[name] for name in names], axis=1)]),
    )


def _columns(path: Path) -> dict[str, NDArray[np.float64]]:
    with _reading(path), path.open(newline="") as file:
        rows = list(csv.DictReader(file))
        return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A file that is not what it should be is the user's to replace, whatever it was that went wrong with it."""
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise UsageError(
            f"{path} is no table of this kind.",
            f"{type(error).__name__}: {error}.",
            "get the file anew, or name another.",
        ) from None


# ------------------------------------------------------------------------------------------ ElasticFlow


@cache
def elasticflow_rates(path: Path) -> dict[int, list[tuple[int, float]]]:
    """One model of ElasticFlow's tables: global batch -> (devices, steps a second). What did not run is left out."""
    rates: dict[int, list[tuple[int, float]]] = {}
    with _reading(path), path.open(newline="") as file:
        reader = csv.reader(file)
        counts = [int(name) for name in next(reader)[1:]]
        for row in reader:
            measured = ((count, float(text or "nan")) for count, text in zip(counts, row[1:], strict=False))
            rates[int(float(row[0]))] = [(count, rate) for count, rate in measured if rate > 0]
    return rates


# ------------------------------------------------------------------------------------------ Gavel

GavelRates = dict[str, dict[tuple[str, int], float]]


@cache
def gavel_rates(path: Path) -> GavelRates:
    """Gavel's throughput file: device type -> (job type, devices) -> steps a second of a job that runs alone."""
    rates: GavelRates = {}
    with _reading(path):
        data = path.read_bytes()
        for kind, jobs in json.loads(gzip.decompress(data) if path.suffix == ".gz" else data).items():
            of = rates.setdefault(kind, {})
            for written, others in jobs.items():
                model, _, count = written.strip("()").rpartition(", ")
                of[model.strip("'\""), int(count)] = float(others["null"])
    return rates


# ------------------------------------------------------------------------------------------ EasyScale

# The names that EasyScale's trace (SC'23 artifact) uses for the models of its table of step times.
_MODEL_OF = {"ncf": "neumf"}


@dataclass(frozen=True)
class StepTimes:
    """Seconds per mini-batch on one device type: as is, deterministic (D0, D1), and on any type alike (D2)."""

    batch: int
    plain: float
    deterministic: float
    hetero: float


@cache
def easyscale_step_times(path: Path) -> dict[str, dict[str, StepTimes]]:
    """EasyScale's overhead.csv: application -> device type -> seconds."""
    found: dict[str, dict[str, StepTimes]] = {}
    with _reading(path), path.open(newline="") as file:
        for row in csv.DictReader(file):
            model = row["model"].lower()
            times = StepTimes(
                int(row["bs"]),
                float(row["ddp_nondeterminism"]),
                float(row["ddp_determinism"]),
                float(row["ddp_hetero"]),
            )
            found.setdefault(model, {})[row["gpu"].lower()] = times
    for name, model in _MODEL_OF.items():
        if model in found:
            found[name] = found[model]
    return found
