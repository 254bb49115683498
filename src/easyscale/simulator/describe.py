"""The study of a trace: sizes, run times, load, queueing by size and cause, locality, failures.

After the questions of "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads" (ATC'19). What a
trace does not say stays out: where it has no queueing times, they come from `waits`, the result of a replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from easyscale.core.cluster import Devices, total
from easyscale.simulator.generate import seconds_of
from easyscale.simulator.generator_spec import CLASSES, HOUR
from easyscale.simulator.queueing import Wait
from easyscale.simulator.workload import Arrival, Workload

CLASS_NAMES = ("1", "2-4", "5-8", ">8")
Replayed = Sequence[Wait | None]  # in the order of the workload
Replay = Callable[[Workload], Replayed]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of some seconds."""

    jobs: int
    mean: float
    median: float
    p90: float
    p99: float
    longest: float


@dataclass(frozen=True, kw_only=True)
class SizeClass:
    """Jobs of like size."""

    devices: str
    jobs: int
    share: float
    device_hours_share: float
    run: Spread
    queued: Spread | None
    waited: float | None  # share that waited more than a minute
    failed: float | None  # share


@dataclass(frozen=True, kw_only=True)
class Causes:
    """Shares of all waiting, and of the jobs that waited more than a minute: which was the larger part."""

    fair_share: float
    fragmentation: float
    jobs_fair_share: float
    jobs_fragmentation: float


@dataclass(frozen=True, kw_only=True)
class Locality:
    """`spread`: share of the jobs with several devices that ran on more machines than they needed."""

    spread: float
    lost: float  # share of the device-hours of all jobs that went to being spread


@dataclass(frozen=True, kw_only=True)
class Ending:
    status: str
    jobs: int
    share: float
    device_hours_share: float
    median_seconds: float


@dataclass(frozen=True, kw_only=True)
class Study:
    name: str
    origin: str
    jobs: int
    left_out: tuple[tuple[str, int], ...]
    tenants: int
    applications: int
    hours: float  # from the first submission to the last
    jobs_per_hour: float
    device_hours: float
    offered: float  # devices that would be busy in the mean if each job ran at once
    offered_peak: float  # the same in the busiest hour
    utilization: float | None  # of the given cluster, in the replay, until the last submission
    by_hour: tuple[float, ...]  # jobs by hour of the day against the mean
    classes: tuple[SizeClass, ...]
    queueing: str  # where the queueing times are from: "recorded", "replayed" or ""
    causes: Causes | None
    locality: Locality | None
    endings: tuple[Ending, ...]
    attempts: float | None  # in the mean


@dataclass(frozen=True)
class Columns:
    """A workload as arrays, for figures and plots."""

    time: NDArray[np.float64]
    devices: NDArray[np.float64]
    seconds: NDArray[np.float64]
    queued: NDArray[np.float64] | None
    kind: NDArray[np.int_]  # class of size


def columns(workload: Workload, waits: Replayed | None = None) -> Columns:
    of = workload.arrivals
    devices = np.array([arrival.requested for arrival in of], dtype=float)
    queued: NDArray[np.float64] | None = None
    if any(arrival.past is not None and arrival.past.queued is not None for arrival in of):
        queued = np.array([math.nan if (q := _queued(arrival)) is None else q for arrival in of])
    elif waits is not None:
        queued = np.array([math.nan if wait is None else wait.queued for wait in waits])
    return Columns(
        np.array([arrival.time for arrival in of]),
        devices,
        np.array([seconds_of(arrival) for arrival in of]),
        queued,
        np.searchsorted(CLASSES, devices),
    )


def describe(workload: Workload, *, cluster: Devices | None = None, replay: Replay | None = None) -> Study:
    """`replay`: how the jobs wait on `cluster`; asked where the trace has no queueing times, and for their causes."""
    waits = replay(workload) if replay is not None else None
    data, of = columns(workload, waits), workload.arrivals
    hours = max(float(data.time[-1] - data.time[0]) / HOUR, 1 / HOUR)
    device_hours = float(np.nansum(data.devices * data.seconds)) / HOUR
    recorded = any(arrival.past is not None and arrival.past.queued is not None for arrival in of)
    attempts = [arrival.past.attempts for arrival in of if arrival.past is not None and arrival.past.attempts]
    offered = busy_devices(data.time, data.seconds, data.devices)
    return Study(
        name=workload.name,
        origin=workload.origin,
        jobs=len(of),
        left_out=workload.left_out,
        tenants=len({arrival.needs.tenant for arrival in of}),
        applications=len({arrival.application for arrival in of}),
        hours=hours,
        jobs_per_hour=len(of) / hours,
        device_hours=device_hours,
        offered=float(offered.mean()),
        offered_peak=float(offered.max()),
        utilization=_utilization(of, waits, cluster) if waits is not None and cluster else None,
        by_hour=_by_hour(data.time),
        classes=tuple(_class(place, workload, data, device_hours) for place in range(len(CLASS_NAMES))),
        queueing="recorded" if recorded else "replayed" if waits is not None else "",
        causes=None if waits is None else _causes(waits),
        locality=None if waits is None else _locality(of, waits),
        endings=_endings(workload, data, device_hours),
        attempts=float(np.mean(attempts)) if attempts else None,
    )


def busy_devices(
    start: NDArray[np.float64], seconds: NDArray[np.float64], devices: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Devices in use in each hour until the last start, if each job ran from `start` on."""
    hours = max(1, math.ceil((float(start.max()) - float(start.min())) / HOUR))
    edges = start.min() + np.arange(hours + 1) * HOUR
    # The device-seconds until t are the sum over jobs of devices x what lies before t: running sums do all at once.
    end = start + np.nan_to_num(seconds)
    return np.diff(_before(edges, start, devices) - _before(edges, end, devices)) / HOUR


def _before(
    edges: NDArray[np.float64], times: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sum of weight x (edge - time) over the times before each edge."""
    order = np.argsort(times)
    count = np.searchsorted(times[order], edges)
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    moments = np.concatenate([[0.0], np.cumsum((weights * times)[order])])
    return np.asarray(edges * sums[count] - moments[count])


def _class(place: int, workload: Workload, data: Columns, device_hours: float) -> SizeClass:
    here = data.kind == place
    jobs = [arrival for arrival, mine in zip(workload.arrivals, here, strict=True) if mine]
    queued = None if data.queued is None else data.queued[here]
    failed = [arrival.past.failed for arrival in jobs if arrival.past is not None and arrival.past.failed is not None]
    return SizeClass(
        devices=CLASS_NAMES[place],
        jobs=len(jobs),
        share=len(jobs) / len(workload.arrivals),
        device_hours_share=float(np.nansum(data.devices[here] * data.seconds[here])) / HOUR / device_hours,
        run=_spread(data.seconds[here]),
        queued=None if queued is None else _spread(queued),
        waited=None if queued is None or not len(queued) else float(np.mean(queued > 60.0)),
        failed=sum(failed) / len(failed) if failed else None,
    )


def _spread(values: NDArray[np.float64]) -> Spread:
    values = values[np.isfinite(values)]
    if not len(values):
        return Spread(jobs=0, mean=0.0, median=0.0, p90=0.0, p99=0.0, longest=0.0)
    median, p90, p99 = (float(value) for value in np.quantile(values, (0.5, 0.9, 0.99)))
    mean, longest = float(values.mean()), float(values.max())
    return Spread(jobs=len(values), mean=mean, median=median, p90=p90, p99=p99, longest=longest)


def _causes(waits: Replayed) -> Causes:
    ran = [wait for wait in waits if wait is not None]
    fair, scattered = sum(wait.fair_share for wait in ran), sum(wait.fragmentation for wait in ran)
    waited = [wait for wait in ran if wait.queued > 60.0]
    mostly = sum(wait.fair_share >= wait.fragmentation for wait in waited)
    return Causes(
        fair_share=fair / (fair + scattered) if fair + scattered else 0.0,
        fragmentation=scattered / (fair + scattered) if fair + scattered else 0.0,
        jobs_fair_share=mostly / len(waited) if waited else 0.0,
        jobs_fragmentation=1.0 - mostly / len(waited) if waited else 0.0,
    )


def _locality(of: Sequence[Arrival], waits: Replayed) -> Locality:
    several = [wait for arrival, wait in zip(of, waits, strict=True) if wait is not None and arrival.requested > 1]
    used = lost = 0.0
    for arrival, wait in zip(of, waits, strict=True):
        if wait is not None:
            used += arrival.requested * wait.seconds
            if wait.spread:
                lost += arrival.requested * max(0.0, wait.seconds - seconds_of(arrival))
    spread = sum(wait.spread > 0 for wait in several) / len(several) if several else 0.0
    return Locality(spread=spread, lost=lost / used if used else 0.0)


def _utilization(of: Sequence[Arrival], waits: Replayed, cluster: Devices) -> float:
    """Of the cluster between the first submission and the last: what comes after that only runs empty."""
    pairs = [(arrival, wait) for arrival, wait in zip(of, waits, strict=True) if wait is not None]
    if not pairs or of[-1].time <= of[0].time:
        return 0.0
    start = np.array([arrival.time + wait.queued for arrival, wait in pairs])
    seconds = np.minimum(start + np.array([wait.seconds for _, wait in pairs]), of[-1].time) - start
    devices = np.array([arrival.requested for arrival, _ in pairs])
    return float(np.sum(devices * np.maximum(seconds, 0.0))) / (of[-1].time - of[0].time) / total(cluster)


def _endings(workload: Workload, data: Columns, device_hours: float) -> tuple[Ending, ...]:
    places: dict[str, list[int]] = {}
    for place, arrival in enumerate(workload.arrivals):
        if arrival.past is not None and arrival.past.status:
            places.setdefault(arrival.past.status, []).append(place)
    every = sum(map(len, places.values()))
    return tuple(
        Ending(
            status=status,
            jobs=len(mine),
            share=len(mine) / every,
            device_hours_share=float(np.nansum(data.devices[mine] * data.seconds[mine])) / HOUR / device_hours,
            median_seconds=float(np.nanmedian(data.seconds[mine])),
        )
        for status, mine in sorted(places.items(), key=lambda entry: -len(entry[1]))
    )


def _by_hour(time: NDArray[np.float64]) -> tuple[float, ...]:
    counts = np.bincount((time // HOUR).astype(int) % 24, minlength=24)
    return tuple(float(value) for value in counts / counts.mean())


def _queued(arrival: Arrival) -> float | None:
    return None if arrival.past is None else arrival.past.queued
