"""The loader process: loader worker w of every EST of this worker.

Stock gives each rank v a process for its loader worker w. Here one process plays w for all of them: each (v, w) is a
stream with the random state, the data set copy and the iterator that its stock process would have. A stream's state
is put in place before each of its tasks and taken away after it, and goes back with the batch if the task moved it.
"""

from __future__ import annotations

import os
import queue
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.multiprocessing
from torch._C import _set_worker_signal_handlers
from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL, worker
from torch.utils.data.dataloader import _DatasetKind

from easyscale.core.errors import PromiseError
from easyscale.numerics.rng import RngState
from easyscale.runtime.data import private

State = dict[str, Any]
Exhausted = worker._IterableDatasetStopIteration  # comes instead of a batch when an IterableDataset has ended


@dataclass(frozen=True, kw_only=True)
class Role:
    """What a loader process is given when it starts."""

    dataset: Dataset[Any]
    kind: int
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    init_fn: Callable[[int], None] | None
    worker: int
    workers: int
    announce: Callable[[int], None] | None


@dataclass(frozen=True, slots=True)
class Begin:
    """An EST begins an epoch. All but the first three are for a stream that lived elsewhere before.

    `life` tells an EST's stay in these processes from an earlier one, of which there may still be tasks on the way.
    """

    life: int
    est: int
    base_seed: int
    opening: State | None = None  # at the beginning of the epoch; None: as it is here
    replay: tuple[Any, ...] = ()  # tasks that were consumed and must be done again (IterableDataset)
    state: State | None = None  # after the last batch consumed; None: nothing was drawn since


@dataclass(frozen=True, slots=True)
class Task:
    life: int
    number: int
    index: Any
    keep: bool = True  # False: nobody will look at the batch, only its effect on the stream is wanted


@dataclass(frozen=True, slots=True)
class Forget:
    """The EST's stay is over: it went to another worker, or its epoch ended before that of the others."""

    life: int


@dataclass(frozen=True, slots=True)
class Done:
    """Travels with a batch. `state` is the stream's after it, None if the stream's last message still holds."""

    life: int
    number: int
    state: State | None


class Inbox(Protocol):
    def get(self, block: bool = ..., timeout: float | None = ...) -> Any: ...


class Outbox(Protocol):
    def put(self, obj: Any) -> None: ...
    def cancel_join_thread(self) -> None: ...
    def close(self) -> None: ...


class Flag(Protocol):
    def is_set(self) -> bool: ...


class Stream:
    """Loader worker w of EST v: one stock loader process, without the process."""

    def __init__(self, role: Role, begin: Begin, untouched: list[Any]) -> None:
        self.role, self.est = role, begin.est
        self.ended = False
        self._first = True
        self._fetcher: Any = None
        self._dataset = private.private_copy(role.dataset)
        self._collate = private.private_call(role.collate_fn, role.dataset, self._dataset)
        seed = begin.base_seed + role.worker
        self._info = worker.WorkerInfo(id=role.worker, num_workers=role.workers, seed=seed, dataset=self._dataset)
        # What the data set's own generators hold at the start of a stock process: other streams moved them on here.
        self._holders = private.find_generators(self._dataset, self._collate)
        private.restore(self._holders, untouched)
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(worker._generate_state(begin.base_seed, role.worker))
        self._take_out()
        with self.live():
            if role.init_fn is not None:
                private.rebound(role.init_fn, role.dataset, self._dataset)(role.worker)
            self._holders = private.find_generators(self._dataset, self._collate)
        self._reported, self._reported_own = self._rng, self._own

    def begin(self, begin: Begin) -> None:
        """What stock does when an epoch begins: a new fetcher, and for an IterableDataset a new iterator."""
        self.ended, self._first = False, True
        if begin.opening is not None:
            self._put(begin.opening)
        with self.live():
            self._fetcher = _DatasetKind.create_fetcher(
                self.role.kind, self._dataset, self.role.auto_collation, self._collate, self.role.drop_last
            )
            for index in begin.replay:
                self._fetch(index)
        if begin.state is None:
            return
        if begin.replay and not self._is(begin.state):
            raise PromiseError(
                f"{type(self.role.dataset).__name__} did not draw the random numbers that it drew before.",
                "its first batches were made again to get back to its place, and something that they depend on is "
                "not the same.",
                "let what the data set yields depend on its arguments, the epoch, the rank and the seeds only.",
            )
        self._put(begin.state)

    def perform(self, task: Task) -> tuple[Done, Any]:
        with self.live():
            batch = self._fetch(task.index)
            if self._first:  # some generators are made only when they are needed
                self._first, self._holders = False, private.find_generators(self._dataset, self._collate)
        state = None
        if not self._rng.same_as(self._reported) or not private.same(self._own, self._reported_own):
            self._reported, self._reported_own = self._rng, self._own
            # NumPy arrays travel inside the message; a tensor would cost a file descriptor each.
            state = as_arrays({"rng": self._rng.to_tree(), "own": self._own})
        return Done(task.life, task.number, state), batch if task.keep else None

    def _fetch(self, index: Any) -> Any:
        if self.ended:
            return Exhausted(self.role.worker)
        try:
            return self._fetcher.fetch(index)
        except Exception as problem:
            if isinstance(problem, StopIteration) and self.role.kind == _DatasetKind.Iterable:
                self.ended = True
                return Exhausted(self.role.worker)
            # As in stock, the exception is not kept: its traceback would keep the frames alive.
            return ExceptionWrapper(where=f"in DataLoader worker process {self.role.worker}")

    @contextmanager
    def live(self) -> Iterator[None]:
        """Within it, the process is this stream's stock process."""
        worker._worker_info = self._info
        if self.role.announce is not None:
            self.role.announce(self.est)
        self._put_in()
        try:
            yield
        finally:
            self._take_out()

    def _put_in(self) -> None:
        self._rng.restore()
        private.restore(self._holders, self._own)

    def _take_out(self) -> None:
        self._rng, self._own = RngState.capture(), private.capture(self._holders)

    def _put(self, state: State) -> None:
        state = as_tensors(state)
        self._rng, self._own = RngState.from_tree(state["rng"]), state["own"]
        self._reported, self._reported_own = self._rng, self._own

    def _is(self, state: State) -> bool:
        state = as_tensors(state)
        return self._rng.same_as(RngState.from_tree(state["rng"])) and private.same(self._own, state["own"])


def serve(role: Role, inbox: Inbox, outbox: Outbox, done: Flag) -> None:
    """The life of a loader process, as stock's `_worker_loop` is."""
    try:
        _set_worker_signal_handlers()
        torch.multiprocessing._set_thread_name("pt_data_worker")
        torch.set_num_threads(1)
        untouched = private.capture(private.find_generators(role.dataset, role.collate_fn))
        streams: dict[int, Stream] = {}
        failures: dict[int, ExceptionWrapper] = {}
        watchdog = worker.ManagerWatchdog()
        while watchdog.is_alive():
            try:
                message = inbox.get(timeout=MP_STATUS_CHECK_INTERVAL)
            except queue.Empty:
                continue
            if message is None:
                break
            if done.is_set():
                continue  # skip the work, wait for the final None
            if isinstance(message, Begin):
                _begin(role, message, untouched, streams, failures)
            elif isinstance(message, Forget):
                streams.pop(message.life, None)
                failures.pop(message.life, None)
            elif message.life in failures:
                outbox.put((Done(message.life, message.number, None), failures[message.life]))
            else:
                outbox.put(streams[message.life].perform(message))
            del message  # save memory
        else:  # the main process died: nobody reads the outbox, so waiting for it to empty would last for ever
            os._exit(1)
    except KeyboardInterrupt:
        pass  # the main process raises it anyway
    if done.is_set():
        outbox.cancel_join_thread()
        outbox.close()


def _begin(
    role: Role, begin: Begin, untouched: list[Any], streams: dict[int, Stream], failures: dict[int, ExceptionWrapper]
) -> None:
    """Begin a stream's epoch. What goes wrong arrives with its first batch, as in stock."""
    failures.pop(begin.life, None)
    try:
        if begin.life not in streams:
            streams[begin.life] = Stream(role, begin, untouched)
        streams[begin.life].begin(begin)
    except Exception:
        failures[begin.life] = ExceptionWrapper(where=f"in DataLoader worker process {role.worker}")


def as_arrays(tree: Any) -> Any:
    """A state as it travels between the processes."""
    return _map(tree, lambda leaf: leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf)


def as_tensors(tree: Any) -> Any:
    """A state as it goes into a cursor. It shares the memory of the arrays that came over."""
    return _map(tree, lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf)


def _map(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _map(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_map(value, change) for value in tree]
    return change(tree)
