"""An elastic job in virtual time: the real brain, a fake launcher, and workers that keep the worker's side of the
contract (they beat, join, complete steps together, lose each other, answer halts, leave).

All that the brain orders is checked on the way against what must never happen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from easyscale.core.cluster import Slot
from easyscale.core.control import (
    Beat,
    Dismiss,
    Fence,
    Halt,
    Hello,
    Joined,
    Lost,
    Order,
    Status,
    WantsToLeave,
    Wish,
)
from easyscale.core.messages import Done, Failed, Ready, StepDone
from easyscale.core.plan import Plan, Schedule, parse_schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.brain import Brain
from easyscale.master.decisions import Answer, End, InForce, Kill, Paused, Recovered, Say, Send, Start
from easyscale.master.inputs import Begun, Ended, Input, NotStarted, Said, Scale, Started, Stop
from easyscale.master.limits import Limits
from easyscale.master.situation import Terms
from easyscale.testing import FakeLauncher, VirtualClock


def named(letters: str) -> tuple[Slot, ...]:
    return tuple(Slot(id=letter, kind="fast" if letter.isupper() else "plain") for letter in letters)


BEAT, TICK, DELAY = 0.5, 0.1, 0.001


@dataclass
class Worker:
    """One fake worker. `frozen`: as by SIGSTOP. `mute`: it cannot reach the master."""

    number: int
    slot: Slot | None = None
    alive: bool = True
    frozen: bool = False
    mute: bool = False
    spoke: bool = False
    ready: bool = False
    waiting: bool = False
    epoch: int = -1
    halted: int = -1
    step: int = 0
    order: Order | None = None
    ests: tuple[int, ...] = ()
    in_group: bool = False
    told_lost: bool = False
    stop: int = 0
    unheard: list[Any] = field(default_factory=list)  # while mute: numbered messages that wait
    deaf: list[Any] = field(default_factory=list)  # while mute: what is lost on the way to it

    @property
    def acts(self) -> bool:
        return self.alive and not self.frozen


class Simulation:
    def __init__(
        self, ests: int = 4, workers: int = 2, *, schedule: str | None = None, limits: Limits | None = None,
        start: float = 2.0, step: float = 0.05, length: int = 10**6, checkpoint: int = 0,
        slow: Collection[int] = (), paces: Mapping[int, float] | None = None, measures: bool = True,
        slots: str | None = None, kinds: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        workers = workers if slots is None else len(slots)
        plans = parse_schedule(schedule, ests) if schedule else Schedule(((0, Plan.even(ests, workers)),))
        self.clock, self.launcher = VirtualClock(), FakeLauncher()
        self.brain = Brain(
            Terms(
                ests=ests, schedule=plans, rendezvous=lambda epoch: f"rendezvous-{epoch}", limits=limits or Limits(),
                resume_again="auto", slots=None if slots is None else named(slots), kinds=kinds,
            )
        )  # fmt: skip
        self.ests, self.step_seconds, self.start_seconds, self.length = ests, step, start, length
        self.checkpoint = checkpoint  # the step to which a job that starts anew goes back
        self.workers: dict[int, Worker] = {}
        self.orders: list[Order] = []
        self.said: list[Say] = []
        self.pauses: list[Paused] = []
        self.recoveries: list[Recovered] = []
        self.in_force: list[InForce] = []
        self.starts: list[Start] = []
        self.replies: list[Any] = []
        self.end: End | None = None
        self.on_start: Callable[[Worker], None] = lambda worker: None
        self.slow = slow  # numbers that never get ready
        self.paces = dict(paces or {})  # seconds of a local step by worker: a step is as long as its slowest worker's
        self.measures = measures  # workers tell how long their local steps take
        self.barren = False  # no step is ever completed
        self.inputs: list[tuple[float, Input]] = []
        self._attempt = 0
        self.give(Begun())
        self.clock.after(TICK, self._tick)
        self.clock.after(self.step_seconds, self._train)

    # ------------------------------------------------------------------ for tests

    def run(self, seconds: float) -> Simulation:
        self.clock.run(self.clock.now + seconds)
        return self

    def until(self, true: Callable[[], bool], limit: float = 1000.0) -> Simulation:
        """Run until it is so. Fails if that does not happen within `limit` virtual seconds."""
        ends = self.clock.now + limit
        while not true():
            assert self.clock.now < ends, self.story()
            self.clock.step()
        return self

    def training(self) -> Simulation:
        """Run until the plan in force makes steps and nothing is on the way."""
        self.run(10 * DELAY)  # for what is on its way to be heard
        facts = self.brain.facts
        busy = ("watch", "wish", "suspicion")
        self.until(
            lambda: facts.calm and facts.current is not None and not any(getattr(facts, name) for name in busy)
        )
        return self

    def kill(self, number: int, code: int = -9) -> None:
        worker = self.workers[number]
        if worker.alive:
            worker.alive = worker.in_group = False
            self.launcher.processes[number].end(code)
            self.clock.after(DELAY, lambda: self.give(Ended(worker=number, code=code)))

    def scale(self, workers: int | None = None, **wish: Any) -> Any:
        self.give(Scale(workers=workers, **wish))
        return self.replies[-1]

    def place(self, slots: str) -> Any:
        """One worker on each of these devices (a letter each, capitals are faster ones)."""
        return self.scale(slots=named(slots))

    def where(self) -> dict[str, list[int]]:
        """The ESTs of the plan in force, by device."""
        hands = self.brain.facts.hands
        return {getattr(hands[m.worker].slot, "id", "?"): list(m.ests) for m in self.brain.facts.members()}

    def stop(self, number: int = 15) -> None:
        self.give(Stop(number=number))

    def reconnect(self, number: int) -> None:
        """The connection broke: what was on its way is lost, what is numbered comes again."""
        worker = self.workers[number]
        worker.mute = False
        self._tell(worker, Hello(worker=number, pid=1, epoch=worker.epoch, step=worker.step, ests=worker.ests))
        unheard, worker.unheard = worker.unheard, []
        for message in unheard:
            self._tell(worker, message)

    @property
    def step(self) -> int:
        return self.brain.facts.steps

    def events(self, what: str) -> list[str]:
        return [say.text for say in self.said if say.what == what]

    def members(self) -> dict[int, list[int]]:
        return {member.worker: list(member.ests) for member in self.brain.facts.members()}

    def story(self) -> str:
        return "\n".join(map(str, [self.clock.now, *self.orders, *self.said, self.workers]))

    # ------------------------------------------------------------------ the shell

    def give(self, given: Input) -> None:
        self.inputs.append((self.clock.now, given))
        for decision in self.brain.take(given, self.clock.now):
            match decision:
                case Start():
                    self._start(decision)
                case Send():
                    self._check(decision.worker, decision.body)
                    self.clock.after(DELAY, lambda d=decision: self._deliver(d.worker, d.body))  # type: ignore[misc]
                case Kill():
                    if decision.worker in self.workers:
                        self.kill(decision.worker, -9 if decision.hard else -15)
                case Say():
                    self.said.append(decision)
                case InForce():
                    self.in_force.append(decision)
                case Paused():
                    self.pauses.append(decision)
                case Recovered():
                    self.recoveries.append(decision)
                case Answer():
                    self.replies.append(decision.reply)
                case End():
                    assert self.end is None
                    assert not any(worker.alive for worker in self.workers.values())
                    self.end = decision

    def _check(self, to: int, body: Any) -> None:
        """What must never happen."""
        if not isinstance(body, Order):
            return
        dead = {n for n, hand in self.brain.facts.hands.items() if hand.lost or hand.ended or hand.dismissed}
        assert not dead & {member.worker for member in body.members}, f"the dead in {body}"
        covered = [est for member in body.members for est in member.ests]
        assert covered == list(range(self.ests)), f"not all ESTs, or not in order: {body}"
        assert to in {member.worker for member in body.members} | set(body.leaving)
        if self.orders and self.orders[-1].epoch == body.epoch:
            assert body == self.orders[-1], "one epoch, two orders"
            return
        assert not self.orders or body.epoch > self.orders[-1].epoch, "epochs grow"
        if body.how == "recover":
            for member in body.members:
                worker = self.workers[member.worker]
                if worker.alive and worker.epoch >= 0 and worker.order is not None:
                    assert set(worker.ests) <= set(member.ests), f"{worker} loses ESTs in {body}"
                assert (worker.epoch < 0) == (member.worker in body.joining)
        self.orders.append(body)

    def _start(self, start: Start) -> None:
        assert start.worker not in self.workers, "a number is used once"
        assert start.worker == len(self.workers), "numbers grow by one"
        spec = WorkerSpec(ests=self.ests, worker=start.worker, split=start.split, rank=start.rank, slot=start.slot)
        if start.slot is not None:
            living = [w.number for w in self.workers.values() if w.alive and w.slot == start.slot]
            assert not living, f"two workers on {start.slot}"
        self.starts.append(start)
        try:
            process = self.launcher.start_apart(spec, Target("train.py"), None, None)  # type: ignore[arg-type]
        except OSError as problem:
            self.workers[start.worker], why = Worker(start.worker, alive=False), str(problem)
            self.clock.after(0.0, lambda: self.give(NotStarted(worker=start.worker, why=why)))
            return
        worker = self.workers[start.worker] = Worker(start.worker, slot=start.slot)
        if start.resume == "auto":
            worker.step = self.checkpoint
        self.give(Started(worker=start.worker, pid=process.pid, started=process.started))
        self.clock.after(0.3, lambda: self._hello(worker))
        self.on_start(worker)
        if start.worker not in self.slow:
            self.clock.after(self.start_seconds, lambda: self._get_ready(worker))

    def _tick(self) -> None:
        for fact in self.brain.due(self.clock.now):
            self.give(fact)
        if self.end is None:
            self.clock.after(TICK, self._tick)

    # ------------------------------------------------------------------ the workers

    def _tell(self, worker: Worker, message: Any) -> None:
        if not worker.acts:
            return
        if worker.mute:
            if not isinstance(message, Beat | Status | Hello):
                worker.unheard.append(message)
            return
        self.clock.after(DELAY, lambda: self.give(Said(worker=worker.number, body=message)))

    def _hello(self, worker: Worker) -> None:
        worker.spoke = True
        self._tell(worker, Hello(worker=worker.number, pid=1))
        self._beat(worker)

    def _beat(self, worker: Worker) -> None:
        if worker.alive:
            beat = Beat(worker=worker.number, epoch=worker.epoch, step=worker.step, waiting=worker.waiting)
            self._tell(worker, beat)
            self.clock.after(BEAT, lambda: self._beat(worker))

    def _get_ready(self, worker: Worker) -> None:
        if worker.alive and worker.frozen:
            self.clock.after(TICK, lambda: self._get_ready(worker))
        elif worker.alive:
            worker.ready = True
            self._tell(worker, Ready(worker=worker.number, pid=1, step=0, seconds=1.0, device="cpu"))

    def _exit(self, worker: Worker, code: int) -> None:
        self.clock.after(DELAY * 2, lambda: self.kill(worker.number, code))

    def _deliver(self, number: int, body: Any) -> None:
        worker = self.workers[number]
        if worker.frozen or worker.mute:
            worker.deaf.append(body)
        if not worker.acts or worker.mute:
            return
        match body:
            case Order() if body.epoch > max(worker.halted, worker.order.epoch if worker.order else -1):
                worker.order = body
            case Halt():
                worker.halted = max(worker.halted, body.epoch)
                worker.in_group = False
                self._tell(
                    worker,
                    Status(worker=number, epoch=worker.epoch, forming=None, ests=worker.ests, step=worker.step),
                )
            case Dismiss():
                self._exit(worker, 0)
            case Fence():
                self._exit(worker, 75)
            case Wish():
                worker.stop = body.stop or worker.stop

    def _train(self) -> None:
        """Each `step_seconds`: groups form, complete a step, or break."""
        if self.end is not None:
            return
        self._form()
        groups: dict[int, list[Worker]] = {}
        for worker in self.workers.values():
            if worker.in_group:
                groups.setdefault(worker.epoch, []).append(worker)
        for epoch, group in groups.items():
            order = next(order for order in self.orders if order.epoch == epoch)
            if self.barren:
                continue
            whole = len(group) == len(order.members) and all(worker.acts for worker in group)
            if whole:
                self._step(group)
                continue
            for worker in group:
                worker.waiting = True
                broken = len(group) < len(order.members)
                if broken and worker.acts and not worker.told_lost:
                    worker.told_lost = True
                    self._tell(worker, Lost(worker=worker.number, epoch=epoch, step=worker.step, why="reset"))
        self._no_two_hold_an_est()
        local = [self._local(worker) for group in groups.values() for worker in group]
        self.clock.after(self.step_seconds + max(local, default=0.0), self._train)

    def _local(self, worker: Worker) -> float:
        return len(worker.ests) * self.paces.get(worker.number, 0.0)

    def _form(self) -> None:
        for order in {w.order.epoch: w.order for w in self.workers.values() if w.order is not None}.values():
            group = [self.workers[member.worker] for member in order.members]
            needed = [*group, *(self.workers[number] for number in order.leaving)]
            if not all(w.acts and w.ready and w.order == order and w.halted < order.epoch for w in needed):
                continue
            if group[0].epoch == order.epoch:
                continue
            step = max(worker.step for worker in needed if order.how == "start" or worker.epoch >= 0)
            if order.at is not None and step < order.at:
                continue
            for worker in needed:
                worker.in_group = False
            for member, worker in zip(order.members, group, strict=True):
                worker.epoch, worker.step, worker.ests = order.epoch, step, tuple(member.ests)
                worker.in_group, worker.told_lost, worker.waiting = True, False, False
                self._tell(worker, Joined(worker=worker.number, epoch=order.epoch, step=step, seconds=0.01))

    def _step(self, group: list[Worker]) -> None:
        stop = max(worker.stop for worker in group)
        for worker in group:
            worker.waiting = False
            if stop:
                worker.in_group = False
                self._exit(worker, 128 + stop)
            elif worker.step >= self.length:
                worker.in_group = False
                first = worker.ests[0] == 0
                self._tell(worker, Done(worker=worker.number, steps=worker.step, fingerprint="sha" if first else None))
                self._exit(worker, 0)
            else:
                done = StepDone(
                    worker=worker.number, step=worker.step, epoch=0, ests=list(worker.ests), metrics={}, samples=1,
                    time=1e9 + self.clock.now, local=self._local(worker) if self.measures else 0.0,
                )  # fmt: skip
                worker.step += 1
                self._tell(worker, done)

    def _no_two_hold_an_est(self) -> None:
        """At most one living member an EST in the plan in force."""
        facts = self.brain.facts
        if facts.current is not None:
            members = [member for member in facts.current.members if facts.usable(member.worker)]
            ests = [est for member in members for est in member.ests]
            assert len(ests) == len(set(ests))

    # ------------------------------------------------------------------ misdeeds

    def freeze(self, number: int) -> None:
        self.workers[number].frozen = True

    def thaw(self, number: int) -> None:
        """A frozen worker goes on: what was sent to it is still in its socket."""
        worker = self.workers[number]
        if worker.alive and worker.frozen:
            worker.frozen = False
            deaf, worker.deaf = worker.deaf, []
            for body in deaf:
                self._deliver(number, body)

    def fail(self, number: int, **facts: Any) -> None:
        worker = self.workers[number]
        worker.in_group = False
        failed = Failed(worker=number, step=worker.step, ours=False, text="Traceback\nValueError: bad", **facts)
        self._tell(worker, failed)
        self._exit(worker, 1)

    def leave(self, number: int) -> None:
        self._tell(self.workers[number], WantsToLeave(worker=number, grace=30.0))

    def lose_each_other(self, *, timed_out: bool = False, busy: int | None = None) -> None:
        """The group breaks although all live. `busy`: the one that computes while all others wait for it."""
        for worker in self.workers.values():
            if worker.in_group and worker.acts and worker.number != busy:
                worker.in_group, worker.waiting = False, True
                self._tell(
                    worker,
                    Lost(worker=worker.number, epoch=worker.epoch, step=worker.step, why="x", timed_out=timed_out),
                )
                beat = Beat(worker=worker.number, epoch=worker.epoch, step=worker.step, waiting=True)
                self._tell(worker, beat)
            elif worker.number == busy:
                worker.in_group = False
