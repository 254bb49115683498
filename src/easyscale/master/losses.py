"""The rules of losses: who is lost, how the group is dissolved, and with which plan the living go on.

A member is marked as lost before anything else happens, so that nothing it says later counts. Then all others are
halted, their answers awaited, and one order names the plan that goes on. Another loss meanwhile: the same again.
"""

from __future__ import annotations

from dataclasses import replace

from easyscale.core.control import Fence, Halt, Joined, Lost, Member, Order, Status
from easyscale.core.messages import StepDone
from easyscale.core.plan import Plan
from easyscale.master import endings
from easyscale.master.decisions import InForce, Kill, Paused, Recovered
from easyscale.master.ranges import cover
from easyscale.master.sentences import devices_of, fate, seconds, workers_of
from easyscale.master.situation import Halting, Loss, Opening, Situation, Suspicion, Wanted, Watch


def lose(s: Situation, worker: int, how: str, code: int | None = None) -> None:
    """A member of the plan in force, or of the order on the way, is out."""
    hand = s.hands[worker]
    in_force = any(member.worker == worker for member in s.members())
    hand.lost = True
    s.departing.discard(worker)
    if not hand.ended:
        s.send(worker, Fence(why=f"it {how}"))
        s.decisions.append(Kill(worker=worker))
    s.losses.append(Loss(worker=worker, how=how, during=s.steps, noticed=s.now, code=code))
    if s.opening is not None and s.opening.order.how == "switch" and not in_force:
        cancel(s, s.opening.wish, f"{s.name(worker)} {how}")
        s.opening.wish = None
    halt(s)


def cancel(s: Situation, wish: Wanted | None, why: str) -> None:
    """A wish is given up because of its newcomer."""
    if wish is not None:
        stays = f"; the job goes on with {workers_of(s.current.plan)}" if s.current is not None else ""
        s.say("switch-cancelled", f"The change to {plan_of(wish)} is cancelled: {why}{stays}.")


def plan_of(wish: Wanted) -> str:
    if wish.slots is not None:
        return devices_of(wish.slots)
    if wish.split is not None:
        return workers_of(Plan(wish.split))
    return "a plan without those who want to leave" if wish.workers is None else f"{wish.workers} workers"


def halt(s: Situation) -> None:
    """Dissolve the group. Who was never ordered anything is in none."""
    s.suspicion = None
    s.broken = s.now if s.broken is None else s.broken
    if s.halting is None:
        asked = {worker for worker in s.concerned() if s.hands[worker].ordered >= 0}
        s.halting = Halting(since=s.now, asked=asked)
        for worker in sorted(asked):
            s.send(worker, Halt(epoch=s.epoch))


def answered(s: Situation, status: Status) -> None:
    hand = s.hands[status.worker]
    if s.halting is None or status.worker not in s.halting.asked or status.epoch < hand.joined:
        s.dropped["older plan"] += 1
        return
    hand.joined = max(hand.joined, status.epoch)
    s.halting.statuses[status.worker] = status


def suspect(s: Situation, word: Lost) -> None:
    """A worker's group is broken. Mostly the cause is found elsewhere at once; else the search begins."""
    epochs = {s.opening.order.epoch} if s.opening is not None else set()
    if s.current is not None and (s.opening is None or s.opening.order.how == "switch"):
        epochs.add(s.current.epoch)
    if word.epoch not in epochs:
        s.dropped["older plan"] += 1
    elif s.halting is None:
        if s.suspicion is None:
            s.suspicion = Suspicion(since=s.now, accusers=set(), timed_out=False)
        s.suspicion.accusers.add(word.worker)
        s.suspicion.timed_out |= word.timed_out


def regroup(s: Situation) -> None:
    """Nobody is to blame: the same workers try it again, a limited number of times in a row."""
    s.regrouped += 1
    if s.regrouped > s.limits.regroupings:
        endings.fail(
            s,
            f"The workers lose each other again and again, {s.regrouped} times without a completed global step.\n"
            "  why: all of them live and reach the master, but not each other.\n"
            "  now: check the network between them (firewall, interfaces), then start the job again; one with"
            " --checkpoint-dir goes on with --resume latest.",
        )
    else:
        halt(s)


def settle(s: Situation) -> None:
    """All have answered: the order that goes on."""
    if s.halting is None or s.over or (s.ending is not None and s.ending.why != "stop"):
        return
    s.halting.asked = {worker for worker in s.halting.asked if s.usable(worker)}
    if s.halting.asked <= s.halting.statuses.keys():
        _recover(s)


def _recover(s: Situation) -> None:
    base, leaving, cancelled = _base(s)
    living = {m.worker for m in base if s.usable(m.worker) and s.hands[m.worker].ordered >= 0}
    with_state = {worker for worker in living if s.hands[worker].joined >= 0}
    for loss in s.losses:
        loss.ests = next((m.ests for m in base if m.worker == loss.worker), loss.ests)
    if cancelled is not None and cancelled.wish is not None:
        if cancelled.wish.scheduled:
            s.planned -= 1
        elif s.wish is None and not cancelled.wish.unasked:
            s.wish = cancelled.wish
    began = s.current is not None
    s.halting = s.opening = None
    if not living or (began and not with_state):
        endings.all_lost(s)
        return
    if with_state and len(with_state) < len(living) and s.wish is None:
        # Those without state wait for a switch: while the others look for what was lost, nobody can give them any.
        s.wish = Wanted(workers=len(living), slots=s.slots_of(sorted(living)))
    order = Order(
        epoch=s.epoch + 1, how="recover" if with_state else "start", members=cover(base, with_state or living),
        rendezvous=s.terms.rendezvous(s.epoch + 1), leaving=leaving,
    )  # fmt: skip
    give(s, order, None)
    if s.ending is not None:
        for hand in s.candidates():
            s.dismiss(hand.number, "the job is stopped")


def _base(s: Situation) -> tuple[tuple[Member, ...], tuple[int, ...], Opening | None]:
    """The plan whose ranges the living keep, who still waits to be dismissed from it, and the switch that is cancelled.

    A switch counts once one of the living has joined it; until then the plan before it is the one that they hold.
    """
    if s.opening is None:
        return s.members(), (), None
    order = s.opening.order
    if order.how == "switch" and not any(s.hands[w].joined == order.epoch for w in s.concerned()):
        return s.members(), (), s.opening
    return order.members, tuple(worker for worker in order.leaving if s.usable(worker)), None


def give(s: Situation, order: Order, wish: Wanted | None) -> None:
    """An order goes to all whom it concerns; those who are not ready get it when they are."""
    planned = s.terms.schedule.entries[s.planned + 1 :]
    order = replace(order, until=planned[0][0] if planned else None)
    s.epoch, s.opening = order.epoch, Opening(order=order, wish=wish, progress=s.now)
    for worker in (*(member.worker for member in order.members), *order.leaving):
        if s.hands[worker].ready:
            deliver(s, worker)


def deliver(s: Situation, worker: int) -> None:
    assert s.opening is not None
    s.hands[worker].ordered = s.opening.order.epoch
    s.send(worker, s.opening.order)


def joined(s: Situation, word: Joined) -> None:
    opening, hand = s.opening, s.hands[word.worker]
    if opening is None or word.epoch != opening.order.epoch or opening.order.rank_of(word.worker) is None:
        s.dropped["older plan"] += 1
        return
    hand.joined = word.epoch
    opening.steps[word.worker], opening.progress = word.step, s.now
    if s.halting is None and all(member.worker in opening.steps for member in opening.order.members):
        _in_force(s, opening)


def _in_force(s: Situation, opening: Opening) -> None:
    order, step = opening.order, max(opening.steps.values())
    before = s.current.plan if s.current is not None else None
    told = s.watch
    if told is not None:  # its first step was never seen
        _tell_plan(s, told, None)
    if s.replaying_from is not None:
        lost = max(s.replaying_from - step, 0)
        s.say("restarted", f"Started again at step {step}; {lost} step{'s' if lost != 1 else ''} lost.", step)
        s.decisions.append(Recovered(step=step, workers=(), seconds=0.0, lost_steps=lost))
        s.steps, s.replaying_from = step, None
    s.steps = max(s.steps, step)
    s.current, s.opening = order, None
    s.watch = Watch(
        order=order, before=before, since=s.now, step=step, left_at=s.step_time, times=opening.times
    )  # fmt: skip
    s.decisions.append(InForce(epoch=order.epoch, step=step, members=order.members))
    for worker in order.leaving:
        if s.usable(worker):
            s.dismiss(worker, "its ESTs run elsewhere")
    if before is None:
        s.say("plan", f"Starts at step {step} on {workers_of(order.plan)}.", step)
    _first_step(s)


def step_done(s: Situation, word: StepDone) -> None:
    """A global step was completed, as one worker tells; all of its members have told: the way to it is over."""
    hand = s.hands[word.worker]
    if word.step + 1 > s.steps:
        s.steps, s.regrouped = word.step + 1, 0
    if s.opening is not None:
        s.opening.progress = s.now
        if word.step >= s.opening.steps.get(word.worker, word.step + 1):  # else one before it, told late
            s.opening.times.setdefault(word.worker, word.time)
            return
    s.step_time = word.time if s.step_time is None else max(word.time, s.step_time)
    if s.watch is not None and word.step < s.watch.step:  # of the plan before, told late
        s.watch.left_at = word.time if s.watch.left_at is None else max(word.time, s.watch.left_at)
    elif s.watch is not None and hand.joined == s.watch.order.epoch:
        s.watch.times.setdefault(word.worker, word.time)
        _first_step(s)


def _first_step(s: Situation) -> None:
    watch = s.watch
    if watch is None or not all(member.worker in watch.times for member in watch.order.members):
        return
    s.watch, done_at = None, max(watch.times.values())
    s.step_time = done_at if s.step_time is None else max(done_at, s.step_time)
    if watch.order.how == "recover" or s.losses:
        _tell_losses(s, watch)
    else:
        _tell_plan(s, watch, None if watch.left_at is None else done_at - watch.left_at)


def conclude(s: Situation) -> None:
    """The job is done, and no step followed the last recovery: it is told all the same."""
    watch = s.watch
    if watch is not None and not s.alive() and endings.is_finished(s) and (watch.order.how == "recover" or s.losses):
        s.watch = None
        _tell_losses(s, watch)


def _tell_plan(s: Situation, watch: Watch, pause: float | None) -> None:
    if watch.before is None or watch.order.how != "switch":
        return
    cost = "" if pause is None else f"; pause {seconds(max(pause, 0.0))}"
    s.say(
        "plan",
        f"From step {watch.step} on {workers_of(watch.order.plan)} instead of {workers_of(watch.before)}{cost}.",
        watch.step,
    )
    if pause is not None:
        s.decisions.append(Paused(step=watch.step, seconds=max(pause, 0.0)))


def _tell_losses(s: Situation, watch: Watch) -> None:
    began, s.broken = s.broken if s.broken is not None else watch.since, None
    for loss in s.losses:
        s.say(
            "worker-lost",
            f"{s.name(loss.worker)} {loss.how} during step {loss.during}; {fate(loss.ests, watch.order.members)};"
            f" 0 steps lost, {seconds(s.now - loss.noticed)}.",
            loss.during,
        )
    if not s.losses:
        text = f"The workers lost each other and found each other again; 0 steps lost, {seconds(s.now - began)}."
        s.say("regrouped", text)
    lost = tuple(loss.worker for loss in s.losses)
    s.decisions.append(Recovered(step=watch.step, workers=lost, seconds=s.now - began, lost_steps=0))
    s.losses = []
