"""The moments at which a worker is killed: each part of a global step, and what lies between steps.

`steps` are values of completed steps at which the moment exists, for 8 steps in two epochs; a step is complete when its
round is closed, so what follows that within the step counts one more. What is struck `after` a call counts from where
the call began.
"""

from __future__ import annotations

from dataclasses import dataclass

R = "easyscale.runtime."
IN_STEP = (0, 1, 2, 3, 4, 7)
AFTER_STEP = (1, 2, 3, 4, 5, 8)
EPOCHS_END = (4, 8)


@dataclass(frozen=True, kw_only=True)
class Phase:
    place: str
    after: bool = False
    nth: int = 1
    steps: tuple[int, ...] = IN_STEP
    case: str = "pictures"
    direct: str | None = None  # the place where each worker has one EST: stock's own all-reduce sums then


EVALUATED, EVALUATED_INSIDE = "an evaluation between the epochs", "an evaluation inside the loop"
PHASES = {
    # A local step.
    "loading": Phase(place=R + "data.feed:Feed.next"),
    "batch loaded": Phase(place=R + "data.feed:Feed.next", after=True, steps=(0, 1, 2, 3, 7)),
    "forward begins": Phase(place=R + "turns:Turns.before_forward"),
    "forward ended": Phase(place=R + "turns:Turns.after_forward", after=True),
    "first gradient": Phase(place=R + "reduce:Reducer._unusual"),
    "last gradient": Phase(place=R + "reduce:Reducer._backward_ended"),
    "staging begins": Phase(place=R + "reduce:Reducer._fill"),
    "staged": Phase(place=R + "reduce:Reducer._fill", after=True, nth=2, steps=(1, 2, 3, 4, 7)),
    # The reduction.
    "a sum begins": Phase(place=R + "reduce:chain_sum", direct=R + "reduce:Reducer._start_sum"),
    "a later sum begins": Phase(place=R + "reduce:Reducer._start_sum", nth=2),
    "a send": Phase(place=R + "group:Group.send", direct=R + "group:Group.all_reduce"),
    "a later send": Phase(place=R + "group:Group.send", nth=3, direct=R + "reduce:Reducer._totals"),
    "a receive": Phase(place=R + "group:Group.receive", after=True, direct=R + "group:Group._wait"),
    "the last sum is there": Phase(place=R + "reduce:Reducer._totals", after=True),
    "buffers go early": Phase(place=R + "buffers:Buffers.share_early", case=EVALUATED_INSIDE),
    "buffers went early": Phase(place=R + "buffers:Buffers.share_early", after=True, case=EVALUATED_INSIDE),
    "hears the exchange": Phase(place=R + "exchange:Exchange.hear"),
    "heard the exchange": Phase(place=R + "exchange:Exchange.hear", after=True),
    "before the commit": Phase(place=R + "undo:Undo.keep"),
    "after the commit": Phase(place=R + "undo:Undo.keep", after=True),
    "gradients are written": Phase(place=R + "reduce:Reducer._write"),
    # What follows in the body, and the end of the round.
    "before the optimizer": Phase(place="torch.optim:SGD.step"),
    "after the optimizer": Phase(place="torch.optim:SGD.step", after=True),
    "the body ends": Phase(place=R + "turns:Turns.end"),
    "the round is closed": Phase(place=R + "session:EstSession.close_round"),
    "the round was closed": Phase(place=R + "session:EstSession.close_round", after=True, steps=IN_STEP),
    "buffers are shared": Phase(place=R + "buffers:Buffers.share_base", steps=AFTER_STEP),
    "inside the sharing": Phase(place=R + "group:Group.broadcast", steps=AFTER_STEP),
    "buffers were shared": Phase(place=R + "buffers:Buffers.share_base", after=True, steps=AFTER_STEP),
    "the step is acted on": Phase(place=R + "session:EstSession._act", steps=AFTER_STEP),
    # The next round begins.
    "contexts are noted": Phase(place=R + "exchange:Exchange.note"),
    "contexts are announced": Phase(place=R + "exchange:Exchange.announce"),
    "the gathering begins": Phase(place=R + "group:Group.start_gathering"),
    "contexts were announced": Phase(place=R + "exchange:Exchange.announce", after=True),
    # Once, or between epochs.
    "the bucket order": Phase(place=R + "membership:share_order", steps=(1,)),
    "the bucket order was shared": Phase(place=R + "membership:share_order", after=True, steps=(1,)),
    "the data end": Phase(place=R + "session:EstSession.end_of_data", steps=EPOCHS_END),
    "the data ended": Phase(place=R + "session:EstSession.end_of_data", after=True, steps=EPOCHS_END),
    "the loop ends": Phase(place=R + "session:EstSession.loop_ends", after=True, steps=EPOCHS_END),
    "evaluation": Phase(place="workloads:_evaluate", steps=EPOCHS_END, case=EVALUATED),
    "evaluated": Phase(place="workloads:_evaluate", after=True, steps=EPOCHS_END, case=EVALUATED),
    "the epoch ends": Phase(place=R + "session:EstSession.epoch_ended", steps=EPOCHS_END),
    "the epoch's exchange": Phase(place=R + "session:EstSession.exchange_now", after=True, steps=EPOCHS_END),
    "the epoch ended": Phase(place=R + "session:EstSession.epoch_ended", after=True, steps=EPOCHS_END),
    "a loop begins": Phase(place=R + "session:EstSession.loop_begins", steps=(0, 4)),
    "a loop began": Phase(place=R + "session:EstSession.loop_begins", after=True, steps=(0, 4)),
    "the script ended": Phase(place=R + "session:EstSession.finish", steps=(8,)),
    # In es.prepare().
    "before it is ready": Phase(place=R + "joining:join", steps=(-1,)),
    "before the order": Phase(place=R + "membership:Membership.first_order", steps=(-1,)),
    "the order came": Phase(place=R + "membership:Membership.first_order", after=True, steps=(-1,)),
    "the first group": Phase(place=R + "membership:Membership.form", steps=(-1,)),
    "the first group stands": Phase(place=R + "membership:Membership.form", after=True, steps=(-1,)),
    "the initial state": Phase(place=R + "membership:share_initial_state", steps=(-1,)),
    "the initial state was shared": Phase(place=R + "membership:share_initial_state", after=True, steps=(-1,)),
    "joined": Phase(place=R + "joining:_tell_joined", steps=(0,)),
    "prepared": Phase(place=R + "session:EstSession.prepare", after=True, steps=(-1,)),
}
