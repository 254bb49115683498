"""Loading in W processes that all ESTs of this worker share (`num_workers=W`).

Each lane draws its base seed and its indices when stock would; the tasks go out later, in the order in which their
batches will be consumed: round robin over the ESTs within each global step. So the batches that wait in memory do not
grow with the number of ESTs.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from easyscale.runtime.data.lane import Lane, Tree
from easyscale.runtime.data.pool import Pool
from easyscale.runtime.data.pool_worker import Begin, Exhausted, State, Task, as_arrays, as_tensors


@dataclass(slots=True)
class StreamPlace:
    """Where the stream of one loader worker stands, as of the batches that were consumed."""

    state: State | None = None  # None: as seeded from the base seed
    opening: State | None = None  # at the beginning of the epoch
    taken: int = 0  # tasks of this epoch that were consumed
    ended: bool = False  # its IterableDataset is exhausted


class PooledIterator(_BaseDataLoaderIter):
    """Stock's multi-process iterator of one rank, with the processes of `Pooled` instead of its own.

    The base class is stock's: what it draws at creation, and in which order, is right by construction.
    """

    def __init__(self, loader: DataLoader[Any], est: int, owner: Pooled) -> None:
        super().__init__(loader)
        self.est, self._owner = est, owner
        self.streams = [StreamPlace() for _ in range(self._num_workers)]
        self.sent = self.received = 0  # tasks of this epoch, given to a process; consumed
        self._ready: deque[Any] = deque()  # indices that stock would have sent by now
        self._out: deque[tuple[int, int]] = deque()  # (number, worker) of tasks sent and not consumed
        self._turn = 0  # the loader worker that gets the next task

    @property
    def base_seed(self) -> int:
        return int(self._base_seed)

    @property
    def pin_device(self) -> str | None:
        return str(self._pin_memory_device) if self._pin_memory else None

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    @property
    def finished(self) -> bool:
        return not self._ready and not self._out

    def start(self, loader: DataLoader[Any], *, skip: int = 0, turn: int = 0) -> None:
        """Begin the epoch: what stock does in `_reset`, behind `skip` batches that were consumed elsewhere."""
        super()._reset(loader)
        self._ready.clear()
        self._out.clear()
        self._turn, self.sent, self.received, self._num_yielded = turn, skip, skip, skip
        if self._owner.iterable:
            skip = 0  # its sampler gives the same nothing for ever
        for _ in range(skip):
            next(self._sampler_iter)
        for _ in range(loader.prefetch_factor * self._num_workers):  # type: ignore[operator]
            self._draw_index()

    def dispatch(self, *, keep: bool = True) -> None:
        """Give the next index to its loader process."""
        for _ in range(self._num_workers):
            worker, self._turn = self._turn, (self._turn + 1) % self._num_workers
            if not self.streams[worker].ended:
                break
        else:
            self._ready.clear()
            return
        self._owner.pool.put(worker, Task(self.est, self.sent, self._ready.popleft(), keep))
        self._out.append((self.sent, worker))
        self.sent += 1

    def drain(self) -> None:
        """Consume what is still out from a broken epoch. Stock's persistent processes do all tasks that were sent to
        them before the next epoch begins, and that moves their random states."""
        while self._out:
            self._take()

    @property
    def turn(self) -> int:
        """The loader worker whose task is consumed next."""
        return self._out[0][1] if self._out else self._turn

    def _next_data(self) -> Any:
        while True:
            if not self._out and self._ready:
                self._owner.dispatch()
                if not self._out and self._ready:
                    self.dispatch()  # out of turn: the caller does not go round robin
            if not self._out:
                raise StopIteration
            batch = self._take()
            self._draw_index()
            if isinstance(batch, Exhausted):
                continue
            self._owner.dispatch()
            if isinstance(batch, ExceptionWrapper):
                batch.reraise()
            return batch

    def _take(self) -> Any:
        number, worker = self._out[0]
        batch, state = self._owner.pool.take(self.est, number)
        self._out.popleft()
        self.received += 1
        stream = self.streams[worker]
        stream.taken += 1
        if state is not None:
            stream.state = state
        if isinstance(batch, Exhausted):
            stream.ended = True
        return batch

    def _draw_index(self) -> None:
        with contextlib.suppress(StopIteration):
            self._ready.append(next(self._sampler_iter))


class PooledLane(Lane):
    """A lane whose batches are made by the loader processes."""

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device | None,
        generators: Sequence[torch.Generator],
        est: int,
        owner: Pooled,
    ) -> None:
        super().__init__(loader, device, generators)
        self.iterator: PooledIterator | None = None
        self._est, self._owner = est, owner
        # With persistent workers, streams outlive their epoch: stock neither re-seeds them nor draws a base seed.
        self._lives_on: tuple[int, list[StreamPlace]] | None = None
        self._resumed = False

    def next(self) -> Any:
        assert self.epoch is not None, "next() before open()"
        assert self.iterator is not None
        try:
            return next(self.iterator)
        finally:
            self.consumed = self.iterator.received

    def _begin(self) -> None:
        self._resumed = self._lives_on is not None
        if self._lives_on is None:
            self.iterator = PooledIterator(self.loader, self._est, self._owner)
        elif self.iterator is None:
            self.iterator = self._without_drawing(*self._lives_on)
        self.iterator.drain()
        for stream in self.iterator.streams:
            stream.opening, stream.taken, stream.ended = stream.state, 0, False
        known = self._owner.start(self.iterator)
        for worker, stream in enumerate(self.iterator.streams):
            opening = None if known else stream.opening
            self._owner.pool.put(worker, Begin(self._est, self.iterator.base_seed, opening))
        self.iterator.start(self.loader)
        self._owner.dispatch()

    def _without_drawing(self, base_seed: int, streams: list[StreamPlace]) -> PooledIterator:
        """The iterator that a stock rank would still have from an earlier epoch, in a process that has not."""
        live = self._capture()
        iterator = PooledIterator(self.loader, self._est, self._owner)
        live.restore(self._device, self._generators)
        iterator._base_seed = base_seed
        iterator.streams = streams
        return iterator

    def _end(self) -> None:
        assert self.iterator is not None
        if self.loader.persistent_workers and not self._owner.broken:
            self._lives_on = (self.iterator.base_seed, self.iterator.streams)
        else:
            self.iterator = None

    def _place(self) -> Tree:
        iterator = self.iterator
        if iterator is not None:
            if self.epoch is None:
                iterator.drain()
            base_seed, streams = iterator.base_seed, iterator.streams
        elif self._lives_on is not None:
            base_seed, streams = self._lives_on
        else:
            return {"base_seed": None, "resumed": False, "turn": 0, "streams": []}
        return {
            "base_seed": base_seed,
            "resumed": self._resumed,
            "turn": iterator.turn if iterator is not None and self.epoch is not None else 0,
            "streams": [
                {
                    "state": as_tensors(stream.state),
                    "opening": as_tensors(stream.opening) if self._owner.iterable else None,
                    "taken": stream.taken,
                    "ended": stream.ended,
                }
                for stream in streams
            ],
        }

    def _resume(self, cursor: Tree) -> None:
        streams = _streams_of(cursor)
        self._resumed = cursor["resumed"]
        if self._resumed:
            self.iterator = self._without_drawing(cursor["base_seed"], streams)
        else:
            self.iterator = PooledIterator(self.loader, self._est, self._owner)
            assert self.iterator.base_seed == cursor["base_seed"], "the opening's random state is not the cursor's"
            self.iterator.streams = streams
        self._owner.start(self.iterator)
        for worker, stream in enumerate(streams):
            replay = self._consumed_tasks(stream) if self._owner.iterable else ()
            begin = Begin(self._est, self.iterator.base_seed, stream.opening, replay, stream.state)
            self._owner.pool.put(worker, begin)
        self.iterator.start(self.loader, skip=self.consumed, turn=cursor["turn"])
        self._owner.dispatch()

    def _consumed_tasks(self, stream: StreamPlace) -> tuple[Any, ...]:
        """An IterableDataset is taken up again by making its consumed batches again, each in its own process."""
        index = None if self.loader.batch_size is None else [None] * self.loader.batch_size
        return (index,) * stream.taken

    def _resume_closed(self, cursor: Tree) -> None:
        self.iterator, self._lives_on = None, None
        if cursor["base_seed"] is not None:
            self._lives_on = (cursor["base_seed"], _streams_of(cursor))


class Pooled:
    """The lanes of one worker and the loader processes that they share."""

    def __init__(
        self,
        loaders: Mapping[int, DataLoader[Any]],
        device: torch.device | None,
        generators: Sequence[torch.Generator],
        announce: Callable[[int], None],
    ) -> None:
        self._loader = next(iter(loaders.values()))
        self._announce = announce
        self._pool: Pool | None = None
        self._begun: set[int] = set()  # ESTs whose streams exist in the processes
        self._order = {est: place for place, est in enumerate(loaders)}
        self._turn: tuple[int | None, int] = (None, 0)  # whose turn it is, and the batches that it took so far
        self._batches_a_turn = 1  # more than one when gradients are accumulated
        self.iterable = isinstance(self._loader.dataset, IterableDataset)
        assert self._loader.prefetch_factor, "prefetch_factor must be greater than 0"
        # What one stock rank would have in flight, and at least the next batch of each EST and work for each process.
        workers = self._loader.num_workers
        self._window = max(self._loader.prefetch_factor * workers, len(loaders) + workers)
        self.lanes = {est: PooledLane(loader, device, generators, est, self) for est, loader in loaders.items()}

    @property
    def pool(self) -> Pool:
        assert self._pool is not None
        return self._pool

    @property
    def broken(self) -> bool:
        return self._pool is None or self._pool.broken

    def switch(self, est: int, *, opens: bool = False) -> None:
        """The processes keep the ESTs apart; only the rhythm in which batches are consumed is of interest here."""
        whose, taken = self._turn
        if whose != est:
            self._batches_a_turn = max(taken, 1)
            taken = 0
        self._turn = (est, taken if opens else taken + 1)

    def start(self, iterator: PooledIterator) -> bool:
        """See that the processes run. Says whether this EST's streams are there already."""
        if self._pool is None:
            self._pool = Pool(self._loader, self._announce, iterator.pin_device)
            self._begun.clear()
        known = iterator.est in self._begun
        self._begun.add(iterator.est)
        return known

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

    def _position(self, est: int, number: int) -> int:
        """Where an EST's batch comes in the order in which all ESTs consume theirs."""
        turn, place = divmod(number, self._batches_a_turn)
        return (turn * len(self._order) + self._order[est]) * self._batches_a_turn + place

    def close(self) -> None:
        if self._pool is None:
            return
        open_lanes = [lane for lane in self.lanes.values() if lane.epoch is not None]
        if not self._loader.persistent_workers or self._pool.broken:
            self.shutdown()
            return
        for lane in open_lanes:
            while lane.iterator is not None and lane.iterator.has_ready:
                lane.iterator.dispatch(keep=False)
        for lane in open_lanes:
            lane.close()

    def shutdown(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
        for lane in self.lanes.values():
            lane.close()


def _streams_of(cursor: Tree) -> list[StreamPlace]:
    return [
        StreamPlace(as_arrays(tree["state"]), as_arrays(tree["opening"]), tree["taken"], tree["ended"])
        for tree in cursor["streams"]
    ]
