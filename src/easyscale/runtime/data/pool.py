"""The loader processes of one worker and the queues to them: started, watched and stopped as stock does it."""

from __future__ import annotations

import os
import pickle
import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.multiprocessing
from torch._C import _remove_worker_pids, _set_worker_pids
from torch.utils.data import DataLoader, _utils
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data._utils.pin_memory import _pin_memory_loop
from torch.utils.data._utils.signal_handling import _set_SIGCHLD_handler

from easyscale.runtime.data.pool_worker import Begin, Done, Role, State, Task, serve


class Pool:
    """W loader processes. Each task that goes in comes back once, with its batch and its stream's state."""

    def __init__(self, loader: DataLoader[Any], announce: Callable[[int], None], pin_device: str | None) -> None:
        self._timeout = loader.timeout
        self._arrived: dict[tuple[int, int], tuple[Any, State | None]] = {}
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

    @property
    def broken(self) -> bool:
        """A process or the pinning thread died; there will be no more batches."""
        thread = self._processes.pin_thread
        alive = all(process.is_alive() for process in self._processes.members)
        return not alive or (thread is not None and not thread.is_alive())

    def put(self, worker: int, message: Begin | Task) -> None:
        self._processes.inboxes[worker].put(message)

    def take(self, est: int, number: int) -> tuple[Any, State | None]:
        """The batch of one task, and its stream's state after it (None: not moved). Waits for it."""
        while (est, number) not in self._arrived:
            done, batch = self._receive()
            self._arrived[done.est, done.number] = (batch, done.state)
        return self._arrived.pop((est, number))

    def stop(self) -> None:
        self._arrived.clear()
        self._finalizer()

    def _receive(self) -> tuple[Done, Any]:
        waits = self._timeout if self._timeout > 0 else MP_STATUS_CHECK_INTERVAL
        while True:
            try:
                received: tuple[Done, Any] = self._processes.results.get(timeout=waits)
                return received
            except Exception as problem:
                self._check_processes(problem)
                if not isinstance(problem, queue.Empty):
                    raise  # the SIGCHLD handler names the process that died; else a queue is unusable
            if self._timeout > 0:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")

    def _check_processes(self, problem: Exception) -> None:
        dead = [process for process in self._processes.members if not process.is_alive()]
        if dead:
            which = ", ".join(f"{process.pid} with exit code {process.exitcode}" for process in dead)
            raise RuntimeError(f"DataLoader worker (pid(s) {which}) exited unexpectedly") from problem
        thread = self._processes.pin_thread
        if thread is not None and not thread.is_alive():
            raise RuntimeError("Pin memory thread exited unexpectedly") from problem


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
    watched: bool = False

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
        """Let a process that dies interrupt the wait for its batch."""
        _set_worker_pids(id(self), tuple(process.pid for process in self.members))
        _set_SIGCHLD_handler()
        self.watched = True

    def pin(self, device: str) -> None:
        self.results = queue.Queue()
        arguments = (self.outbox, self.results, torch.accelerator.current_device_index(), self.pin_done, device)
        self.pin_thread = threading.Thread(target=_pin_memory_loop, args=arguments, daemon=True)
        self.pin_thread.start()

    def stop(self) -> None:
        if os.getpid() != self.owner:
            return  # a forked process forgot its copy of the pool
        exiting = _utils.python_exit_status is not False
        try:
            if not exiting:  # else queues and locks may be gone already; the processes are just ended
                self._stop_kindly()
        finally:
            if self.watched:
                _remove_worker_pids(id(self))
                self.watched = False
            self.pin_done.set()
            for process in self.members:
                if process.is_alive():
                    process.terminate()
                    process.join(timeout=MP_STATUS_CHECK_INTERVAL)

    def _stop_kindly(self) -> None:
        if self.pin_thread is not None:
            # First, because a process that ends may leave half a message in the queue that this thread reads.
            self.pin_done.set()
            self.outbox.put((None, None))
            self.pin_thread.join()
        self.done.set()
        for inbox in self.inboxes:
            inbox.put(None)
        for process in self.members:
            process.join(timeout=MP_STATUS_CHECK_INTERVAL)
        for inbox in self.inboxes:
            inbox.close()
        self.outbox.cancel_join_thread()
        self.outbox.close()


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
