"""What a simulation leaves behind: a compact record for each job, and the cluster over time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from easyscale.simulator.usage import Curve

Numbers = npt.NDArray[np.float64]


@dataclass(slots=True)
class Records:
    """Columns by job, in the order of the workload. Times in s of virtual time; NaN: it never came to that."""

    submitted: Numbers
    started: Numbers
    finished: Numbers
    alone: Numbers  # seconds on the devices that its user asked for, with nobody else there
    contention: Numbers  # devices asked for by all jobs / devices there, at least 1, mean over its stay
    device_seconds: Numbers
    paused: Numbers  # seconds in switches, starts and warm-ups in which it did not train
    switches: Numbers  # changes of devices while it had work, starts not counted
    lost: Numbers  # global steps done twice because of failures

    @classmethod
    def empty(cls, jobs: int) -> Records:
        return cls(*(np.full(jobs, np.nan) for _ in cls.__slots__))


@dataclass(frozen=True, slots=True)
class Segment:
    """A job of the timeline held these devices from one time to another."""

    job: int
    start: float
    end: float
    devices: dict[str, int]


@dataclass(slots=True, kw_only=True)
class Lending:
    """What a service lent, what training made of it, and how it got it back."""

    owned_seconds: float = 0.0
    demand_seconds: float = 0.0  # what the service itself used
    lent_seconds: float = 0.0
    calls: int = 0
    slowest: float = 0.0  # seconds until a call was answered in full
    violations: int = 0  # calls that were answered too late


@dataclass(slots=True, kw_only=True)
class Result:
    workload: str
    policy: str
    seed: int
    counts: dict[str, int]
    jobs: Records
    curve: Curve
    used_seconds: dict[str, float]
    capacity_seconds: dict[str, float]
    timeline: list[Segment] = field(default_factory=list)
    lending: Lending | None = None
    failures: int = 0
    stragglers: int = 0
    resplits: int = 0
    decisions: int = 0
    events: int = 0
    most_active: int = 0  # jobs in the cluster at once
    wall_seconds: float = 0.0  # of this machine, for the simulation itself
