"""The rules of the end: success, a failure, a stop by signal, and another attempt where the job allows it."""

from __future__ import annotations

from easyscale.core.control import Wish
from easyscale.core.messages import Failed
from easyscale.master.decisions import End, Kill
from easyscale.master.sentences import died, fate, shell_code, summary
from easyscale.master.situation import Ending, Hand, Situation


def fail(s: Situation, text: str, *, exit_code: int = 1, worker: int | None = None, ours: bool = True) -> None:
    """The job failed; the first failure counts, and a job that is being stopped counts as stopped."""
    if s.ending is not None and s.ending.why == "fail":
        return
    deadline = s.now + s.limits.failure
    if s.ending is None:
        s.ending = Ending(why="fail", deadline=deadline, exit_code=exit_code, text=text, worker=worker, ours=ours)
    else:
        s.ending.deadline = min(deadline, s.ending.deadline)
    s.opening = s.halting = s.suspicion = s.wish = None
    for hand in s.alive():
        if hand.usable:
            s.dismiss(hand.number, "the job failed")


def failed(s: Situation, word: Failed) -> None:
    """A member's error, the user's or ours: nothing is retried unless the job allows it."""
    s.hands[word.worker].gone_by = s.now + s.limits.grace
    fail(s, word.text, worker=word.worker, ours=word.ours)
    if s.ending is not None and s.ending.worker == word.worker:
        s.ending.est, s.ending.step = word.est, word.step


def too_many(s: Situation, processes: int) -> None:
    """All of it ends at once, before it takes the machine down, and would be the same the next time."""
    _kill_all(s, tree=True)  # first: whose parent has ended is found no more
    fail(
        s,
        f"The job ran {processes} processes, and may run {s.limits.processes}.\n"
        "  why: it forks without end, or its loaders have more processes than the limit is made for.\n"
        "  now: look at its last lines above; where they are meant, use fewer num_workers or raise --process-limit.",
    )
    assert s.ending is not None
    s.ending.final = s.ending.killed = True


def all_lost(s: Situation) -> None:
    """No member is left."""
    for loss in s.losses:
        step, text = loss.during, f"{s.name(loss.worker)} {loss.how} during step {loss.during}; {fate(loss.ests, ())}."
        s.say("worker-lost", text, step)
    last = s.losses[-1]
    s.losses, s.broken = [], None
    told = None if last.code is not None else last.how
    fail(
        s,
        died(_label(s, last.worker, last.ests), last.code, s.steps, told),
        exit_code=shell_code(last.code),
        worker=last.worker,
    )


def stop(s: Situation, number: int, *, now: bool = False, asked: bool = True) -> None:
    """The first time the workers are asked; then they are killed. Not `asked`: the job stops because its workers must
    go. Whoever ends a whole container signals them and the job, and means it once."""
    if s.ending is not None:
        if s.ending.asked or now:
            _kill_all(s)
        s.ending.asked = True
        return
    s.ending = Ending(why="stop", deadline=s.now + s.limits.stop, number=number, exit_code=128 + number, asked=asked)
    s.wish = None
    members = s.concerned()
    for worker in members:
        s.send(worker, Wish(stop=number))
    for hand in s.candidates():
        s.dismiss(hand.number, "the job is stopped")
    if now:
        _kill_all(s)


def overdue(s: Situation) -> None:
    """Patience with those who were asked to leave is over; and then with the kernel."""
    if s.ending is not None and s.ending.killed:
        for hand in s.alive():
            hand.ended = True
    _kill_all(s)


def left_as_asked(s: Situation, code: int | None) -> bool:
    """Whether an exit code is the answer to a stop."""
    ending = s.ending
    if ending is None:
        return False
    return ending.why != "stop" or ending.killed or code in (0, None, ending.exit_code, -ending.number)


def settle(s: Situation) -> None:
    """Nobody lives: this attempt is over."""
    if s.over or s.alive() or not s.hands:
        return
    ending = s.ending
    finished = is_finished(s)
    if ending is not None and ending.why == "stop" and not finished:
        s.over = True
        s.decisions.append(End(how="stopped", exit_code=ending.exit_code))
    elif ending is not None and ending.why == "fail":
        if s.restarts < s.limits.max_restarts and not ending.final:
            _restart(s)
        else:
            s.over = True
            s.decisions.append(
                End(
                    how="failed", exit_code=ending.exit_code, error=ending.text, worker=ending.worker,
                    ours=ending.ours, est=ending.est, step=ending.step,
                )
            )  # fmt: skip
    elif finished:
        s.over = True
        s.decisions.append(End(how="done"))
    elif all(hand.code == 0 for hand in _attempt(s)) and not any(hand.ready for hand in _attempt(s)):
        s.over = True
        s.decisions.append(End(how="plain"))
    else:
        all_gone = [hand for hand in _attempt(s) if not hand.done]
        worst = next((hand for hand in all_gone if hand.code not in (0, None)), all_gone[-1])
        fail(
            s,
            died(_label(s, worst.number, None), worst.code, s.steps),
            exit_code=shell_code(worst.code),
            worker=worst.number,
        )
        settle(s)


def _restart(s: Situation) -> None:
    """Fresh workers, from the last checkpoint."""
    assert s.ending is not None
    s.restarts += 1
    left = s.limits.max_restarts - s.restarts
    why = summary(s.ending.text or "", ours=s.ending.ours)
    times = f"{left} restart{'s' if left != 1 else ''} left"
    s.say("restarting", f"The job failed ({why}) and starts again from the last checkpoint; {times}.")
    s.replaying_from = s.steps if s.replaying_from is None else s.replaying_from
    s.attempt = s.next_number
    s.current = s.opening = s.halting = s.suspicion = s.watch = s.wish = s.ending = s.first_ready = None
    s.step_time = s.last_done = s.broken = None
    s.losses, s.regrouped = [], 0
    s.departing.clear()


def is_finished(s: Situation) -> bool:
    """The script has come to its end where EST 0 is, and so everywhere."""
    holder = next((member.worker for member in s.members()), None)
    return holder is not None and s.hands[holder].done


def _attempt(s: Situation) -> list[Hand]:
    return [hand for number, hand in s.hands.items() if number >= s.attempt]


def _kill_all(s: Situation, *, tree: bool = False) -> None:
    for hand in s.alive():
        s.decisions.append(Kill(worker=hand.number, tree=tree))
        hand.gone_by = s.now + s.limits.kill
    if s.ending is not None:
        s.ending.killed, s.ending.deadline = True, s.now + s.limits.kill


def _label(s: Situation, worker: int, ests: range | None) -> str:
    if ests is None:
        return f"worker {worker}"
    return f"worker {worker} · EST {ests[0]}" + (f"-{ests[-1]}" if len(ests) > 1 else "")
