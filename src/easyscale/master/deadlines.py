"""Which limits have passed. Looks only; what follows from it is decided when the fact is told to the brain."""

from __future__ import annotations

from easyscale.master.inputs import Overdue, What
from easyscale.master.situation import Hand, Situation


def due(s: Situation, now: float) -> list[Overdue]:
    """At most one a kind, the most certain first."""
    if s.over:
        return []
    found: list[tuple[What, list[int] | None]] = [
        ("silent", [hand.number for hand in s.hands.values() if _silent(s, hand, now)]),
        ("late", [hand.number for hand in s.hands.values() if _late(s, hand, now)]),
        ("status", _unanswered(s, now)),
        ("blame", _guilty(s, now)),
        ("join", _outside(s, now)),
        ("gone", [hand.number for hand in s.hands.values() if _lingers(hand, now)]),
    ]
    facts = [
        Overdue(what=what, workers=tuple(workers))
        for what, workers in found
        if workers or (workers is not None and what in ("blame", "join"))
    ]
    if s.ending is not None and now > s.ending.deadline:
        facts.append(Overdue(what="kill"))
    return facts


def _silent(s: Situation, hand: Hand, now: float) -> bool:
    return hand.usable and hand.ready and now - hand.heard > s.limits.heartbeat


def _late(s: Situation, hand: Hand, now: float) -> bool:
    """Before there is a plan, the first that is ready starts the clock: until then the script is nobody's peer."""
    if hand.ready or not hand.usable or s.ending is not None:
        return False
    began = hand.since if s.current is not None else s.first_ready
    return began is not None and now - max(began, hand.since) > s.limits.start


def _unanswered(s: Situation, now: float) -> list[int] | None:
    if s.halting is None or now - s.halting.since <= s.limits.heartbeat:
        return None
    return sorted(worker for worker in s.halting.asked - s.halting.statuses.keys() if s.usable(worker))


def _guilty(s: Situation, now: float) -> list[int] | None:
    """Who holds the others up: those who compute while their peers wait in vain. None: it is not time."""
    if s.suspicion is None or s.halting is not None or now - s.suspicion.since <= s.limits.blame:
        return None
    if not s.suspicion.timed_out:
        return []
    members = [worker for worker in s.concerned() if s.hands[worker].ordered >= 0]
    busy = [worker for worker in members if not s.hands[worker].waiting and worker not in s.suspicion.accusers]
    return busy if len(busy) < len(members) else []


def _outside(s: Situation, now: float) -> list[int] | None:
    """Who has not joined the plan that was ordered; nobody in particular where none has. None: it is not time."""
    opening = s.opening
    if opening is None or s.halting is not None or now - opening.progress <= s.limits.join:
        return None
    missing = [member.worker for member in opening.order.members if member.worker not in opening.steps]
    return missing if opening.steps else []


def _lingers(hand: Hand, now: float) -> bool:
    return not hand.ended and hand.gone_by is not None and now > hand.gone_by
