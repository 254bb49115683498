"""The loop over a prepared loader: one mini-batch of one EST at a time, contexts switch between them.

A round gives each EST of the worker its turn; with gradients, a round is a global step. An EST whose backward ran under
`no_sync` keeps its turn until a backward synchronises, so accumulation windows stay whole.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from easyscale.core.errors import LoaderLengthError
from easyscale.runtime.data.feed import Feed
from easyscale.runtime.engine import batch_size, place

if TYPE_CHECKING:
    from easyscale.runtime.session import EstSession


class PreparedLoader:
    """What `es.prepare()` returns for a DataLoader. Iterate it; other attributes are the DataLoader's own."""

    def __init__(self, session: EstSession, loader: DataLoader[Any], feed: Feed, index: int) -> None:
        self._session, self._loader = session, loader
        self.feed, self.index = feed, index
        self._running: Any = lambda: None
        # Which batch of its EST this is, from 0: what `enumerate` would give on one rank of stock DDP.
        self.batch_index = 0
        self.taken: dict[int, int] = {}  # batches of this epoch by EST
        self.waiting: dict[int, Any] = {}  # cursors of a checkpoint, taken up when the loop begins
        self.opened = 0  # loops begun: the epoch, for scripts that do not use es.epochs()

    @property
    def completes_step(self) -> bool:
        """True in the local step after which the optimizer really steps: for updates once a global step."""
        return self._session.rhythm.is_last

    def __len__(self) -> int:
        return len(self.feed)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        loop = self._loop()
        self._running = weakref.ref(loop)
        return loop

    def leave(self) -> None:
        """End a loop that the script left open: `it = iter(loader)`, a few `next(it)`, and on."""
        loop = self._running()
        if loop is not None:
            loop.close()

    def _loop(self) -> Generator[Any, None, None]:
        session = self._session
        session.loop_begins(self)
        outcome: BaseException | None = None
        try:
            while (yield from self._round()):
                pass
        except BaseException as problem:
            outcome = problem
            raise
        finally:
            session.loop_ends(self, outcome)

    def _round(self) -> Generator[Any, None, bool]:
        """One turn of each EST. Returns whether there may be another round."""
        session = self._session
        for position, est in enumerate(session.ests):
            session.turns.begin(est, position)
            taken = 0
            while taken == 0 or session.turns.wants_more():
                try:
                    batch = self.feed.next(est)
                except StopIteration:
                    break
                if taken == 0:
                    session.turns.batch_drawn()
                    if position == 0:
                        session.agreement.announce(more=True, trained=session.trained)
                self.batch_index = self.taken.get(est, 0)
                self.taken[est] = self.batch_index + 1
                taken += 1
                session.samples += batch_size(batch)
                batch = place(batch, session.device) if session.options.place_batches else batch
                if session.observer is None:
                    yield batch
                else:
                    with session.observer.body(est, session.step, batch) as seen:
                        yield seen
            if taken == 0:
                self._all_must_end(position)
                return False
            session.turns.end()
        session.round_ends()
        return True

    def _all_must_end(self, position: int) -> None:
        session = self._session
        session.turns.abandon()
        if position > 0:
            raise _different_lengths(session.ests[position], session.ests[position - 1])
        for position, est in enumerate(session.ests[1:], 1):
            session.turns.begin(est, position)
            try:
                self.feed.next(est)
            except StopIteration:
                session.turns.abandon()
            else:
                raise _different_lengths(session.ests[0], est)
        session.agreement.announce(more=False, trained=session.trained)
        session.agreement.hear()
        session.data_ended()

    def draw_for_the_rest(self, position: int) -> None:
        """The script broke out before the first backward of a round: every rank of stock DDP has drawn this batch."""
        session = self._session
        for later, est in enumerate(session.ests[position + 1 :], position + 1):
            session.turns.begin(est, later)
            with contextlib.suppress(StopIteration):
                self.feed.next(est)
            session.turns.abandon()


def _different_lengths(ended: int, has_more: int) -> LoaderLengthError:
    return LoaderLengthError(
        f"The loader of EST {ended} is exhausted while EST {has_more} still has a batch.",
        "every EST takes part in every global step; stock DDP would hang here.",
        "give each rank the same number of batches (DistributedSampler pads; an IterableDataset must cut).",
    )
