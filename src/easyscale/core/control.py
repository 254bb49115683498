"""What the master and the workers of a job say to each other on the control channel.

One frame is one line of JSON: `{"v": 1, "token": ..., "from": worker or null, "seq": n, "body": {"kind": ...}}`.
Workers number what must not get lost (`seq`); the master acknowledges it and forgets what it has heard before.
`unpack` returns None for all that is not a frame of this version: such a line is dropped and counted, never fatal.
Numbers of workers are never used twice in a job; a worker's rank in a plan is its place among the plan's members.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from easyscale.core.messages import _KINDS as MESSAGES
from easyscale.core.messages import Message
from easyscale.core.plan import Plan

VERSION = 1
MAX_FRAME = 1 << 20
BOARD = "board:"  # a rendezvous that begins so names a board of the master, else a file

How = Literal["start", "switch", "recover"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A worker of a plan and the virtual ranks that it runs there."""

    worker: int
    first: int
    count: int

    @property
    def ests(self) -> range:
        return range(self.first, self.first + self.count)


# ---------------------------------------------------------------------------------------- from the master


@dataclass(frozen=True, kw_only=True)
class Order:
    """The next plan. Plans are numbered by `epoch`; the newest order counts.

    start: nobody has trained yet; the members find each other and share the first one's state.
    switch: at the end of the first global step that all members of the plan before begin with this order in hand (not
    before `at` steps are completed); `joining` members get their state from a peer, `leaving` workers wait to be
    dismissed.
    recover: at once, after a `Halt`. Each member that has trained keeps the ESTs that it has, and may get more.
    """

    epoch: int
    how: How
    members: tuple[Member, ...]
    rendezvous: str
    at: int | None = None
    # After so many completed steps the members wait for the next order: a schedule names the step of its plans.
    until: int | None = None
    joining: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    kind: Literal["order"] = "order"

    @property
    def plan(self) -> Plan:
        return Plan(tuple(member.count for member in self.members))

    def rank_of(self, worker: int) -> int | None:
        return next((rank for rank, member in enumerate(self.members) if member.worker == worker), None)


@dataclass(frozen=True, kw_only=True)
class Halt:
    """A member was lost, or its peers cannot reach it: leave the group at once, answer with `Status`, wait."""

    epoch: int  # the highest epoch that was ordered so far
    kind: Literal["halt"] = "halt"


@dataclass(frozen=True, kw_only=True)
class Dismiss:
    """Leave the job: exit with code 0. Nothing of this worker is needed any more."""

    why: str
    kind: Literal["dismiss"] = "dismiss"


@dataclass(frozen=True, kw_only=True)
class Fence:
    """You were declared lost; your ESTs run elsewhere. Stop at once, write nothing."""

    why: str
    kind: Literal["fence"] = "fence"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """At the next step on which all workers agree: a checkpoint, and/or stop as by signal `stop` (0: go on)."""

    checkpoint: bool = False
    stop: int = 0
    kind: Literal["wish"] = "wish"


@dataclass(frozen=True, kw_only=True)
class Heard:
    """All numbered frames up to `seq` are safe with the master."""

    seq: int
    kind: Literal["heard"] = "heard"


# ---------------------------------------------------------------------------------------- on a board


@dataclass(frozen=True, kw_only=True)
class Meet:
    """The first frame of a connection for one board: a worker wants to hear all that is pinned there, now and later.

    Members of a plan on several machines find each other so: a file would not be the same for all of them.
    """

    worker: int
    board: str
    kind: Literal["meet"] = "meet"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A note on a board, from a worker to the master, and from there to all who meet on that board."""

    key: str
    value: str  # in base64
    kind: Literal["pin"] = "pin"


# ---------------------------------------------------------------------------------------- from a worker


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first frame of each connection. `epoch`: the plan it works on, -1 before its first."""

    worker: int
    pid: int
    epoch: int = -1
    step: int = 0
    ests: tuple[int, ...] = ()
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, kw_only=True)
class Beat:
    """I live. `waiting`: for peers, not computing: who is not waiting holds the others up."""

    worker: int
    epoch: int
    step: int
    waiting: bool
    kind: Literal["beat"] = "beat"


@dataclass(frozen=True, kw_only=True)
class Joined:
    """The worker has its place in plan `epoch`, and the state after `step` completed global steps."""

    worker: int
    epoch: int
    step: int
    seconds: float  # from leaving the plan before, or from the order
    kind: Literal["joined"] = "joined"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The group of plan `epoch` is broken for this worker. `timed_out`: no error, but no answer either."""

    worker: int
    epoch: int
    step: int
    why: str
    timed_out: bool = False
    kind: Literal["lost"] = "lost"


@dataclass(frozen=True, kw_only=True)
class Status:
    """The answer to `Halt`. `epoch`: the last plan that it joined. `forming`: it has left that plan at the boundary
    of a switch and holds no gradients: any ESTs may be given to it."""

    worker: int
    epoch: int
    forming: int | None
    ests: tuple[int, ...]
    step: int
    kind: Literal["status"] = "status"


@dataclass(frozen=True, kw_only=True)
class WantsToLeave:
    """SIGTERM came to this worker alone: it hands its ESTs over and leaves within `grace` seconds."""

    worker: int
    grace: float
    kind: Literal["wants-to-leave"] = "wants-to-leave"


@dataclass(frozen=True, kw_only=True)
class Declined:
    """The workers cannot go over to plan `epoch`, now or later: they stay on theirs."""

    worker: int
    epoch: int
    why: str
    kind: Literal["declined"] = "declined"


FromMaster = Order | Halt | Dismiss | Fence | Wish | Heard | Pin
FromWorker = Meet | Pin | Hello | Beat | Joined | Lost | Status | WantsToLeave | Declined | Message
_KINDS: dict[str, type[Any]] = {
    "order": Order, "halt": Halt, "dismiss": Dismiss, "fence": Fence, "wish": Wish, "heard": Heard,
    "hello": Hello, "beat": Beat, "joined": Joined, "lost": Lost, "status": Status, "wants-to-leave": WantsToLeave,
    "declined": Declined, "meet": Meet, "pin": Pin,
    **MESSAGES,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Frame:
    body: Any
    sender: int | None = None  # a worker's number; None: the master, or a command
    seq: int | None = None


def pack(frame: Frame, token: str) -> bytes:
    body = asdict(frame.body)
    text = {"v": VERSION, "token": token, "from": frame.sender, "seq": frame.seq, "body": body}
    return json.dumps(text, separators=(",", ":")).encode() + b"\n"


def unpack(line: bytes, token: str) -> Frame | None:
    """None: too long, not JSON, another version, another job's token, an unknown kind, wrong fields."""
    if len(line) > MAX_FRAME:
        return None
    try:
        raw = json.loads(line)
        if raw["v"] != VERSION or not hmac.compare_digest(str(raw["token"]).encode(), token.encode()):
            return None
        body = dict(raw["body"])
        if "members" in body:
            body["members"] = tuple(Member(**member) for member in body["members"])
        for name in ("joining", "leaving"):
            if name in body:
                body[name] = tuple(body[name])
        if body["kind"] in ("hello", "status"):
            body["ests"] = tuple(body["ests"])
        return Frame(body=_KINDS[body["kind"]](**body), sender=raw["from"], seq=raw["seq"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
