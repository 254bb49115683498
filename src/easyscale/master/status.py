"""How a job is, for whoever asks: folded from what its master knows."""

from __future__ import annotations

from collections import Counter

from easyscale.core.plan import Plan
from easyscale.core.requests import Happening, JobStatus, Seat
from easyscale.core.requests import JobState as Word
from easyscale.master.book import Book
from easyscale.master.progress import Progress
from easyscale.master.registry import JobRecord
from easyscale.master.situation import Situation
from easyscale.master.state import JobState

MOST_PAUSES = 20


def status_of(
    record: JobRecord, book: Book, progress: Progress, *, events: int, dropped: Counter[str], checkpoint_dir: str | None
) -> JobStatus:
    facts, state = book.brain.facts, book.state
    last = progress.last
    loss = last.mean(last.loss_name) if last is not None and last.loss_name is not None else None
    told = state.events[len(state.events) - events :] if events else []
    return JobStatus(
        job=record.id,
        name=record.name,
        state=word_of(facts),
        ests=record.ests,
        started=record.started,
        seats=tuple(
            Seat(worker=m.worker, pid=hand.pid, first=m.first, count=m.count, slot=hand.slot.id if hand.slot else None)
            for m in facts.members()
            for hand in [facts.hands[m.worker]]
        ),
        plan_epoch=facts.current.epoch if facts.current is not None else -1,
        wanted=_wanted(facts),
        waiting=tuple(hand.number for hand in facts.candidates()),
        held=tuple(dict.fromkeys(hand.slot.id for hand in facts.alive() if hand.slot is not None)),
        step=facts.steps,
        total=_total(facts, state),
        epoch=max(state.epochs - 1, 0),
        samples_per_second=progress.rate(),
        loss=loss,
        checkpoint_dir=checkpoint_dir,
        speeds=book.brain.balance.speeds(),
        pauses=tuple(seconds for _, seconds in state.switches[-MOST_PAUSES:]),
        model=book.brain.balance.model(),
        dropped=dict(dropped + facts.dropped),
        events=tuple(
            Happening(step=event.step, what=event.what, text=event.text, time=event.time) for event in told[-events:]
        ),
    )


def word_of(facts: Situation) -> Word:
    if facts.over:
        return "failed" if facts.ending is not None else "done"
    if facts.ending is not None:
        return "stopping"
    if facts.current is None:
        return "starting"
    if facts.halting is not None or (facts.opening is not None and facts.opening.order.how != "switch"):
        return "recovering"
    return "switching" if facts.opening is not None or facts.wish is not None else "training"


def _total(facts: Situation, state: JobState) -> int | None:
    """What the script says, but no more than the job may have; a script that says too little is not believed."""
    known = [total for total in (facts.terms.last_step, state.total) if total is not None]
    return min(known) if known and min(known) >= facts.steps else None


def _wanted(facts: Situation) -> tuple[int, ...] | None:
    """The split on the way, if it is another than the one in force."""
    if facts.opening is not None and facts.opening.order.how == "switch":
        return facts.opening.order.plan.split
    wish = facts.wish
    if wish is None or wish.workers is None:
        return None
    return wish.split or Plan.even(facts.terms.ests, wish.workers).split
