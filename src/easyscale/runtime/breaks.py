"""A script that leaves a loop early (`break`), and what is then still to be done with the peers.

Leaving is local: it may happen while an exception of the script unwinds, when peers may be gone. What the workers owe
each other after it is done at the script's next call of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from easyscale.core.errors import LoopError

if TYPE_CHECKING:
    from easyscale.runtime.loop import PreparedLoader
    from easyscale.runtime.session import EstSession


def left_early(session: EstSession, loader: PreparedLoader) -> None:
    """`break` in the body: fine before the first backward of a round, or after the last."""
    turns = session.turns
    if turns.current is None:
        return
    if session.rhythm.is_last and not session.pending and session.reducer.synchronised:
        session.ran.append(turns.current)
        turns.end()
        session.wishes = session.exchange.hear()  # it was heard before the step counted
        session.close_round()
        session.unsettled = "step"
    elif turns.is_first and not session.reducer.synchronised and not session.reducer.accumulated:
        turns.abandon()
        loader.draw_for_the_rest()
        session.unsettled = "round"
    else:
        session.broken = LoopError(
            f"The loop was left in the middle of a global step: EST {turns.current} of {list(session.ests)}.",
            "the ESTs after it did not run, so the step has no result.",
            "leave at the top of the body, e.g. `if loader.batch_index == 100: break`.",
        )


def settle(session: EstSession) -> None:
    """Do with the peers what was left over."""
    if session.broken is not None:
        raise session.broken
    unsettled, session.unsettled = session.unsettled, None
    if unsettled is None:
        return
    if unsettled == "step":
        session.together(session.share_step)
    else:
        session.wishes = session.together(session.exchange.hear)
        session.exchange.round_over()
        session.share_points += 1
        session.together(session.share_base)
    wishes = session.wishes
    later = session.together(session.exchange_now)
    session.buffers.base_to_live()
    # Between loops the place in the epoch is not known: what is wished waits for the end of the epoch's body.
    if wishes.checkpoint or later.checkpoint or (unsettled == "step" and session.saving.is_due(wishes)):
        session.exchange.wish_checkpoint()
    if wishes.stop:
        session.exchange.wish_stop(wishes.stop)
    session.leave_if_over()
