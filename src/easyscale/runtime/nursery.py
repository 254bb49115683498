"""Warm workers: a process that has imported torch once and forks a worker for each request.

`python -m easyscale.runtime.nursery FD`. Each request on the socket carries the worker's environment, its target and
its three pipes; the answer is its process number, and later how it ended. A worker starts in milliseconds instead of
seconds. What a fork would hand on by mistake is made anew: the random states that nobody has seeded yet, and the clock
from which the start is counted. CUDA must not have been touched here, and is not: nothing but imports happens.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import selectors
import signal
import socket
import sys
import time
from typing import NoReturn

import numpy as np
import torch._dynamo  # noqa: F401  stock DDP imports it: once here, not once in each rank

from easyscale.backends.leash import follow_parent
from easyscale.backends.nursery import MAX_REQUEST, PIPES
from easyscale.core.spec import WORKER_VARIABLE, WorkerSpec
from easyscale.runtime import api, reference, session, worker  # noqa: F401  warm


class Nursery:
    """Serves one launcher until it closes the socket; its workers end with it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._children: dict[int, int] = {}  # process number -> pidfd
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, None)

    def serve(self) -> None:
        gc.freeze()  # workers share what was imported: their collectors would write to it, and so copy it
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._bury(key.data)
                elif not self._answer():
                    return

    def _answer(self) -> bool:
        """One request. False when the launcher is gone."""
        data, pipes, _, _ = socket.recv_fds(self._channel, MAX_REQUEST, PIPES)
        if not data:
            return False
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            self._become_worker(json.loads(data), pipes, parent)
        for pipe in pipes:
            os.close(pipe)
        self._children[child] = os.pidfd_open(child)
        self._selector.register(self._children[child], selectors.EVENT_READ, child)
        self._tell({"started": child})
        return True

    def _bury(self, child: int) -> None:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # its data loading processes; before it is reaped: the number is still its
        _, status = os.waitpid(child, 0)
        pidfd = self._children.pop(child)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._tell({"ended": child, "code": os.waitstatus_to_exitcode(status)})

    def _tell(self, what: dict[str, int]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(json.dumps(what).encode())

    def _become_worker(self, request: dict[str, object], pipes: list[int], parent: int) -> NoReturn:
        code = 1
        try:
            self._channel.close()
            os.setsid()
            follow_parent(parent)
            events, stdout, stderr = pipes
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), 0)
            os.environ.clear()
            os.environ.update(request["environment"])  # type: ignore[call-overload]
            spec = json.loads(os.environ[WORKER_VARIABLE])
            os.environ[WORKER_VARIABLE] = WorkerSpec.from_json(json.dumps({**spec, "events_fd": events})).to_json()
            random.seed()
            np.random.seed()
            api._started = time.time()
            code = worker.main(list(request["command"]))  # type: ignore[call-overload]
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    Nursery(socket.socket(fileno=int(sys.argv[1]))).serve()
