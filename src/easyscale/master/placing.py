"""Who sits on which device, for jobs whose devices have names: one worker on a device, never two.

A device is taken as long as a process lives on it, also one that was told to leave: the next worker starts on it when
that one has ended, so that the two never share its memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from easyscale.core.cluster import Level, Slot
from easyscale.core.errors import PlanError
from easyscale.master.situation import Hand, Situation
from easyscale.planner.advice import may_mix


def refuse_mix(level: Level, slots: Sequence[Slot]) -> None:
    """Devices of several types are for jobs at D2."""
    kinds = tuple(dict.fromkeys(slot.kind for slot in slots))
    if not may_mix(level, kinds):
        raise PlanError(
            f"The job would run on devices of {len(kinds)} types at once ({', '.join(kinds)}).",
            f"level {level} keeps its bits on one device type.",
            "give it devices of one type, or run it at --determinism D2; `easyscale scan SCRIPT` says if it can.",
        )


def seats(s: Situation, workers: Sequence[int]) -> dict[str, int]:
    """The workers that sit on a device, by its id."""
    return {slot.id: worker for worker in workers if (slot := s.hands[worker].slot) is not None}


def stayers(s: Situation, present: Sequence[int], slots: Sequence[Slot]) -> list[int]:
    """Who sits on one of these devices, in the order that they have."""
    wanted = {slot.id for slot in slots}
    staying = seats(s, present)
    return [worker for worker in present if worker in {staying[slot] for slot in wanted & staying.keys()}]


def before(s: Situation, slots: Sequence[Slot]) -> tuple[Slot, ...] | None:
    """Those who want to leave have little time, and others may have to start where they sit: the devices of a plan
    that lets them go first (none: of whoever else is there). None: nobody is in the way."""
    members = [m.worker for m in s.members() if s.usable(m.worker)]
    leaving = [worker for worker in members if worker in s.departing]
    if not leaving:
        return None
    staying = seats(s, [worker for worker in members if worker not in s.departing])
    quick = tuple(slot for slot in slots if slot.id in staying)
    if quick:
        return quick if len(quick) < len(slots) else None
    rest = tuple(slot for slot in slots if slot.id not in seats(s, leaving))
    return rest if len(rest) < len(slots) else None


def newcomers(s: Situation, candidates: Sequence[Hand], stay: Sequence[int], slots: Sequence[Slot]) -> list[Hand]:
    """Of those who wait for a place, the first on each device that nobody else has."""
    open_, found = {slot.id for slot in slots} - seats(s, stay).keys(), []
    for hand in candidates:
        if hand.slot is not None and hand.slot.id in open_:
            open_.discard(hand.slot.id)
            found.append(hand)
    return found


def vacant(s: Situation, slots: Sequence[Slot], plain: Sequence[Hand]) -> list[Slot]:
    """The devices where no process lives and none has come to its end by itself (`plain`)."""
    taken = {hand.slot.id for hand in (*s.alive(), *plain) if hand.slot is not None}
    return [slot for slot in slots if slot.id not in taken]


def chosen(s: Situation, present: Sequence[int], slots: Sequence[Slot], count: int) -> tuple[Slot, ...]:
    """So many of these devices: those of the earliest workers, then those that are empty, in their order."""
    seated = seats(s, sorted(present))
    own = {slot.id: slot for slot in slots}
    taken = [own[slot] for slot in seated if slot in own]
    empty = [slot for slot in slots if slot.id not in seated]
    return tuple([*taken, *empty][:count])
