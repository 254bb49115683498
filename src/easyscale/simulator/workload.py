"""What is to be simulated: jobs that arrive, with what they need and how fast they are. Made by readers and generators.
"""

from __future__ import annotations

from dataclasses import dataclass

from easyscale.core.cluster import Needs
from easyscale.planner.speed import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What the trace says that happened to the job where it was recorded. None: it does not say."""

    seconds: float | None = None  # that it ran
    queued: float | None = None  # seconds from its submission to its first start
    status: str = ""  # the trace's own word
    failed: bool | None = None
    attempts: int | None = None
    nodes: int | None = None  # machines of its last attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One job of a trace. `work` is in global steps; `speed` says how many of them a second."""

    name: str  # unlike all others of the workload
    time: float
    needs: Needs
    speed: Speed
    work: float
    requested: int  # devices that its user asked for, which policies without elasticity give it
    kind: str = ""  # the type that its user asked for
    application: str = ""
    line: int = 0  # of the file
    past: Past | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    arrivals: tuple[Arrival, ...]  # by time
    origin: str = ""  # whom to cite
    left_out: tuple[tuple[str, int], ...] = ()  # why rows of the file are not in it, and how many
