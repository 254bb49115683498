"""Figures of a simulation, and their mean and spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np

from easyscale.simulator.result import Numbers, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one policy with one seed; times in s."""

    jobs: int
    jct: float  # job completion time, submission to end, mean
    jct_median: float
    jct_p99: float
    makespan: float  # first submission to last end
    utilization: float  # device-seconds held / there, until the last end
    by_type: dict[str, float]
    queueing: float  # submission to first device, mean
    fairness: float  # finish-time fairness, mean; below 1: sooner than with a fair share
    fairness_median: float
    unfairest: float
    unfair: float  # share of jobs above 1
    switches: float  # a job
    paused: float  # share of the held time in which a job did not train
    repeated: float  # global steps done twice, all jobs
    gained: float | None = None  # utilization of a service's devices that training added
    violations: int | None = None  # devices that a service got back too late


def figures(result: Result) -> Figures:
    jobs = result.jobs
    jct = jobs.finished - jobs.submitted
    rho = finish_time_fairness(result)
    used, there = result.used_seconds, result.capacity_seconds
    held = float(np.sum(jct - (jobs.started - jobs.submitted)))
    lending = result.lending
    return Figures(
        jobs=len(jct),
        jct=float(np.mean(jct)),
        jct_median=float(np.median(jct)),
        jct_p99=float(np.percentile(jct, 99)),
        makespan=float(np.max(jobs.finished) - np.min(jobs.submitted)),
        utilization=sum(used.values()) / max(sum(there.values()), 1e-9),
        by_type={kind: used[kind] / there[kind] if there[kind] else 0.0 for kind in used},
        queueing=float(np.mean(jobs.started - jobs.submitted)),
        fairness=float(np.mean(rho)),
        fairness_median=float(np.median(rho)),
        unfairest=float(np.max(rho)),
        unfair=float(np.mean(rho > 1.0)),
        switches=float(np.mean(jobs.switches)),
        paused=float(np.sum(jobs.paused)) / held if held > 0 else 0.0,
        repeated=float(np.sum(jobs.lost)),
        gained=lending.lent_seconds / max(lending.owned_seconds, 1e-9) if lending else None,
        violations=lending.violations if lending else None,
    )


def finish_time_fairness(result: Result) -> Numbers:
    """JCT / what it would be with a fair share, by job (after Themis, NSDI'20).

    A fair share: the time alone on what the user asked for, times how often the cluster was asked for while the job
    was there (devices asked for by all jobs / devices there, at least 1).
    """
    jobs = result.jobs
    found: Numbers = (jobs.finished - jobs.submitted) / (jobs.alone * jobs.contention)
    return found[np.isfinite(found)] if not np.all(np.isfinite(found)) else found


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean over seeds and half of a 95% interval of it (by Student's t); 0 with one seed."""

    mean: float
    half: float
    least: float
    most: float


# Student's t, two-sided 95%, by degrees of freedom; beyond the table it is 2 for our purpose
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def spread(values: Sequence[float]) -> Spread:
    found = np.asarray(values, dtype=np.float64)
    free = len(found) - 1
    t = T95[free - 1] if 0 < free <= len(T95) else 2.0
    half = float(np.std(found, ddof=1)) * t / sqrt(len(found)) if free > 0 else 0.0
    return Spread(float(np.mean(found)), half, float(np.min(found)), float(np.max(found)))


def over_seeds(runs: Sequence[Figures]) -> dict[str, Spread]:
    """Each figure over the seeds; types as `by_type.v100`."""
    flat = [flatten(asdict(run)) for run in runs]
    return {name: spread([run[name] for run in flat]) for name in flat[0]}


def flatten(figures: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            found.update({f"{name}.{part}": number for part, number in value.items()})
        elif value is not None:
            found[name] = value
    return found
