"""The workers of one plan, connected by Gloo.

A private process group: torch's default group stays free, so that a script which calls `torch.distributed` itself
fails loudly instead of talking to workers where it means ranks. One worker alone needs no group: every call is then a
no-op. Counts the bytes that it sends. A peer that does not answer raises `WorkerLostError`.

`sever` may be called from another thread: it shuts the connections down, and whoever waits for a peer gets the error at
once. Gloo has no call for that; its connections are told by the sockets that appear while the group is formed.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, FileStore, PrefixStore, ProcessGroupGloo

from easyscale.core.control import BOARD
from easyscale.core.errors import WorkerLostError
from easyscale.runtime.board import BoardKeeper, BoardStore

LOOPBACK = "127.0.0.1"
SLOT = 1 << 12  # bytes a worker has in a gathering before it is known how much they need
# Seconds to connect once all members are there: they are about to do the same, so silence means that one has died.
CONNECT_SECONDS = 10.0
LOOK_SECONDS = (0.001, 0.01)  # between two looks for the others: soon at first, seldom where it takes longer


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the workers of one plan find each other."""

    rendezvous: str  # a file's name, or a board of the master
    timeout: float  # seconds without an answer after which a peer counts as lost
    patience: float  # seconds until all must be there
    address: str = LOOPBACK
    called_off: Callable[[], bool] = lambda: False  # asked while waiting for the others
    keeper: BoardKeeper | None = None  # of the board, where it is one

    @contextmanager
    def store(self, workers: int) -> Iterator[Any]:
        if not self.rendezvous.startswith(BOARD):
            yield FileStore(self.rendezvous, workers)
            return
        assert self.keeper is not None
        store = BoardStore(self.rendezvous.removeprefix(BOARD), self.keeper)
        try:
            yield store
        finally:
            store.close()


class Group:
    """All-reduce, broadcast, gathering and point-to-point messages among the workers of one plan."""

    def __init__(self, meeting: Meeting | None, worker: int, workers: int, name: str = "gradients") -> None:
        """`worker` is the rank. `name` tells groups of the same workers apart: their messages never meet."""
        self.worker, self.workers = worker, workers
        self.bytes_sent = 0
        self.waiting = 0  # calls that wait for a peer now
        self._pg: Any = None
        self._store: Any = None
        self._sockets: dict[int, str] = {}
        self._severed = False
        self._slot = SLOT
        if workers > 1:
            assert meeting is not None
            self._limit = timedelta(seconds=meeting.timeout)
            with self._waiting("while the workers of the plan found each other"):
                self._form(meeting, name)

    def _form(self, meeting: Meeting, name: str) -> None:
        _keep_from_forks()
        with meeting.store(self.workers) as found:
            self._store = found  # a store in Python must outlive what Gloo keeps of it
            self._connect(PrefixStore(name, found), meeting)

    def _connect(self, store: Any, meeting: Meeting) -> None:
        _await_all(store, self.worker, self.workers, meeting)
        store.set_timeout(timedelta(seconds=CONNECT_SECONDS))
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices = [_device(meeting.address, os.getpid())]
        options._timeout = timedelta(seconds=CONNECT_SECONDS)
        before = _sockets()
        self._pg = gloo(store, self.worker, self.workers, options)
        self._sockets = {fd: what for fd, what in _sockets().items() if before.get(fd) != what}

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> Callable[[], None]:
        """Start an all-reduce in place; call what comes back to wait for it."""
        if self._pg is None:
            return _nothing
        self.bytes_sent += 2 * (self.workers - 1) * tensor.nbytes // self.workers
        options = dist.AllreduceOptions()
        options.reduceOp, options.timeout = op, self._limit
        with self._waiting("in an all-reduce"):
            work = self._pg.allreduce([tensor], options)
        return lambda: self._wait(work)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        if self._pg is None:
            return
        self.bytes_sent += tensor.nbytes if self.worker == root else 0
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = root, 0, self._limit
        with self._waiting("in a broadcast"):
            self._pg.broadcast([tensor], options).wait()

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Callable[[], None]:
        """Start sending; call what comes back before the memory is used again."""
        self.bytes_sent += tensor.nbytes
        with self._waiting(f"while sending to worker {peer}"):
            work = self._pg.send([tensor], peer, tag)
        return lambda: self._wait(work)

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> None:
        with self._waiting(f"while waiting for worker {peer}"):
            self._pg.recv([tensor], peer, tag).wait(self._limit)

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Everyone's bytes, by rank, on every worker."""
        return self.start_gathering(payload)()

    def start_gathering(self, payload: bytes) -> Callable[[], list[bytes]]:
        """As `gather_bytes`, in the background: call what comes back to wait for it.

        One exchange where all payloads fit into the slots, which grow and shrink with them; two where one does not, and
        the second begins only when all wait for it.
        """
        if self._pg is None:
            return lambda: [payload]
        slots, wait = self._gather_slots(payload, self._slot)

        def finish() -> list[bytes]:
            wait()
            lengths = [int.from_bytes(slot[:8].numpy().tobytes(), "little") for slot in slots]
            room, most = slots[0].numel(), max(lengths) + 8
            self._slot = max(SLOT, 1 << (most - 1).bit_length())
            found = slots
            if most > room:
                found, again = self._gather_slots(payload, most)
                again()
            return [slot[8 : 8 + n].numpy().tobytes() for slot, n in zip(found, lengths, strict=True)]

        return finish

    def expect(self, size: int) -> None:
        """The next gathering may need so many bytes a worker: told alike on all workers."""
        self._slot = max(SLOT, 1 << (size + 8).bit_length())

    def _gather_slots(self, payload: bytes, size: int) -> tuple[list[torch.Tensor], Callable[[], None]]:
        mine = torch.zeros(size, dtype=torch.uint8)
        framed = len(payload).to_bytes(8, "little") + payload
        fits = min(size, len(framed))
        mine[:fits] = torch.frombuffer(bytearray(framed[:fits]), dtype=torch.uint8)
        slots = [torch.empty(size, dtype=torch.uint8) for _ in range(self.workers)]
        self.bytes_sent += (self.workers - 1) * size
        options = AllgatherOptions()
        options.timeout = self._limit
        with self._waiting("in a gathering"):
            work = self._pg.allgather([slots], [mine], options)
        return slots, lambda: self._wait(work)

    def gather_json(self, value: Any) -> list[Any]:
        return [json.loads(raw) for raw in self.gather_bytes(json.dumps(value).encode())]

    def broadcast_bytes(self, payload: bytes, root: int = 0) -> bytes:
        """The root's bytes, everywhere."""
        if self._pg is None:
            return payload
        length = torch.tensor([len(payload)], dtype=torch.int64)
        self.broadcast(length, root)
        body = _as_tensor(payload) if self.worker == root else torch.empty(max(int(length), 1), dtype=torch.uint8)
        self.broadcast(body, root)
        return payload if self.worker == root else body.numpy().tobytes()[: int(length)]

    def sever(self) -> None:
        """Cut all connections. From any thread, as often as one likes."""
        self._severed = True
        for fd, what in self._sockets.items():
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{fd}") == what:  # not closed, and its number not used again
                    with socket.socket(fileno=os.dup(fd)) as connection:
                        connection.shutdown(socket.SHUT_RDWR)

    def _wait(self, work: Any) -> None:
        with self._waiting("while waiting for a peer"):
            work.wait(self._limit)

    @contextmanager
    def _waiting(self, when: str) -> Any:
        self.waiting += 1
        try:
            yield
        except RuntimeError as problem:
            said = str(problem).splitlines()[0]
            lost = WorkerLostError(
                f"A worker of this plan was lost {when}.",
                f"the connection said: {said}",
                "look at the output of the other workers for the first error; restart with --resume latest.",
            )
            lost.timed_out = not self._severed and "imed out" in said
            raise lost from problem
        finally:
            self.waiting -= 1


@lru_cache(maxsize=1)
def _keep_from_forks() -> None:
    """A fork (a loader process) has the groups of its parent, but not their threads: it must not destroy them.

    Groups of earlier plans wait for the garbage collector; where the fork's comes first, their destructors wait for
    threads that are not there, or abort. So what was there before a fork is none of its collector's business.
    """
    os.register_at_fork(after_in_child=gc.freeze)


@lru_cache(maxsize=4)
def _device(address: str, process: int) -> Any:
    """One a process: each has a listening socket and a thread, and a fork has neither."""
    del process
    gloo: Any = ProcessGroupGloo
    return gloo.create_device(hostname=address)


def _await_all(store: Any, worker: int, workers: int, meeting: Meeting) -> None:
    """Here and not in Gloo: a plan that is called off meanwhile must not hold anyone up."""
    store.set(f"here-{worker}", "1")
    others = [f"here-{peer}" for peer in range(workers)]
    began = time.monotonic()
    deadline = began + meeting.patience
    while not store.check(others):
        if meeting.called_off():
            raise RuntimeError("the plan was called off before all its workers were there")
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out: a worker did not come within {meeting.patience:g} seconds")
        time.sleep(LOOK_SECONDS[time.monotonic() - began > 1.0])


def _sockets() -> dict[int, str]:
    """This process's connections to other hosts or to the loopback interface."""
    found: dict[int, str] = {}
    with suppress(OSError):  # no /proc: nothing can be severed there, and a lost peer is found by the time limit
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                what = os.readlink(f"/proc/self/fd/{name}")
                if what.startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as connection:
                        inet = connection.family in (socket.AF_INET, socket.AF_INET6)
                        if inet and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                            found[int(name)] = what
    return found


def _as_tensor(payload: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(payload or b"\0"), dtype=torch.uint8)


def _nothing() -> None:
    return None
