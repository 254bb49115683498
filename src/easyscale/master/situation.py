"""All that the master's brain knows of its job, and the small words in which its rules are written.

Changed only by the rules (`losses`, `wishes`, `endings`, `brain`). No clock, no files, no processes: times are given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from easyscale.core.cluster import Level, Slot
from easyscale.core.control import Dismiss, FromMaster, Member, Order, Status
from easyscale.core.messages import Failed
from easyscale.core.plan import Plan, Schedule
from easyscale.core.verdict import Verdict
from easyscale.master.decisions import Decision, Kill, Say, Send
from easyscale.master.limits import Limits


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the job allows, from its start to its end."""

    ests: int
    schedule: Schedule
    rendezvous: Callable[[int], str]  # where the members of a plan find each other, by its epoch
    first_step: int = 0
    resume: str | None = None
    # From where a job that is started anew goes on.
    resume_again: str | None = None
    limits: Limits = field(default_factory=Limits)
    last_step: int | None = None  # the job ends there; None: nobody knows
    level: Level = "D1"
    slots: tuple[Slot, ...] | None = None  # the devices of the first plan; None: a number of workers, wherever they run
    kinds: tuple[str, ...] = ()  # types of devices that it may be given later
    verdict: Verdict | None = None  # what a scan of its script has found


@dataclass
class Hand:
    """One worker, as far as the master knows."""

    number: int
    since: float
    slot: Slot | None = None  # the device that it has to itself
    pid: int | None = None
    started: str = ""
    spoke: bool = False
    heard: float = 0.0
    waiting: bool = False
    ready: bool = False
    ordered: int = -1  # the newest order that was sent to it
    joined: int = -1
    dismissed: bool = False
    lost: bool = False
    done: bool = False
    failed: Failed | None = None
    ended: bool = False
    code: int | None = None
    gone_by: float | None = None  # it was told to leave, or says that it does: then it is killed

    @property
    def usable(self) -> bool:
        """It may be in the next plan."""
        return not (self.ended or self.lost or self.dismissed or self.done or self.failed)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A plan that is wished. `workers` None: those who are there and do not want to leave. `slots`: one worker on each
    of these devices and on no other."""

    workers: int | None = None
    split: tuple[int, ...] | None = None
    slots: tuple[Slot, ...] | None = None
    at: int | None = None
    scheduled: bool = False
    unasked: bool = False  # the master's own idea: given up at the first obstacle


@dataclass
class Opening:
    """An order on the way: given, not yet joined by all members."""

    order: Order
    wish: Wanted | None
    progress: float  # the last sign that it gets nearer
    steps: dict[int, int] = field(default_factory=dict)  # by member that has joined
    times: dict[int, float] = field(default_factory=dict)  # of the first step of those who are already that far


@dataclass
class Halting:
    """A group is dissolved; the answers of those who still live are awaited."""

    since: float
    asked: set[int]
    statuses: dict[int, Status] = field(default_factory=dict)


@dataclass
class Suspicion:
    """Some say that their group is broken, and nobody is known to be lost."""

    since: float
    accusers: set[int]
    timed_out: bool


@dataclass
class Loss:
    """A member that was lost, until the next global step is completed without it."""

    worker: int
    how: str
    during: int
    noticed: float
    code: int | None = None
    ests: range | None = None  # None: it had none in the plan that goes on


@dataclass
class Watch:
    """A plan in force whose first global step is awaited, to tell what the way to it cost."""

    order: Order
    before: Plan | None  # None: nothing was in force before
    since: float
    step: int
    left_at: float | None  # when the last step of the plan before was completed, by the workers' clock
    times: dict[int, float] = field(default_factory=dict)


@dataclass
class Ending:
    """Why the job, or this attempt at it, ends, and when patience does."""

    why: Literal["stop", "fail"]
    deadline: float
    number: int = 0
    exit_code: int = 1
    text: str = ""
    worker: int | None = None
    ours: bool = True
    est: int | None = None
    step: int | None = None
    killed: bool = False
    asked: bool = True  # from outside: the next time means at once
    final: bool = False  # the job does not start again, whatever it allows


@dataclass
class Situation:
    terms: Terms
    now: float = 0.0
    hands: dict[int, Hand] = field(default_factory=dict)
    next_number: int = 0
    attempt: int = 0  # the first worker of this attempt at the job
    epoch: int = -1  # the highest that was ordered
    current: Order | None = None  # the last plan that all members joined
    opening: Opening | None = None
    halting: Halting | None = None
    suspicion: Suspicion | None = None
    regrouped: int = 0  # times in a row without a completed step
    broken: float | None = None  # when the group was dissolved, until the next step is completed
    losses: list[Loss] = field(default_factory=list)
    watch: Watch | None = None
    wish: Wanted | None = None
    wanted: Wanted = field(default_factory=Wanted)  # the last wish that was accepted
    slots: tuple[Slot, ...] | None = None  # the devices that it was given; it may use fewer
    asked: bool = False  # someone wished for this very split
    planned: int = 0  # entries of the schedule that were ordered or given up
    departing: set[int] = field(default_factory=set)
    first_ready: float | None = None
    steps: int = 0  # global steps that someone has completed
    step_time: float | None = None  # of the last one, by the workers' clock
    restarts: int = 0
    replaying_from: int | None = None  # the steps that were completed when the job was started anew
    ending: Ending | None = None
    last_done: float | None = None
    over: bool = False
    dropped: Counter[str] = field(default_factory=Counter)
    decisions: list[Decision] = field(default_factory=list)

    # ------------------------------------------------------------------ words

    @property
    def limits(self) -> Limits:
        return self.terms.limits

    @property
    def calm(self) -> bool:
        """No order is on the way and no group is dissolved."""
        return self.opening is None and self.halting is None

    def usable(self, worker: int) -> bool:
        return worker in self.hands and self.hands[worker].usable

    def members(self) -> tuple[Member, ...]:
        return self.current.members if self.current is not None else ()

    def concerned(self) -> list[int]:
        """The usable members of the plan in force and of the order on the way, once each."""
        members = [member.worker for member in self.members()]
        if self.opening is not None:
            members += [member.worker for member in self.opening.order.members]
            members += self.opening.order.leaving
        return [worker for worker in dict.fromkeys(members) if self.usable(worker)]

    def alive(self) -> list[Hand]:
        return [hand for hand in self.hands.values() if not hand.ended]

    def candidates(self) -> list[Hand]:
        """Workers that start, or wait with `Ready` for a place."""
        taken = set(self.concerned())
        return [hand for hand in self.hands.values() if hand.usable and hand.number not in taken]

    def slots_of(self, workers: Iterable[int]) -> tuple[Slot, ...] | None:
        """Where these workers sit; None: some of them sit nowhere in particular."""
        slots = [self.hands[worker].slot for worker in workers]
        found = tuple(slot for slot in slots if slot is not None)
        return found if found and len(found) == len(slots) else None

    def name(self, worker: int) -> str:
        pid = self.hands[worker].pid
        return f"worker {worker}" + (f" (pid {pid})" if pid is not None else "")

    def say(self, what: str, text: str, step: int | None = None) -> None:
        self.decisions.append(Say(what=what, step=self.steps if step is None else step, text=text))

    def send(self, worker: int, body: FromMaster) -> None:
        self.decisions.append(Send(worker=worker, body=body))

    def dismiss(self, worker: int, why: str) -> None:
        hand = self.hands[worker]
        hand.dismissed, hand.gone_by = True, self.now + self.limits.grace
        self.departing.discard(worker)
        if hand.spoke:
            self.send(worker, Dismiss(why=why))
        else:  # it cannot hear us, and has nothing to save
            self.decisions.append(Kill(worker=worker, hard=False))
