"""The loader processes of one worker and the queues to them: started and stopped as stock does it.

Stock raises an error, wherever the script happens to be, when one of its processes dies. Here it is noticed where a
batch is waited for, and told as `ProcessesLost`, so that the caller can start them anew.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, _utils
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data._utils.pin_memory import _pin_memory_loop

from easyscale.runtime.data.pool_worker import Begin, Done, Forget, Role, State, Task, serve

# Seconds in which the death of a process is known after it was felt: a batch whose memory could not be handed over.
_FELT = 2.0


class ProcessesLost(Exception):
    """Loader processes died. There will be no more batches from the others either: they share locks with them."""

    def __init__(self, dead: list[tuple[int, Any]]) -> None:
        self.dead = [(number, process.pid, process.exitcode) for number, process in dead]
        which = ", ".join(f"{pid} with exit code {code}" for _, pid, code in self.dead)
        super().__init__(f"DataLoader worker (pid(s) {which}) exited unexpectedly")

    def sentence(self) -> str:
        """What happened, for a reader of the log."""
        told = " and ".join(f"loader process {number} (pid {pid}) {_end(code)}" for number, pid, code in self.dead)
        if len(self.dead) == 1:
            return f"{told}; it was started anew, its batches are made again"
        return f"{told}; they were started anew, their batches are made again"


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


class Pool:
    """W loader processes. Each task that goes in comes back once, with its batch and its stream's state."""

    def __init__(self, loader: DataLoader[Any], announce: Callable[[int], None], pin_device: str | None) -> None:
        self._timeout = loader.timeout
        self._arrived: dict[tuple[int, int], tuple[Any, State | None]] = {}
        self._lives: set[int] = set()  # whose batches are wanted
        context: Any = loader.multiprocessing_context or torch.multiprocessing
        self._processes = processes = _Processes(context.Queue(), context.Event())
        # Also when this object is forgotten, and when Python exits.
        self._finalizer = weakref.finalize(self, processes.stop)
        heard = _if_it_can_travel(announce, context.get_start_method())
        for number in range(loader.num_workers):
            processes.start(context, _role(loader, number, heard))
        processes.watch()
        if pin_device is not None:
            processes.pin(pin_device)

    def loss(self) -> ProcessesLost | None:
        """Which processes have died, if any."""
        return self._processes.loss() if self._processes.lost.is_set() else None

    def put(self, worker: int, message: Begin | Task) -> None:
        self._lives.add(message.life)
        self._processes.inboxes[worker].put(message)

    def forget(self, life: int) -> None:
        """Nobody waits for these batches any more. Those that are on the way are dropped when they come."""
        self._lives.discard(life)
        self._arrived = {key: came for key, came in self._arrived.items() if key[0] != life}
        for inbox in self._processes.inboxes:
            inbox.put(Forget(life))

    def take(self, life: int, number: int) -> tuple[Any, State | None]:
        """The batch of one task, and its stream's state after it (None: not moved). Waits for it."""
        while (life, number) not in self._arrived:
            done, batch = self._receive()
            if done.life in self._lives:
                self._arrived[done.life, done.number] = (batch, done.state)
        return self._arrived.pop((life, number))

    def stop(self) -> None:
        self._arrived.clear()
        self._finalizer()

    def _receive(self) -> tuple[Done, Any]:
        waits = self._timeout if self._timeout > 0 else MP_STATUS_CHECK_INTERVAL
        while True:
            problem: Exception | None = None
            try:
                received = self._processes.results.get(timeout=waits)
                if not isinstance(received, Exception):
                    done: tuple[Done, Any] = received
                    return done
                problem = received  # from the pinning thread
            except queue.Empty:
                pass
            except Exception as felt:
                problem = felt
            if self._processes.lost.wait(0 if problem is None else _FELT):
                raise self._processes.loss() from problem
            if problem is not None:
                raise problem
            if self._timeout > 0:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")


@dataclass
class _Processes:
    """What must be stopped. Apart from `Pool`, so that a forgotten pool can be collected and its processes stopped."""

    outbox: Any
    done: Any
    inboxes: list[Any] = field(default_factory=list)
    members: list[Any] = field(default_factory=list)
    results: Any = None
    pin_thread: threading.Thread | None = None
    pin_done: threading.Event = field(default_factory=threading.Event)
    owner: int = field(default_factory=os.getpid)
    lost: threading.Event = field(default_factory=threading.Event)
    dead: list[tuple[int, Any]] = field(default_factory=list)
    stopping: bool = False

    def __post_init__(self) -> None:
        self.results = self.outbox

    def start(self, context: Any, role: Role) -> None:
        inbox = context.Queue()
        inbox.cancel_join_thread()  # nobody needs what is still in it when this process ends
        process = context.Process(target=serve, args=(role, inbox, self.outbox, self.done), daemon=True)
        process.start()
        self.inboxes.append(inbox)
        self.members.append(process)

    def watch(self) -> None:
        # Only the loader processes write. So when the last of them is gone, whoever reads is told, even in the middle
        # of a message that a dead one left half written.
        self.outbox._writer.close()
        threading.Thread(target=self._end_together, name="loader-watch", daemon=True).start()

    def _end_together(self) -> None:
        """When one process dies, the others end too: it may hold the lock of the queue that they share."""
        ready = connection.wait([process.sentinel for process in self.members])
        if self.stopping:
            return
        self.dead = [(n, process) for n, process in enumerate(self.members) if process.sentinel in ready]
        for process in self.members:
            if process.sentinel not in ready:
                process.kill()
        self.lost.set()

    def loss(self) -> ProcessesLost:
        for process in self.members:
            process.join(timeout=MP_STATUS_CHECK_INTERVAL)
        return ProcessesLost(self.dead)

    def pin(self, device: str) -> None:
        self.results = queue.Queue()
        arguments = (self.outbox, self.results, torch.accelerator.current_device_index(), self.pin_done, device)
        self.pin_thread = threading.Thread(target=_pin, args=arguments, daemon=True)
        self.pin_thread.start()

    def stop(self) -> None:
        if os.getpid() != self.owner:
            return  # a forked process forgot its copy of the pool
        self.stopping = True
        exiting = _utils.python_exit_status is not False
        try:
            # On exit queues and locks may be gone already, and a process that was killed may hold some.
            if not exiting and not self.lost.is_set():
                self._stop_kindly()
        finally:
            self.pin_done.set()
            for process in self.members:
                if process.is_alive():
                    process.terminate()
                    process.join(timeout=MP_STATUS_CHECK_INTERVAL)
        if not exiting:
            for inbox in self.inboxes:
                inbox.close()
            if self.pin_thread is not None:
                self.pin_thread.join(timeout=MP_STATUS_CHECK_INTERVAL)

    def _stop_kindly(self) -> None:
        self.pin_done.set()
        self.done.set()
        for inbox in self.inboxes:
            inbox.put(None)
        for process in self.members:
            process.join(timeout=MP_STATUS_CHECK_INTERVAL)


def _pin(outbox: Any, results: Any, *how: Any) -> None:
    """Stock's loop. What ends it is told to the reader of its results."""
    try:
        _pin_memory_loop(outbox, results, *how)
    except Exception as problem:
        results.put(problem)


def _role(loader: DataLoader[Any], number: int, announce: Callable[[int], None] | None) -> Role:
    return Role(
        dataset=loader.dataset,
        kind=loader._dataset_kind,
        auto_collation=loader._auto_collation,
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last,
        init_fn=loader.worker_init_fn,
        worker=number,
        workers=loader.num_workers,
        announce=announce,
    )


def _if_it_can_travel(announce: Callable[[int], None], start_method: str) -> Callable[[int], None] | None:
    """A forked process inherits everything; for the others `announce` must be picklable, or is left out."""
    if start_method != "fork":
        try:
            pickle.dumps(announce)
        except Exception:
            return None
    return announce
