"""What the master's brain decides: plain facts that its shell carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from easyscale.core.cluster import Slot
from easyscale.core.control import FromMaster, Member
from easyscale.core.requests import Accepted, Refused


@dataclass(frozen=True, kw_only=True)
class Start:
    """A new worker, meant for place `rank` of the plan `split`, on device `slot` where devices have names."""

    worker: int
    split: tuple[int, ...]
    rank: int
    resume: str | None
    slot: Slot | None = None


@dataclass(frozen=True, kw_only=True)
class Send:
    worker: int
    body: FromMaster


@dataclass(frozen=True, kw_only=True)
class Kill:
    """End a process. Not `hard`: SIGTERM, for scripts that never spoke to us. `tree`: with all that it has started,
    also what has left its group."""

    worker: int
    hard: bool = True
    tree: bool = False


@dataclass(frozen=True, kw_only=True)
class Say:
    """One sentence for people; `what` is a stable word for programs."""

    what: str
    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class InForce:
    """All members have joined a plan; it holds from global step `step` on."""

    epoch: int
    step: int
    members: tuple[Member, ...]


@dataclass(frozen=True, kw_only=True)
class Paused:
    """A switch at `step` cost so many seconds: first step of the new plan minus last step of the old one."""

    step: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """A loss is overcome: the next global step is completed, `seconds` after the loss was noticed."""

    step: int
    workers: tuple[int, ...]
    seconds: float
    lost_steps: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """To whoever wished something."""

    reply: Accepted | Refused


@dataclass(frozen=True, kw_only=True)
class End:
    """The job is over; no worker lives."""

    how: Literal["done", "plain", "stopped", "failed"]
    exit_code: int = 0
    error: str | None = None
    # Of a failure: whose, and whether the text is ours (else a traceback of the user's).
    worker: int | None = None
    ours: bool = True
    est: int | None = None
    step: int | None = None


Decision = Start | Send | Kill | Say | InForce | Paused | Recovered | Answer | End
