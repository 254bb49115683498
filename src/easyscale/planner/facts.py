"""What goes into a job's mind and what comes out: facts, decisions and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from easyscale.planner.speed import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Settings of a mind. Times are in seconds."""

    warm_up: int = 3  # global steps after a switch that say nothing: caches fill, kernels load
    horizon: float = 300.0  # a new split must win back its switch within this time: speeds rarely hold for longer
    least_gain: float = 0.05  # of a step: below this a new split is not worth a line in the log
    worth: float = 0.25  # growth must bring this share of the gain that was predicted, or it is undone
    remember: float = 600.0  # for so long what disappointed is not tried again; twice as long each time
    news: float = 0.05  # a change of speed of this share is told to the scheduler
    # The devices are others' choice, as on a live master without a scheduler: each runs an EST, and only ESTs move.
    fixed: bool = False
    # With `fixed`: growth is judged all the same. What disappoints sets the limit that the scheduler is told, and ESTs
    # stay on all devices until it takes some away.
    judged: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """One device that the job holds. `id` is the caller's: a worker, or a place in a machine."""

    id: str
    kind: str
    node: str = ""


# ------------------------------------------------------------------------------------------ in


@dataclass(frozen=True, slots=True)
class Granted:
    """The job holds these devices, and no others, from now on."""

    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Switched:
    """The job trains with this split. `pause`: how long nobody trained for it; None: it started, or nobody knows."""

    split: Mapping[str, int]
    pause: float | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    """Global steps were completed under the present split: averages over `steps` of them.

    `local`: by device, the seconds of all local steps that it ran in one global step. `seconds`: of the global step.
    `remaining`: global steps to go, where that is known.
    """

    local: Mapping[str, float]
    seconds: float
    steps: int = 1
    remaining: float | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """Time has passed (`Mind.due`)."""


Fact = Granted | Switched | Stepped | Passed

# ------------------------------------------------------------------------------------------ out


@dataclass(frozen=True, slots=True)
class Resplit:
    """Run so many ESTs on each of these devices; those that are not named run none. `seconds`: of a global step."""

    split: Mapping[str, int]
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The job is better off without these devices."""

    devices: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Propose:
    """News for the scheduler (`JobProposed`)."""

    speed: Speed
    limit: int | None
    switch_seconds: float
    seconds: Mapping[str, float] = field(default_factory=dict)  # of a local step by type, for people


Decided = Resplit | GiveBack | Propose
