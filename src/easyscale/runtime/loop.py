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
        self.epoch_number = 0  # of the loop that runs
        self.running = False  # the ESTs have opened their epochs

    def place_of(self, est: int) -> tuple[int, int, dict[str, Any]]:
        """Where an EST stands: batches taken in this epoch, loops begun, the cursor of its feed."""
        waiting = self.waiting.get(est)
        return self.taken.get(est, 0), self.opened, self.feed.cursor(est) if waiting is None else waiting

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
        session.round_begins()
        while True:
            while session.pending:
                turn = session.pending.pop(0)
                if turn.ghost:
                    yield from self._ghost(turn.est)
                elif not (yield from self._turn(turn.est)):
                    yield from self._end(turn.est)
                    return False
            if session.finish_round():
                return True

    def _turn(self, est: int) -> Generator[Any, None, bool]:
        """An EST's local step. False: the round has no data."""
        session = self._session
        first = not session.ran
        session.turns.begin(est, first=first, last=not session.pending)
        taken = 0
        while taken == 0 or session.turns.wants_more():
            try:
                batch = self.feed.next(est)
            except StopIteration:
                break
            if taken == 0:
                session.turns.batch_drawn()
                if first:
                    session.announce()
            taken += 1
            yield from self._body(est, batch)
        if taken == 0:
            session.turns.abandon()
            if not first:
                raise _different_lengths(est, session.ran[-1])
            return False
        session.window = taken
        session.turns.end()
        session.turn_ended(est)
        return True

    def _body(self, est: int, batch: Any) -> Generator[Any, None, None]:
        session = self._session
        self.batch_index = self.taken.get(est, 0)
        self.taken[est] = self.batch_index + 1
        session.samples += batch_size(batch)
        batch = place(batch, session.device) if session.options.place_batches else batch
        if session.observer is None:
            yield batch
        else:
            with session.observer.body(est, session.step, batch) as seen:
                yield seen

    def _ghost(self, est: int) -> Generator[Any, None, None]:
        """An EST's local step of the round before, once more."""
        session, samples = self._session, self._session.samples
        with session.ghost_begins(est):
            session.turns.begin(est, first=False, last=False, ghost=True)
            taken = 0
            while taken == 0 or session.turns.wants_more():
                try:
                    batch = self.feed.next(est)
                except StopIteration:
                    break  # as it did then: the epoch ended in the middle of an accumulation window
                if taken == 0:
                    session.turns.batch_drawn()
                taken += 1
                yield from self._body(est, batch)
            session.turns.end()
        session.samples = samples

    def _end(self, ended: int) -> Generator[Any, None, None]:
        """The data of one EST is exhausted: so must be that of all."""
        session, checked = self._session, {ended}
        while True:
            for est in session.ests:
                if est not in checked:
                    self._must_be_exhausted(est, ended)
                    checked.add(est)
            if session.end_of_data():
                return
            while session.pending:
                yield from self._ghost(session.pending.pop(0).est)

    def _must_be_exhausted(self, est: int, ended: int) -> None:
        session = self._session
        session.turns.begin(est, first=False, last=False)
        try:
            self.feed.next(est)
        except StopIteration:
            session.turns.abandon()
        else:
            raise _different_lengths(ended, est)

    def draw_for_the_rest(self) -> None:
        """The script broke out before the first backward of a round: every rank of stock DDP has drawn this batch."""
        session = self._session
        for turn in session.pending:
            session.turns.begin(turn.est, first=False, last=False)
            with contextlib.suppress(StopIteration):
                self.feed.next(turn.est)
            session.turns.abandon()
        session.pending = []


def _different_lengths(ended: int, has_more: int) -> LoaderLengthError:
    return LoaderLengthError(
        f"The loader of EST {ended} is exhausted while EST {has_more} still has a batch.",
        "every EST takes part in every global step; stock DDP would hang here.",
        "give each rank the same number of batches (DistributedSampler pads; an IterableDataset must cut).",
    )
