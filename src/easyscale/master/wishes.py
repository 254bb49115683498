"""The rules of wishes: which plan is wanted next, whom that needs, and when the order is given.

The last wish wins. Newcomers start beside the running workers; the order is given when all are ready. A newcomer that
fails or is late cancels the wish, and the job goes on as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from easyscale.core.cluster import Slot
from easyscale.core.control import Declined, Order
from easyscale.core.errors import PlanError
from easyscale.core.messages import Failed
from easyscale.core.plan import Plan
from easyscale.core.requests import Accepted, Refused
from easyscale.master import endings, losses, placing
from easyscale.master.decisions import Answer, Kill, Start
from easyscale.master.inputs import Scale
from easyscale.master.ranges import arrange, stayers
from easyscale.master.sentences import devices_of, died, headline, shell_code, workers_of
from easyscale.master.situation import Hand, Situation, Wanted

SIGTERM = 15  # what a job is told whose only worker has to go


def ask(s: Situation, scale: Scale) -> None:
    """Someone wishes another plan: answered at once, carried out when it can be."""
    try:
        reply = _leave(s, scale.leave) if scale.leave is not None else _scale(s, scale)
        s.decisions.append(Answer(reply=reply))
    except PlanError as problem:
        s.decisions.append(Answer(reply=Refused(what=problem.what, why=problem.why, now=problem.now)))


def wants_to_leave(s: Situation, worker: int) -> None:
    """A worker was told to go: a plan without it. Where nobody else is left, the job stops with a checkpoint."""
    if worker not in s.concerned():
        if s.current is not None:
            candidate_lost(s, worker, "was told to leave", None)
        else:
            endings.stop(s, SIGTERM, asked=False)
        return
    s.departing.add(worker)
    if s.wish is None or s.wish.slots is None:  # a wish for devices lets those go first who want to
        s.wish = Wanted()
    _reconsider(s)


def candidate_lost(s: Situation, worker: int, how: str, code: int | None) -> None:
    """A worker that has no place yet is gone."""
    hand = s.hands[worker]
    hand.lost = True
    if not hand.ended:
        s.decisions.append(Kill(worker=worker))
    if s.current is not None or s.opening is not None:
        _give_up(s, f"{s.name(worker)} {how}")
        return
    others = [other for other in s.candidates() if other.number >= s.attempt]
    if code is not None and code > 0:  # the script ended itself: it would do so again
        endings.fail(s, died(f"worker {worker}", code, s.steps), exit_code=shell_code(code), worker=worker)
    elif s.restarts < s.limits.max_restarts and len(others) < _floor(s):
        s.restarts += 1
        s.say("worker-lost", f"{s.name(worker)} {how}; another one is started.")
    elif others:
        s.say("worker-lost", f"{s.name(worker)} {how}; the job starts without it.")
        s.wanted = _those(s, [other.number for other in others])
    else:
        endings.fail(s, died(f"worker {worker}", code, s.steps), exit_code=shell_code(code), worker=worker)


def candidate_failed(s: Situation, word: Failed) -> None:
    """Before there is a plan it is the job's failure; later only the wish is given up."""
    hand = s.hands[word.worker]
    hand.failed, hand.gone_by = word, s.now + s.limits.grace
    if s.current is None and s.opening is None:
        endings.failed(s, word)
    else:
        _give_up(s, f"{s.name(word.worker)} failed before it was ready: {headline(word)}")


def declined(s: Situation, word: Declined) -> None:
    """The members cannot make the switch: they stay on their plan, and it is the one that is wanted from now on."""
    opening = s.opening
    if opening is None or opening.order.epoch != word.epoch or opening.steps or s.halting is not None:
        s.dropped["older plan"] += 1
        return
    s.opening = None
    s.wanted = _those(s, [member.worker for member in s.members()])
    losses.cancel(s, opening.wish, word.why)


def may_move(s: Situation) -> bool:
    """Nothing that someone wished or that has happened is in the way of other ESTs for the same workers."""
    free = s.calm and s.wish is None and s.watch is None and not s.departing and not s.losses
    members = [s.hands[member.worker] for member in s.members()]
    return s.limits.rebalance and not s.asked and free and s.ending is None and all(hand.usable for hand in members)


def move(s: Situation, split: tuple[int, ...]) -> None:
    """The workers of the plan stay, in their order, with so many ESTs each. What was asked for stays what is wanted."""
    s.wish = Wanted(workers=len(split), split=split, unasked=True)


def settle(s: Situation) -> None:
    """Bring the workers nearer to what is wanted."""
    if s.over or s.ending is not None or not s.calm:
        return
    if any(s.hands[member.worker].done for member in s.members()):
        if s.wish is not None:
            s.say("switch-cancelled", f"The change to {losses.plan_of(s.wish)} is cancelled: the script has ended.")
        s.wish = None
        _dismiss(s, s.candidates(), "the script has ended")
        return
    if s.current is None:
        _towards(s, s.wish or s.wanted)
        return
    while s.calm and s.ending is None:
        s.wish = s.wish or _next_wish(s)
        if s.wish is None:
            _dismiss(s, s.candidates(), "it is not needed any more")
            return
        _towards(s, s.wish)
        if s.wish is not None:  # its newcomers are not ready
            return


def _towards(s: Situation, wish: Wanted, later: Sequence[Slot] = ()) -> None:
    """`later`: devices of the wish after this one; who starts there goes on with it."""
    present = [m.worker for m in s.members() if s.usable(m.worker) and m.worker not in s.departing]
    if wish.slots is not None and (first := placing.before(s, wish.slots)) is not None:
        _towards(s, replace(wish, workers=len(first) or None, split=None, slots=first or None), wish.slots)
        s.wish = wish if s.ending is None else None
        return
    stay = stayers(present, wish.workers) if wish.slots is None else placing.stayers(s, present, wish.slots)
    wanted = wish.workers if wish.workers is not None else len(stay)
    if wanted == 0:  # all want to leave
        endings.stop(s, SIGTERM, asked=False)
        return
    split = wish.split or Plan.even(s.terms.ests, wanted).split
    plain = [] if s.current is not None else _ended_well(s)
    fresh = sorted(s.candidates(), key=lambda hand: (not hand.ready, hand.number))
    needed = wanted - len(stay)
    chosen = fresh[:needed] if wish.slots is None else placing.newcomers(s, fresh, stay, wish.slots)
    spare = [hand for hand in fresh if hand not in chosen and hand.slot not in later]
    _dismiss(s, spare, "it is not needed any more")
    fresh = sorted(chosen, key=lambda hand: hand.number)
    missing = needed - len(fresh) - len(plain)
    places: Sequence[Slot | None] = [None] * missing
    if wish.slots is not None:
        places = placing.vacant(s, wish.slots, plain)
    fresh += [_start(s, split, len(stay) + len(fresh) + n, slot) for n, slot in enumerate(places)]
    if len(fresh) + len(plain) < needed:  # on the devices of the others someone is still about to end
        return
    if plain:
        if fresh and all(hand.ready for hand in fresh):  # some never came: the others need not wait for them
            for hand in plain:
                hand.lost = True
            s.wanted = _those(s, [hand.number for hand in fresh])
            _towards(s, s.wanted)
        return
    members = arrange(split, [*stay, *(hand.number for hand in fresh)])
    if s.current is not None and members == s.members():
        s.wish = None
    elif all(hand.ready for hand in fresh) or (wish.scheduled and s.current is not None):
        s.wish = None
        inside = {member.worker for member in members}
        losses.give(
            s,
            Order(
                epoch=s.epoch + 1, how="switch" if s.current is not None else "start", members=members, at=wish.at,
                rendezvous=s.terms.rendezvous(s.epoch + 1),
                joining=tuple(hand.number for hand in fresh) if s.current is not None else (),
                leaving=tuple(m.worker for m in s.members() if s.usable(m.worker) and m.worker not in inside),
            ),
            wish,
        )  # fmt: skip


def _next_wish(s: Situation) -> Wanted | None:
    """What is wanted although nobody has just asked: who wants to leave, lost workers to replace, the schedule."""
    present = [m.worker for m in s.members() if s.usable(m.worker)]
    if s.departing & set(present):
        return Wanted()
    missing = min(_floor(s) - len(present), s.limits.max_restarts - s.restarts)
    slots = s.wanted.slots
    if slots is not None and missing > 0:
        slots = placing.chosen(s, present, slots, len(present) + missing)
        missing = len(slots) - len(present)
    if missing > 0:
        s.restarts += missing
        whole = len(present) + missing == s.wanted.workers
        return Wanted(workers=len(present) + missing, split=s.wanted.split if whole else None, slots=slots)
    if s.planned + 1 < len(s.terms.schedule.entries):
        s.planned += 1
        step, plan = s.terms.schedule.entries[s.planned]
        s.wanted = Wanted(workers=plan.workers, split=plan.split)
        return replace(s.wanted, at=step, scheduled=True)
    return None


def _scale(s: Situation, scale: Scale) -> Accepted:
    if scale.slots is not None:
        return _place(s, scale.slots)
    plan = Plan(scale.split) if scale.split is not None else Plan.even(s.terms.ests, scale.workers or 0)
    if plan.ests != s.terms.ests:
        raise PlanError(
            f"The split {plan} has {plan.ests} ESTs, but the job has {s.terms.ests}.",
            "every EST runs on exactly one worker.",
            f"change the numbers so that they add up to {s.terms.ests}.",
        )
    _check(s, plan.workers)
    slots = None
    if s.slots is not None:
        if plan.workers > len(s.slots):
            raise PlanError(
                f"{plan.workers} workers are more than the job has devices.",
                f"it was given {devices_of(s.slots)}, and each device runs one worker.",
                "ask whoever gives the job its devices for more: `easyscale describe` shows what it waits for.",
            )
        present = [m.worker for m in s.members() if s.usable(m.worker) and m.worker not in s.departing]
        slots = placing.chosen(s, present, s.slots, plan.workers)
    s.wanted = s.wish = Wanted(workers=plan.workers, split=scale.split, slots=slots)
    s.asked = scale.split is not None
    _reconsider(s)
    return Accepted(text=f"The job goes to {workers_of(plan)}.", split=plan.split)


def _place(s: Situation, slots: tuple[Slot, ...]) -> Accepted:
    """Exactly these devices from now on."""
    plan = Plan.even(s.terms.ests, len(slots))
    _check(s, plan.workers)
    placing.refuse_mix(s.terms.level, slots)
    s.slots, s.asked = slots, False
    s.wanted = s.wish = Wanted(workers=len(slots), slots=slots)
    _reconsider(s)
    return Accepted(text=f"The job goes to {workers_of(plan)} on {devices_of(slots)}.", split=plan.split)


def _leave(s: Situation, worker: int) -> Accepted:
    first = s.opening.order.members if s.current is None and s.opening is not None else ()
    members = [member.worker for member in s.members() or first if s.usable(member.worker)]
    if worker not in members:
        raise PlanError(
            f"Worker {worker} is not in the plan.",
            f"the workers of the plan in force are {', '.join(map(str, members)) or 'not there yet'}.",
            "name one of them; `easyscale top` shows them.",
        )
    rest = [other for other in members if other != worker and other not in s.departing]
    if not rest:
        raise PlanError(
            f"Worker {worker} is the only one.",
            "nobody could take its ESTs over.",
            "wish another worker first, or stop the job with `easyscale stop`.",
        )
    _check(s, len(rest))
    s.departing.add(worker)
    s.wish, s.wanted, s.asked = Wanted(), _those(s, rest), False
    _reconsider(s)
    plan = Plan.even(s.terms.ests, len(rest))
    return Accepted(text=f"Worker {worker} hands its ESTs over and leaves.", split=plan.split)


def _check(s: Situation, workers: int) -> None:
    if s.ending is not None or s.over:
        raise PlanError("The job is ending.", "it was stopped, or it failed.", "start it again.")
    least, most = s.limits.workers or (1, s.terms.ests)
    if not least <= workers <= most:
        raise PlanError(
            f"{workers} workers are outside of what the job allows.",
            f"it was started with --workers {least}:{most}.",
            f"wish {least} to {most} workers.",
        )


def _floor(s: Situation) -> int:
    """Below so many workers, lost ones are replaced."""
    return s.limits.workers[0] if s.limits.workers is not None else s.wanted.workers or 1


def _reconsider(s: Situation) -> None:
    """A switch that was ordered for a later step would keep a newer wish waiting: it is taken back."""
    opening = s.opening
    if opening is not None and opening.order.how == "switch" and s.halting is None and not opening.steps:
        at = opening.order.at
        if at is not None and s.steps + 1 < at:
            losses.halt(s)


def _give_up(s: Situation, why: str) -> None:
    """The wish under way loses its newcomer."""
    wish, s.wish = s.wish, None
    losses.cancel(s, wish, why)


def _ended_well(s: Situation) -> list[Hand]:
    """Scripts that came to their end without asking for a place: they may never need one."""
    return [h for h in s.hands.values() if h.number >= s.attempt and h.ended and h.code == 0 and not h.lost]


def _those(s: Situation, workers: list[int]) -> Wanted:
    """A plan with just these workers."""
    return Wanted(workers=len(workers), slots=s.slots_of(workers))


def _start(s: Situation, split: tuple[int, ...], rank: int, slot: Slot | None) -> Hand:
    number, s.next_number = s.next_number, s.next_number + 1
    hand = s.hands[number] = Hand(number=number, since=s.now, slot=slot)
    resume = None if s.current is not None else s.terms.resume if s.attempt == 0 else s.terms.resume_again
    s.decisions.append(Start(worker=number, split=split, rank=min(rank, len(split) - 1), resume=resume, slot=slot))
    return hand


def _dismiss(s: Situation, hands: list[Hand], why: str) -> None:
    for hand in hands:
        s.dismiss(hand.number, why)
