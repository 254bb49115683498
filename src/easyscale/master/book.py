"""The whole of what a master knows, folded from its inputs: the plan (`brain`) and the training (`state`).

Pure: a master that is started again folds the journal and is where its predecessor was.
"""

from __future__ import annotations

from easyscale.core.control import Beat
from easyscale.core.messages import Done, Event, Failed, Fingerprint, StepDone, Witness
from easyscale.core.plan import Plan
from easyscale.master.brain import Brain
from easyscale.master.decisions import Decision, InForce, Paused, Recovered, Say, Start
from easyscale.master.inputs import Said
from easyscale.master.journal import Entry
from easyscale.master.situation import Terms
from easyscale.master.state import JobState, StepRecord

OfTraining = StepDone | Fingerprint | Witness | Event | Done | Failed


class Book:
    """`take` each entry. Decisions that only tell something are kept here; those that do something are returned."""

    def __init__(self, terms: Terms, wall: float) -> None:
        self.brain, self.state = Brain(terms), JobState(terms.ests)
        plan, _ = terms.schedule.at(terms.first_step)
        self.state.expect(plan, terms.first_step, wall)
        self.heard: dict[int, int] = {}  # by worker, the highest number of a frame

    def is_news(self, said: Said) -> bool:
        """False: heard before, on an older connection or by an earlier master."""
        return said.seq is None or said.seq > self.heard.get(said.worker, 0)

    def take(self, entry: Entry) -> list[Decision]:
        given, hands = entry.given, self.brain.facts.hands
        if isinstance(given, Said):
            if given.seq is not None:
                self.heard[given.worker] = given.seq
            hand = hands.get(given.worker)
            if hand is not None and not hand.lost and isinstance(given.body, OfTraining):
                self.state.apply(given.body, entry.wall)
        decisions = self.brain.take(given, entry.now)
        self.state.dropped = dict(self.brain.facts.dropped)
        return [decision for decision in decisions if not self._noted(decision, entry.wall)]

    def take_steps(self) -> list[StepRecord]:
        """Completed steps, in order. One that a dead worker has told only in part is passed on with its successor."""
        records = self.state.take_steps()
        if records:
            self.state.close_steps(max(record.step for record in records))
            records = sorted([*records, *self.state.take_steps()], key=lambda record: record.step)
        return records

    def _noted(self, decision: Decision, wall: float) -> bool:
        state = self.state
        match decision:
            case Say():
                state.note(wall, decision.step, decision.what, decision.text)
            case Start():
                state.meant[decision.worker] = Plan(decision.split).range_of(decision.rank)
                return False
            case InForce():
                state.enter(decision.members, decision.step, wall)
            case Paused():
                state.switches.append((decision.step, decision.seconds))
            case Recovered():
                state.lost_steps += decision.lost_steps
                state.recoveries.append(
                    {
                        "step": decision.step, "workers": list(decision.workers), "seconds": decision.seconds,
                        "lost_steps": decision.lost_steps,
                    }
                )  # fmt: skip
            case _:
                return False
        return True


def is_written(entry: Entry) -> bool:
    """Beats are not: there are too many, and nothing follows from one alone."""
    return not (isinstance(entry.given, Said) and isinstance(entry.given.body, Beat))
