"""Loading in W processes that all ESTs of this worker share (`num_workers=W`).

The tasks of all lanes go out in the order in which their batches will be consumed: round robin over the ESTs within
each global step. So the batches that wait in memory do not grow with the number of ESTs. That order is for speed only:
lanes come, go and are read in any order.

A process that dies costs time only: all are started anew, and each lane goes on from what it consumed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from easyscale.core.errors import message
from easyscale.runtime.data.lane import Tree
from easyscale.runtime.data.pool import Pool, ProcessesLost
from easyscale.runtime.data.pool_worker import Begin, State, Task
from easyscale.runtime.data.pooled_lane import PooledIterator, PooledLane

# Deaths without a batch in between, after which it is not bad luck: something in the batch itself must be the cause.
MOST_DEATHS = 3


class Pooled:
    """The lanes of one worker and the loader processes that they share."""

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device | None,
        generators: Sequence[torch.Generator],
        announce: Callable[[int], None],
        report: Callable[[str], None],
    ) -> None:
        self._loader, self._device, self._generators = loader, device, generators
        self._announce, self._report = announce, report
        self._pool: Pool | None = None
        self._pin_device: str | None = None
        self._deaths = 0  # since the last batch
        self._names = itertools.count()
        self._order: dict[int, int] = {}
        self._turn: tuple[int | None, int] = (None, 0)  # whose turn it is, and the batches that it took so far
        self._batches_a_turn = 1  # more than one when gradients are accumulated
        self.iterable = isinstance(loader.dataset, IterableDataset)
        self.lanes: dict[int, PooledLane] = {}

    # ------------------------------------------------------------------ lanes

    def add(self, est: int, make: Callable[[Dataset[Any] | None], DataLoader[Any]]) -> None:
        self.lanes[est] = PooledLane(make(None), self._device, self._generators, est, self)
        self._put_in_order()

    def remove(self, est: int) -> None:
        lane = self.lanes.pop(est)
        if lane.iterator is not None:
            self.forget(lane.iterator)
        self._put_in_order()

    def _put_in_order(self) -> None:
        self._order = {est: place for place, est in enumerate(sorted(self.lanes))}

    def open(self, est: int, epoch: int) -> None:
        self._switch(est)
        self.lanes[est].open(epoch)

    def next(self, est: int) -> Any:
        self._switch(est)
        self._turn = (est, self._turn[1] + 1)
        return self.lanes[est].next()

    def restore(self, est: int, cursor: Tree) -> None:
        self._switch(est)
        self.lanes[est].restore(cursor)

    def _switch(self, est: int) -> None:
        """The processes keep the ESTs apart; only the rhythm in which batches are consumed is of interest here."""
        whose, taken = self._turn
        if whose != est:
            self._batches_a_turn = max(taken, 1)
            self._turn = (est, 0)

    # ------------------------------------------------------------------ tasks

    def put(self, worker: int, message: Begin | Task) -> None:
        assert self._pool is not None
        self._pool.put(worker, message)

    def take(self, life: int, number: int) -> tuple[Any, State | None]:
        """The batch of a task, and its stream's state after it."""
        while True:
            assert self._pool is not None
            try:
                taken = self._pool.take(life, number)
            except ProcessesLost as loss:
                self._start_anew(loss)
            else:
                self._deaths = 0
                return taken

    def dispatch(self) -> None:
        """Send the tasks whose batches are next to be consumed, in that order, as far as the window reaches."""
        active = [lane.iterator for lane in self.lanes.values() if lane.epoch is not None and lane.iterator is not None]
        active = [iterator for iterator in active if not iterator.finished]
        if not active:
            return
        end = self._window + min(self._position(iterator.est, iterator.received) for iterator in active)
        while waiting := [iterator for iterator in active if iterator.has_ready]:
            following = min(waiting, key=lambda iterator: self._position(iterator.est, iterator.sent))
            if self._position(following.est, following.sent) >= end:
                return
            following.dispatch()

    @property
    def _window(self) -> int:
        """What one stock rank would have in flight, and at least a batch for each EST and work for each process."""
        workers, ahead = self._loader.num_workers, self._loader.prefetch_factor
        assert ahead, "prefetch_factor must be greater than 0"
        return max(ahead * workers, len(self.lanes) + workers)

    def _position(self, est: int, number: int) -> int:
        """Where an EST's batch comes in the order in which all ESTs consume theirs."""
        turn, place = divmod(number, self._batches_a_turn)
        return (turn * len(self._order) + self._order[est]) * self._batches_a_turn + place

    # ------------------------------------------------------------------ processes

    @property
    def pool(self) -> Pool:
        assert self._pool is not None
        return self._pool

    @property
    def running(self) -> bool:
        return self._pool is not None

    def start(self, iterator: PooledIterator) -> bool:
        """See that the processes run. Says whether this EST's streams are there already."""
        if self._pool is None:
            self._pin_device = iterator.pin_device
            self._pool = Pool(self._loader, self._announce, self._pin_device)
        loss = self._pool.loss()
        if loss is not None:
            self._start_anew(loss)
        known = iterator.life is not None
        if not known:
            iterator.life = next(self._names)
        return known

    def forget(self, iterator: PooledIterator) -> None:
        """An EST's streams are not needed any more."""
        if self._pool is not None and iterator.life is not None:
            self._pool.forget(iterator.life)
        iterator.life = None

    def _start_anew(self, loss: ProcessesLost) -> None:
        """Start the processes again, and let each lane go on from what it consumed."""
        self._deaths += 1
        self.pool.stop()
        if self._deaths >= MOST_DEATHS:
            self._pool = None
            raise RuntimeError(
                message(
                    f"{loss}.",
                    f"loader processes died {MOST_DEATHS} times in a row without making a batch, so what makes it must "
                    "be the cause: it takes too much memory, ends its process, or crashes in native code.",
                    "look for messages of the kernel or of the library, lower num_workers or prefetch_factor, or try "
                    "num_workers=0.",
                )
            ) from loss
        self._pool = Pool(self._loader, self._announce, self._pin_device)
        again = []
        for est, lane in self.lanes.items():
            if lane.iterator is None or lane.iterator.life is None:
                continue
            if lane.iterator.finished:
                lane.iterator.life = None  # its next epoch tells the processes all that they need
                continue
            lane.iterator.take_up()
            again += [(self._position(est, task.number), worker, task) for worker, task in lane.iterator.outstanding()]
        for _, worker, task in sorted(again, key=lambda found: found[0]):
            self._pool.put(worker, task)
        self._report(loss.sentence())

    def close(self, est: int | None = None) -> None:
        if self._pool is None or (est is None and not self._loader.persistent_workers):
            self.shutdown()
            return
        closing = [lane for v, lane in self.lanes.items() if est in (None, v) and lane.epoch is not None]
        if self._loader.persistent_workers:
            # Stock's processes do all that was sent to them before an epoch was broken off.
            for lane in closing:
                while lane.iterator is not None and lane.iterator.has_ready:
                    lane.iterator.dispatch(keep=False)
        for lane in closing:
            lane.close()

    def shutdown(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
        for lane in self.lanes.values():
            lane.close()
