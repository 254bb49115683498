"""What happens to an elastic job, as the master's brain hears it. Each is written to the journal before it has effects.

`Said` carries a worker's frame; all others are facts that the master's shell has found out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from easyscale.core.cluster import Slot


@dataclass(frozen=True, kw_only=True)
class Said:
    """A frame of a worker. Beats are heard too, but never written down: they change no plan by themselves."""

    worker: int
    body: Any
    seq: int | None = None


@dataclass(frozen=True, kw_only=True)
class Begun:
    """The job begins, or a master takes it over (`again`)."""

    again: bool = False
    kind: Literal["begun"] = "begun"


@dataclass(frozen=True, kw_only=True)
class Started:
    """A worker's process runs. `started`: the start time of the pid, so that a reused number is never touched.

    A pid of 0: not on this machine, or not known yet. The worker tells it when it says hello.
    """

    worker: int
    pid: int
    started: str
    kind: Literal["started"] = "started"


@dataclass(frozen=True, kw_only=True)
class NotStarted:
    worker: int
    why: str
    kind: Literal["not-started"] = "not-started"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A process is gone. `code`: -n ended by signal n; None: not our child, nobody can tell."""

    worker: int
    code: int | None
    kind: Literal["ended"] = "ended"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Someone wishes another plan: a number of workers, a split, a plan without one worker, or one on these devices."""

    workers: int | None = None
    split: tuple[int, ...] | None = None
    leave: int | None = None
    slots: tuple[Slot, ...] | None = None
    kind: Literal["scale"] = "scale"


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The job is to end as by signal `number`. `now`, or the second time: at once."""

    number: int
    now: bool = False
    kind: Literal["stop"] = "stop"


@dataclass(frozen=True, kw_only=True)
class Save:
    """A checkpoint is wished."""

    kind: Literal["save"] = "save"


@dataclass(frozen=True, kw_only=True)
class TooMany:
    """The workers and what they have started are more processes than the job may have."""

    processes: int
    kind: Literal["too-many"] = "too-many"


What = Literal["silent", "late", "status", "join", "blame", "kill", "gone"]


@dataclass(frozen=True, kw_only=True)
class Overdue:
    """A limit has passed. `workers`: those who are to blame; none: nobody is."""

    what: What
    workers: tuple[int, ...] = ()
    kind: Literal["overdue"] = "overdue"


Fact = Begun | Started | NotStarted | Ended | Scale | Stop | Save | TooMany | Overdue
Input = Said | Fact
FACTS: dict[str, type[Any]] = {
    "begun": Begun, "started": Started, "not-started": NotStarted, "ended": Ended, "scale": Scale, "stop": Stop,
    "save": Save, "too-many": TooMany, "overdue": Overdue,
}  # fmt: skip
