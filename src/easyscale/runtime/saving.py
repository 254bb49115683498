"""When a checkpoint is due, and its two halves: the shared state at a boundary, and the contexts that follow.

The worker that holds EST 0 copies the shared state at the end of a global step. The contexts of all ESTs at that
boundary reach it with the exchange of the next round anyway; then both go to the writer thread. So a checkpoint costs
no message of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from easyscale.core.messages import HandedOver
from easyscale.runtime import codec, state
from easyscale.runtime.checkpoint import Snapshot
from easyscale.runtime.exchange import Wishes
from easyscale.runtime.stops import Leaving

if TYPE_CHECKING:
    from easyscale.runtime.session import EstSession


class Saving:
    def __init__(self, session: EstSession) -> None:
        self._session = session
        self._saved_step = -1
        self._begun: Snapshot | None = None

    def is_due(self, wishes: Wishes) -> bool:
        every, step = self._session.spec.checkpoint_every, self._session.step
        by_count = every is not None and step % every == 0 and step != self._saved_step
        return self._session.store is not None and (wishes.checkpoint or by_count)

    def begin(self) -> None:
        """At the end of a global step."""
        session = self._session
        session.exchange.saved()
        self._saved_step = session.step
        if 0 not in session.ests:
            return
        self._begun = state.snapshot_of(session)
        if session.talk.workers == 1:
            self._complete(_own_contexts(session))
        elif session.loader is None:  # between epochs all have just been heard; the next exchange is inside a loop
            self.contexts_are_there()

    def contexts_are_there(self) -> None:
        """Those of the boundary at which it began."""
        if self._begun is not None and self._session.talk.workers > 1 and not self._session.overtaken:
            replicas = self._session.exchange.replicas
            self._complete([replicas.tree(est) for est in range(self._session.world)])
        self._begun = None

    def save_now(self) -> None:
        """With all workers, before they leave."""
        if self._session.store is not None:
            self._saved_step = self._session.step
            self._begun = self._gather()
            if self._begun is not None:
                self._complete(self._begun.contexts)

    def hand_over(self) -> NoReturn:
        """Leave the state for the workers of the next plan, where plans change by starting anew."""
        session = self._session
        snapshot = self._gather()
        if snapshot is not None:
            state.hand_over(session, snapshot)
        session.journal.flush(force=True)
        sent = session.bytes_sent
        session.journal.tell(
            HandedOver(step=session.step, worker=session.spec.worker, timings=session.timings, bytes_sent=sent)
        )
        session.leaving = True
        raise Leaving(0)

    def _gather(self) -> Snapshot | None:
        """The whole state, on the worker that holds EST 0."""
        session = self._session
        session.exchange_now()
        if 0 not in session.ests:
            return None
        alone = session.talk.workers == 1
        replicas = session.exchange.replicas
        contexts = _own_contexts(session) if alone else [replicas.tree(est) for est in range(session.world)]
        return replace(state.snapshot_of(session), contexts=contexts)

    def _complete(self, contexts: list[Any]) -> None:
        assert self._session.store is not None
        assert self._begun is not None
        self._session.store.save_in_background(replace(self._begun, contexts=contexts))
        self._begun = None


def _own_contexts(session: EstSession) -> list[Any]:
    session.turns.capture()
    trees = []
    for est in session.ests:
        places = [loader.place_of(est) for loader in session.loaders]
        cursors = [{"taken": taken, "opened": opened, "feed": feed} for taken, opened, feed in places]
        trees.append({"context": session.turns.contexts[est].to_tree(), "cursors": cursors})
    return list(codec.to_host(trees))
