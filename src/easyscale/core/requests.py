"""What commands ask of a job's master, and what it answers: one line each way, on the workers' port.

A line has the form of a control frame (`core/control.py`): version, the job's token, a body with its `kind`. The kinds
of requests begin with "ask-", so that no worker's frame can be taken for one. `unpack_*` returns None for all that
is not such a line: the master drops and counts it, a command says that something else listens there.
"""

from __future__ import annotations

import hmac
import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from easyscale.core.cluster import Slot, slots_of_plain
from easyscale.core.control import MAX_FRAME, VERSION, Frame, Member, pack
from easyscale.core.plan import Plan

JobState = Literal["starting", "training", "switching", "recovering", "stopping", "done", "failed"]
MAX_EVENTS = 200


# ---------------------------------------------------------------------------------------- from a command


@dataclass(frozen=True, kw_only=True)
class AskStatus:
    """How is the job? With its last `events` events."""

    events: int = 1
    kind: Literal["ask-status"] = "ask-status"

    def __post_init__(self) -> None:
        _whole(self.events, 0, MAX_EVENTS)


@dataclass(frozen=True, kw_only=True)
class AskScale:
    """Another plan, named by exactly one of: the number of workers, the split, the worker that shall leave, the devices
    that shall have one worker each (and no others)."""

    workers: int | None = None
    split: tuple[int, ...] | None = None
    leave: int | None = None
    slots: tuple[Slot, ...] | None = None
    kind: Literal["ask-scale"] = "ask-scale"

    def __post_init__(self) -> None:
        if sum(wish is not None for wish in (self.workers, self.split, self.leave, self.slots)) != 1:
            raise ValueError("exactly one of workers, split, leave and slots")
        if self.slots is not None:
            slots_of_plain(self.slots)
        if self.workers is not None:
            _whole(self.workers, 1)
        if self.leave is not None:
            _whole(self.leave, 0)
        for count in self.split or ():
            _whole(count, 1)
        if self.split == ():
            raise ValueError("a split without workers")


@dataclass(frozen=True, kw_only=True)
class AskStop:
    """End the job as by SIGTERM: a checkpoint, then exit. `now`: kill the workers, no checkpoint."""

    now: bool = False
    kind: Literal["ask-stop"] = "ask-stop"

    def __post_init__(self) -> None:
        if not isinstance(self.now, bool):
            raise ValueError("now is yes or no")


@dataclass(frozen=True, kw_only=True)
class AskCheckpoint:
    """Write a checkpoint at the next step on which all workers agree."""

    kind: Literal["ask-checkpoint"] = "ask-checkpoint"


# ---------------------------------------------------------------------------------------- from the master


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A worker of the plan in force, its process (None: not known yet) and its virtual ranks."""

    worker: int
    pid: int | None
    first: int
    count: int
    slot: str | None = None  # the id of its device, where the job was given devices by name

    @property
    def member(self) -> Member:
        return Member(worker=self.worker, first=self.first, count=self.count)


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One event: a sentence for people, `what` as a stable word for programs."""

    step: int
    what: str
    text: str
    time: float  # wall clock, seconds since the epoch
    worker: int | None = None


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of a local step on a worker, measured: the truth is expected within a factor of `spread`."""

    worker: int
    kind: str  # of its device
    seconds: float
    spread: float
    steps: int  # that were measured


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The job as its master sees it."""

    job: str
    name: str
    state: JobState
    ests: int
    started: float  # wall clock, seconds since the epoch
    seats: tuple[Seat, ...] = ()  # the plan in force; empty before the first
    plan_epoch: int = -1  # the number of that plan, -1 before the first
    wanted: tuple[int, ...] | None = None  # the split that is wished or being switched to, if it is another
    waiting: tuple[int, ...] = ()  # workers that were started and are not in the plan yet
    held: tuple[str, ...] = ()  # devices by name on which a process of the job lives, in the plan or not
    step: int = 0  # completed global steps
    total: int | None = None  # in all, where that is known
    epoch: int = 0  # the script's, from 0
    samples_per_second: float | None = None
    loss: float | None = None
    checkpoint_dir: str | None = None
    speeds: tuple[Speed, ...] = ()  # of the workers that have run long enough
    pauses: tuple[float, ...] = ()  # seconds of the last switches, the oldest first
    # What the job would tell a scheduler of itself, once something was measured: "speed" (`planner/wire.py`), "limit"
    # (it wants no more devices than that; None: no limit), "switch_seconds".
    model: dict[str, Any] | None = None
    dropped: dict[str, int] = field(default_factory=dict)  # frames dropped, by reason
    events: tuple[Happening, ...] = ()  # oldest first
    kind: Literal["job-status"] = "job-status"

    @property
    def split(self) -> tuple[int, ...]:
        return tuple(seat.count for seat in self.seats)

    @property
    def plan(self) -> Plan | None:
        return Plan(self.split) if self.seats else None

    @property
    def last_event(self) -> Happening | None:
        return self.events[-1] if self.events else None


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """It will be done, or is done already. `split`: the plan that a scale request leads to."""

    text: str
    split: tuple[int, ...] | None = None
    kind: Literal["accepted"] = "accepted"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The three parts of an error."""

    what: str
    why: str = ""
    now: str = ""
    kind: Literal["refused"] = "refused"


Request = AskStatus | AskScale | AskStop | AskCheckpoint
Reply = JobStatus | Accepted | Refused
_REQUESTS: dict[str, type[Any]] = {
    "ask-status": AskStatus, "ask-scale": AskScale, "ask-stop": AskStop, "ask-checkpoint": AskCheckpoint,
}  # fmt: skip
_REPLIES: dict[str, type[Any]] = {"job-status": JobStatus, "accepted": Accepted, "refused": Refused}


def pack_request(request: Request, token: str) -> bytes:
    return pack(Frame(body=request), token)


def unpack_request(line: bytes, token: str) -> Request | None:
    """None: too long, not JSON, another version, another job's token, an unknown kind, wrong fields."""
    request: Request | None = _unpack(line, token, _REQUESTS)
    return request


def pack_reply(reply: Reply, token: str) -> bytes:
    """A status that is too long for a frame loses its oldest events."""
    line = pack(Frame(body=reply), token)
    while len(line) > MAX_FRAME and isinstance(reply, JobStatus) and reply.events:
        reply = replace(reply, events=reply.events[len(reply.events) // 2 + 1 :])
        line = pack(Frame(body=reply), token)
    return line


def unpack_reply(line: bytes, token: str) -> Reply | None:
    """None: the same as for requests."""
    reply: Reply | None = _unpack(line, token, _REPLIES)
    return reply


def _unpack(line: bytes, token: str, kinds: dict[str, type[Any]]) -> Any:
    if len(line) > MAX_FRAME:
        return None
    try:
        raw = json.loads(line)
        if raw["v"] != VERSION or not hmac.compare_digest(str(raw["token"]).encode(), token.encode()):
            return None
        body = dict(raw["body"])
        for name in ("split", "wanted", "waiting", "held", "pauses"):
            if body.get(name) is not None:
                body[name] = tuple(body[name])
        if body.get("slots") is not None:
            body["slots"] = slots_of_plain(body["slots"])
        if body["kind"] == "job-status":
            if body["state"] not in get_args(JobState):
                return None
            body["seats"] = tuple(Seat(**seat) for seat in body.get("seats", ()))
            body["speeds"] = tuple(Speed(**speed) for speed in body.get("speeds", ()))
            body["events"] = tuple(Happening(**event) for event in body.get("events", ()))
        return kinds[body["kind"]](**body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def to_plain(status: JobStatus) -> dict[str, Any]:
    """For `--json`: without what only the wire needs, and with words for the numbers that JSON has no form for."""
    plain = asdict(status)
    del plain["kind"]
    if status.loss is not None and not math.isfinite(status.loss):
        plain["loss"] = "NaN" if math.isnan(status.loss) else "Infinity" if status.loss > 0 else "-Infinity"
    return plain


def _whole(value: object, least: int, most: int | None = None) -> None:
    if type(value) is not int or value < least or (most is not None and value > most):
        raise ValueError(f"{value!r} is not a whole number of {least} or more")
