"""Loading in the worker's own process (`num_workers=0`): a real stock loader and its real iterator for each EST."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from easyscale.core.errors import PromiseError
from easyscale.numerics.rng import RngState
from easyscale.runtime.data.lane import Lane, Tree, closed
from easyscale.runtime.data.private import Follower, PrivateGenerators, is_stateful


class InlineLane(Lane):
    """A lane whose batches are made where they are used.

    An `IterableDataset` is taken up again by its `state_dict`/`load_state_dict` if it has them. If not, its batches
    are made again and thrown away. That gives the same place only while what it yields does not hang on the random
    state that training moves between two batches, so a data set that was seen to draw from that state after its
    first batch is refused there.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device | None,
        generators: Sequence[torch.Generator],
        follower: Follower | None,
        private: PrivateGenerators,
        est: int,
    ) -> None:
        super().__init__(loader, device, generators)
        self._iterator: _SingleProcessDataLoaderIter | None = None
        self._follower, self._private, self._est = follower, private, est
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._replays = self._iterable and not is_stateful(loader.dataset)
        self._first: Tree | None = None  # the random state before the first batch, for a replay
        self._draws = False
        self._own_opening: list[Any] = []

    def next(self) -> Any:
        assert self._iterator is not None, "next() before open()"
        self.follow()
        watch = self._capture() if self._replays and not self._draws else None
        if watch is not None and self.consumed == 0:
            self._first = watch.to_tree()
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise
        except Exception:
            self.consumed += 1  # stock goes on behind the batch that failed
            raise
        if self.consumed == 0:
            self._private.look_again(self._est)
        elif watch is not None:
            self._draws = not watch.same_as(self._capture())
        self.consumed += 1
        return batch

    def follow(self) -> None:
        """See what the script has assigned to its data set."""
        if self._follower is not None:
            self._follower.follow()

    def _begin(self) -> None:
        self.follow()
        self._first, self._draws = None, False
        self._own_opening = self._private.state(self._est)
        self._iterator = self._stock_iterator()

    def _stock_iterator(self) -> _SingleProcessDataLoaderIter:
        iterator = iter(self.loader)
        assert isinstance(iterator, _SingleProcessDataLoaderIter)
        return iterator

    def _end(self) -> None:
        self._iterator, self._first = None, None

    def _place(self) -> Tree:
        place: Tree = {"own": self._private.state(self._est)}
        if self._iterable and self._iterator is not None:
            place["ended"] = self._iterator._dataset_fetcher.ended
            place["own_opening"] = self._own_opening
            place["first"] = self._first
            place["draws"] = self._draws
            place["dataset"] = None if self._replays else self.loader.dataset.state_dict()  # type: ignore[attr-defined]
        return place

    def _resume(self, cursor: Tree) -> None:
        self.follow()
        if not self._iterable:
            self._iterator = self._stock_iterator()
            # Only indices are drawn, nothing is fetched. Ours do not draw from the random state that is live while
            # they are iterated over (DistributedSampler and ShardedSampler have their own), so the state of the
            # opening gives the same indices however far training had moved it on.
            for _ in range(self.consumed):
                next(self._iterator._sampler_iter)
            self._iterator._num_yielded = self.consumed
        elif self._replays:
            self._replay(cursor)
        else:
            self.loader.dataset.load_state_dict(cursor["dataset"])  # type: ignore[attr-defined]
            self._iterator = self._stock_iterator()
            self._iterator._num_yielded = self.consumed
            self._iterator._dataset_fetcher.ended = cursor["ended"]
        self._private.set_state(self._est, cursor["own"])

    def _resume_closed(self, cursor: Tree) -> None:
        self._private.set_state(self._est, cursor["own"])

    def _replay(self, cursor: Tree) -> None:
        if cursor["draws"]:
            raise PromiseError(
                f"{type(self.loader.dataset).__name__} cannot be taken up in the middle of an epoch.",
                "it draws random numbers in the training process while it is iterated over, so what it yields next "
                "may hang on numbers that only the training itself can give again.",
                "give it state_dict() and load_state_dict(), or use num_workers=1, where it has random numbers of "
                "its own.",
            )
        self._private.set_state(self._est, cursor["own_opening"])
        self._own_opening = cursor["own_opening"]
        self._iterator = self._stock_iterator()
        if cursor["first"] is not None:
            RngState.from_tree(cursor["first"]).restore(self._device, self._generators)
        self._first, self._draws = cursor["first"], False
        for _ in range(self.consumed):
            with contextlib.suppress(Exception):  # a batch that failed then fails again
                next(self._iterator)
        self._private.look_again(self._est)


class Inline:
    """The lanes of one worker, all in its own process."""

    def __init__(
        self, loader: DataLoader[Any], device: torch.device | None, generators: Sequence[torch.Generator]
    ) -> None:
        self._device, self._generators = device, generators
        self._dataset = loader.dataset
        self._private = PrivateGenerators((loader.dataset, loader.collate_fn), generators)
        self.lanes: dict[int, InlineLane] = {}

    def add(self, est: int, make: Callable[[Dataset[Any] | None], DataLoader[Any]]) -> None:
        follower = Follower(self._dataset) if isinstance(self._dataset, IterableDataset) else None
        loader = make(follower.copy if follower is not None else None)
        self._private.add(est, (loader.dataset, loader.collate_fn))
        self.lanes[est] = InlineLane(loader, self._device, self._generators, follower, self._private, est)

    def remove(self, est: int) -> None:
        del self.lanes[est]
        self._private.remove(est)

    def open(self, est: int, epoch: int) -> None:
        self._epoch_begins()
        self._private.take_news(est)
        self._private.switch(est)
        self.lanes[est].open(epoch)

    def next(self, est: int) -> Any:
        self._private.switch(est)
        return self.lanes[est].next()

    def restore(self, est: int, cursor: Tree) -> None:
        if not closed(cursor):  # else the script may still have its turn before the EST opens its next epoch
            self._epoch_begins()
            self._private.set_state(est, cursor["own"])
            self._private.switch(est)
        self.lanes[est].restore(cursor)

    def _epoch_begins(self) -> None:
        """The script had its turn before the first lane opens; the others belong to the same epoch."""
        if all(lane.epoch is None for lane in self.lanes.values()):
            for lane in self.lanes.values():
                lane.follow()
            self._private.begin_epoch()

    def close(self, est: int | None = None) -> None:
        for lane in self.lanes.values() if est is None else (self.lanes[est],):
            lane.close()
        self._private.end_epoch()

    def shutdown(self) -> None:
        self.close()
