"""One EST's way through loader processes that all ESTs of this worker share (`num_workers=W`).

Each lane draws its base seed and its indices when stock would; the tasks go out later, when `Pooled` says so. What was
consumed, and the states of the EST's streams as of then, are kept here: a lane goes on from there in any process.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from easyscale.runtime.data.lane import Lane, Tree
from easyscale.runtime.data.pool_worker import Begin, Exhausted, State, Task, as_arrays, as_tensors


class Owner(Protocol):
    """What a lane needs of the processes: `Pooled`."""

    iterable: bool

    @property
    def running(self) -> bool: ...
    def start(self, iterator: PooledIterator) -> bool: ...
    def put(self, worker: int, message: Begin | Task) -> None: ...
    def take(self, life: int, number: int) -> tuple[Any, State | None]: ...
    def dispatch(self) -> None: ...
    def forget(self, iterator: PooledIterator) -> None: ...


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

    def __init__(self, loader: DataLoader[Any], est: int, owner: Owner) -> None:
        super().__init__(loader)
        self.est, self._owner = est, owner
        self.life: int | None = None  # the name of its streams in the processes; None: they are not there
        self._batch_size = loader.batch_size
        self.streams = [StreamPlace() for _ in range(self._num_workers)]
        self.sent = self.received = 0  # tasks of this epoch, given to a process; consumed
        self._ready: deque[Any] = deque()  # indices that stock would have sent by now
        self._out: deque[tuple[int, Task]] = deque()  # tasks sent to a worker and not consumed
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
        assert self.life is not None
        task = Task(self.life, self.sent, self._ready.popleft(), keep)
        self._owner.put(worker, task)
        self._out.append((worker, task))
        self.sent += 1

    def begin(self) -> None:
        """Begin an epoch in the processes."""
        for stream in self.streams:
            stream.opening, stream.taken, stream.ended = stream.state, 0, False
        known = self._owner.start(self)
        for worker, stream in enumerate(self.streams):
            self._owner.put(worker, self._begin_of(None if known else stream.opening))

    def take_up(self) -> None:
        """Take an open epoch up, behind what was consumed, in processes that do not know it."""
        for worker, stream in enumerate(self.streams):
            replay = self._consumed_tasks(stream) if self._owner.iterable else ()
            self._owner.put(worker, self._begin_of(stream.opening, replay, stream.state))

    def outstanding(self) -> Iterator[tuple[int, Task]]:
        """The tasks that were sent and not consumed, each with its worker."""
        return iter(self._out)

    def _begin_of(self, opening: State | None, replay: tuple[Any, ...] = (), state: State | None = None) -> Begin:
        assert self.life is not None
        return Begin(self.life, self.est, self.base_seed, as_arrays(opening), replay, as_arrays(state))

    def _consumed_tasks(self, stream: StreamPlace) -> tuple[Any, ...]:
        """An IterableDataset is taken up again by making its consumed batches again, each in its own process."""
        index = None if self._batch_size is None else [None] * self._batch_size
        return (index,) * stream.taken

    def drain(self) -> None:
        """Consume what is still out from a broken epoch. Stock's persistent processes do all tasks that were sent to
        them before the next epoch begins, and that moves their random states."""
        while self._out:
            self._take()

    @property
    def turn(self) -> int:
        """The loader worker whose task is consumed next."""
        return self._out[0][0] if self._out else self._turn

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
        worker, task = self._out[0]
        batch, state = self._owner.take(task.life, task.number)
        self._out.popleft()
        self.received += 1
        stream = self.streams[worker]
        stream.taken += 1
        if state is not None:
            stream.state = as_tensors(state)
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
        owner: Owner,
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
        self.iterator.begin()
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
        if self.loader.persistent_workers and self._owner.running:
            self._lives_on = (self.iterator.base_seed, self.iterator.streams)
        else:
            self._owner.forget(self.iterator)
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
                    "state": stream.state,
                    "opening": stream.opening if self._owner.iterable else None,
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
        self.iterator.take_up()
        self.iterator.start(self.loader, skip=self.consumed, turn=cursor["turn"])
        self._owner.dispatch()

    def _resume_closed(self, cursor: Tree) -> None:
        self.iterator, self._lives_on = None, None
        if cursor["base_seed"] is not None:
            self._lives_on = (cursor["base_seed"], _streams_of(cursor))


def _streams_of(cursor: Tree) -> list[StreamPlace]:
    return [StreamPlace(tree["state"], tree["opening"], tree["taken"], tree["ended"]) for tree in cursor["streams"]]
