"""The workers of one plan, connected by Gloo on the loopback interface.

A private process group: torch's default group stays free, so that a script which calls `torch.distributed` itself
fails loudly instead of talking to workers where it means ranks. One worker alone needs no group: every call is then a
no-op. Counts the bytes that it sends. A peer that does not answer raises `WorkerLostError`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, ProcessGroupGloo

from easyscale.core.errors import WorkerLostError

T = TypeVar("T")


class Group:
    """All-reduce, broadcast and point-to-point messages among the workers of one plan."""

    def __init__(
        self, rendezvous: str | None, worker: int, workers: int, timeout: float, name: str = "gradients"
    ) -> None:
        """`name` tells groups of the same workers apart: messages of one never meet those of another."""
        self.worker, self.workers = worker, workers
        self.bytes_sent = 0
        self._pg: Any = None
        if workers > 1:
            assert rendezvous is not None
            with _lost_peers_are_ours("while the workers of the plan found each other"):
                self._pg = _gloo(FileStore(rendezvous, workers), name, worker, workers, timeout)

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> Callable[[], None]:
        """Start an all-reduce in place; call what comes back to wait for it."""
        if self._pg is None:
            return _nothing
        self.bytes_sent += 2 * (self.workers - 1) * tensor.nbytes // self.workers
        options = dist.AllreduceOptions()
        options.reduceOp = op
        with _lost_peers_are_ours("in an all-reduce"):
            work = self._pg.allreduce([tensor], options)
        return lambda: _wait(work)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        if self._pg is None:
            return
        self.bytes_sent += tensor.nbytes if self.worker == root else 0
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        with _lost_peers_are_ours("in a broadcast"):
            self._pg.broadcast([tensor], options).wait()

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Callable[[], None]:
        """Start sending; call what comes back before the memory is used again."""
        self.bytes_sent += tensor.nbytes
        with _lost_peers_are_ours(f"while sending to worker {peer}"):
            work = self._pg.send([tensor], peer, tag)
        return lambda: _wait(work)

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> None:
        with _lost_peers_are_ours(f"while waiting for worker {peer}"):
            self._pg.recv([tensor], peer, tag).wait()

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Everyone's bytes, at worker 0; the others get an empty list."""
        if self._pg is None:
            return [payload]
        if self.worker != 0:
            self.send(torch.tensor([len(payload)], dtype=torch.int64), 0, 9000)()
            self.send(_as_tensor(payload), 0, 9001)()
            return []
        received = [payload]
        for peer in range(1, self.workers):
            length = torch.zeros(1, dtype=torch.int64)
            self.receive(length, peer, 9000)
            body = torch.empty(max(int(length), 1), dtype=torch.uint8)
            self.receive(body, peer, 9001)
            received.append(body.numpy().tobytes()[: int(length)])
        return received

    def broadcast_bytes(self, payload: bytes) -> bytes:
        """Worker 0's bytes, everywhere."""
        if self._pg is None:
            return payload
        length = torch.tensor([len(payload)], dtype=torch.int64)
        self.broadcast(length)
        body = _as_tensor(payload) if self.worker == 0 else torch.empty(max(int(length), 1), dtype=torch.uint8)
        self.broadcast(body)
        return body.numpy().tobytes()[: int(length)]


def _gloo(store: Any, name: str, worker: int, workers: int, timeout: float) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=timeout)
    return gloo(PrefixStore(name, store), worker, workers, options)


def _as_tensor(payload: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(payload or b"\0"), dtype=torch.uint8)


def _nothing() -> None:
    return None


def _wait(work: Any) -> None:
    with _lost_peers_are_ours("while waiting for a peer"):
        work.wait()


@contextmanager
def _lost_peers_are_ours(when: str) -> Any:
    try:
        yield
    except RuntimeError as problem:
        raise WorkerLostError(
            f"A worker of this plan was lost {when}.",
            f"the connection said: {str(problem).splitlines()[0]}",
            "look at the output of the other workers for the first error; restart with --resume latest.",
        ) from problem
