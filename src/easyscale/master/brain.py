"""The master of an elastic job as a pure state machine: inputs and the time go in, decisions come out.

No clock, no I/O, no randomness: the same inputs give the same decisions, so a master that is started again finds its
place by hearing the journal once more. Rules are in `wishes`, `losses` and `endings`; `deadlines` says what is due,
`balancing` what is known of speeds.
"""

from __future__ import annotations

from typing import Any

from easyscale.core.control import Beat, Declined, Dismiss, Fence, Halt, Hello, Joined, Lost, Status, WantsToLeave, Wish
from easyscale.core.messages import Done, Failed, Ready, StepDone
from easyscale.core.plan import Plan
from easyscale.core.requests import Accepted, Refused
from easyscale.master import deadlines, endings, losses, wishes
from easyscale.master.balancing import Balance
from easyscale.master.decisions import Answer, Decision, Kill
from easyscale.master.inputs import Begun, Ended, Input, NotStarted, Overdue, Said, Save, Scale, Started, Stop, TooMany
from easyscale.master.sentences import died, headline, how_ended
from easyscale.master.situation import Hand, Situation, Terms, Wanted


class Brain:
    """`take` each input; ask `due` now and then, and take what it says. `facts` and `balance` are for reading."""

    def __init__(self, terms: Terms) -> None:
        self.facts = s = Situation(terms)
        s.steps = terms.first_step
        plan, _ = terms.schedule.at(terms.first_step)
        s.slots = terms.slots
        s.planned = sum(1 for step, _ in terms.schedule.entries if step <= terms.first_step) - 1
        s.wanted = Wanted(workers=plan.workers, split=plan.split, slots=terms.slots)
        s.asked = len(terms.schedule.entries) > 1 or plan != Plan.even(terms.ests, plan.workers)
        self.balance = Balance(terms.ests, terms.last_step, terms.level, terms.kinds, terms.verdict)

    def take(self, given: Input, now: float) -> list[Decision]:
        s = self.facts
        s.now = now
        if s.over and not isinstance(given, Scale | Save):  # those are answered
            return []
        match given:
            case Said(body=Beat()):
                self._said(given)
                return self._decided()  # beats are not written down, so nothing else may follow from them
            case Said():
                self._said(given)
            case Begun():
                if given.again:
                    self._begun_again()
            case Started():
                hand = s.hands[given.worker]
                hand.pid, hand.started = given.pid or None, given.started
            case NotStarted():
                s.hands[given.worker].ended = True
                self._gone(s.hands[given.worker], f"could not be started ({given.why})", None)
            case Ended():
                self._ended(s.hands[given.worker], given.code)
            case Scale():
                wishes.ask(s, given)
            case Stop():
                endings.stop(s, given.number, now=given.now)
            case Save():
                self._save()
            case TooMany():
                endings.too_many(s, given.processes)
            case Overdue():
                self._overdue(given)
        losses.settle(s)
        losses.conclude(s)
        endings.settle(s)
        wishes.settle(s)
        self.balance.follow(s, given)
        wishes.settle(s)
        return self._decided()

    def _decided(self) -> list[Decision]:
        decisions, self.facts.decisions = self.facts.decisions, []
        return decisions

    def due(self, now: float) -> list[Overdue]:
        return deadlines.due(self.facts, now)

    def forgive(self, now: float) -> None:
        """The master itself was away: nobody's silence counts until now."""
        for hand in self.facts.hands.values():
            hand.heard = now

    # ------------------------------------------------------------------ what workers say

    def _said(self, said: Said) -> None:
        s, body = self.facts, said.body
        hand = s.hands.get(said.worker)
        if hand is None or getattr(body, "worker", said.worker) != said.worker:
            s.dropped["nobody"] += 1
            return
        if hand.lost or (hand.ended and not isinstance(body, StepDone | Done | Failed)):
            s.dropped["nobody"] += 1
            if not hand.ended or isinstance(body, Hello | Beat):  # it was given up, and was only out of reach
                s.send(said.worker, Fence(why="it was declared lost; its ESTs run elsewhere"))
            return
        hand.spoke, hand.heard = True, s.now
        self._heed(hand, body)

    def _heed(self, hand: Hand, body: Any) -> None:
        s = self.facts
        match body:
            case Beat():
                hand.waiting = body.waiting
            case Hello():
                hand.pid = body.pid if hand.pid is None else hand.pid
                self._remind(hand)
            case Ready():
                self._ready(hand)
            case Joined():
                losses.joined(s, body)
            case Lost():
                losses.suspect(s, body)
            case Status():
                losses.answered(s, body)
            case StepDone():
                losses.step_done(s, body)
            case WantsToLeave() if s.ending is None:
                wishes.wants_to_leave(s, hand.number)
            case Declined():
                wishes.declined(s, body)
            case Done():
                self._done(hand)
            case Failed():
                self._failed(hand, body)
            case _:
                pass  # of interest to the job's state, not to its plan

    def _ready(self, hand: Hand) -> None:
        s = self.facts
        hand.ready = True
        s.first_ready = s.now if s.first_ready is None else s.first_ready
        if s.opening is not None and self._misses_order(hand):
            s.opening.progress = s.now
            losses.deliver(s, hand.number)

    def _remind(self, hand: Hand) -> None:
        """A new connection: what was said on the old one may be lost. All of it can be heard twice."""
        s, worker = self.facts, hand.number
        if hand.dismissed:
            s.send(worker, Dismiss(why="nothing of it is needed any more"))
            return
        if s.halting is not None and worker in s.halting.asked and worker not in s.halting.statuses:
            s.send(worker, Halt(epoch=s.epoch))
        elif self._misses_order(hand):
            losses.deliver(s, worker)
        if s.ending is not None and s.ending.why == "stop" and worker in s.concerned():
            s.send(worker, Wish(stop=s.ending.number))

    def _misses_order(self, hand: Hand) -> bool:
        s = self.facts
        if s.opening is None or s.halting is not None or not hand.ready or hand.number in s.opening.steps:
            return False
        order = s.opening.order
        return order.rank_of(hand.number) is not None or hand.number in order.leaving

    def _done(self, hand: Hand) -> None:
        """A script has come to its end. A switch that nobody has begun will not come any more."""
        s = self.facts
        hand.done, hand.gone_by = True, s.now + s.limits.grace
        opening = s.opening
        if opening is not None and s.halting is None and hand.number not in opening.steps:
            if opening.order.how == "switch" and not opening.steps:
                s.opening = None
            elif opening.order.rank_of(hand.number) is not None:
                losses.halt(s)

    def _failed(self, hand: Hand, word: Failed) -> None:
        s, worker = self.facts, hand.number
        member = worker in s.concerned()
        others = [other for other in s.concerned() if other != worker]
        if not member:
            wishes.candidate_failed(s, word)
        elif word.oom and others and s.current is not None:
            losses.lose(s, worker, "ran out of memory")
        elif word.lost_peer and others:
            losses.lose(s, worker, "lost its peers")
        elif s.current is not None and not any(m.worker == worker for m in s.members()):
            losses.lose(s, worker, f"failed: {headline(word)}")
        else:
            hand.failed = word
            endings.failed(s, word)

    # ------------------------------------------------------------------ what the shell has found out

    def _begun_again(self) -> None:
        s = self.facts
        self.forgive(s.now)
        for hand in s.alive():
            hand.since = s.now
        if s.opening is not None:
            s.opening.progress = s.now
        if s.halting is not None:
            s.halting.since = s.now
        s.say("master-restarted", f"The master was started again at step {s.steps}; {len(s.alive())} workers live.")

    def _ended(self, hand: Hand, code: int | None) -> None:
        s = self.facts
        if hand.ended:
            return
        hand.ended, hand.code = True, code
        if hand.lost:
            return
        if hand.dismissed:
            if s.ending is None and hand.joined >= 0:
                s.say("worker-left", f"{s.name(hand.number)} left.")
        elif hand.failed is not None:
            if s.ending is not None and s.ending.worker == hand.number and code is not None and code > 0:
                s.ending.exit_code = code
        elif hand.done:
            if code is not None and code > 0:
                endings.fail(
                    s, died(f"worker {hand.number}", code, s.steps), exit_code=code, worker=hand.number
                )  # fmt: skip
        elif not endings.left_as_asked(s, code):
            self._gone(hand, how_ended(code), code)

    def _gone(self, hand: Hand, how: str, code: int | None, *, overdue: bool = False) -> None:
        """A worker is out of the job without being asked."""
        s, worker = self.facts, hand.number
        opening = s.opening
        in_plan = any(m.worker == worker for m in s.members())
        in_opening = opening is not None and (
            opening.order.rank_of(worker) is not None or worker in opening.order.leaving
        )
        if in_plan or in_opening:
            losses.lose(s, worker, how, code)
        elif code == 0 and not hand.ready and s.current is None and s.opening is None:
            pass  # a script that never asked for a place; `endings` knows what that means
        else:
            early = f"{how} before it was ready" if hand.pid is not None and not overdue else how
            wishes.candidate_lost(s, worker, early, code)

    def _save(self) -> None:
        s = self.facts
        members = s.concerned()
        if s.current is None or s.ending is not None or s.over:
            s.decisions.append(Answer(reply=Refused(what="The job is not training.", why="there is nothing to save.")))
            return
        for worker in members:
            s.send(worker, Wish(checkpoint=True))
        s.decisions.append(Answer(reply=Accepted(text="A checkpoint is written at the next step on which all agree.")))

    def _overdue(self, fact: Overdue) -> None:
        s = self.facts
        limits = s.limits
        how = {
            "silent": f"did not answer for {limits.heartbeat:g} s",
            "late": f"was not ready in {limits.start:g} s",
            "status": f"did not leave its group in {limits.heartbeat:g} s",
            "blame": "held the others up",
            "join": f"did not join the plan in {limits.join:g} s",
        }
        if fact.what == "kill":
            endings.overdue(s)
        elif fact.what == "gone":
            for worker in fact.workers:
                s.hands[worker].gone_by = s.now + limits.kill
                s.decisions.append(Kill(worker=worker))
        elif not fact.workers:
            losses.regroup(s)
        for worker in fact.workers if fact.what in how else ():
            if s.usable(worker):
                self._gone(s.hands[worker], how[fact.what], None, overdue=True)
