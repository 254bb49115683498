"""Workers forked from one warm process: for many short runs of one script (`easyscale verify`).

The same promises as `backends.local`: a session of its own for each worker, pipes, an exit code, nothing outlives the
launcher. Linux only, as pidfds are; `NurseryLauncher.works()` says where. All workers of a nursery share what a process
fixes at its start: the hash seed, the thread settings that libraries read at import, the layout of its memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

from easyscale.backends import leash
from easyscale.backends.local import worker_environment
from easyscale.core.errors import EasyScaleError
from easyscale.core.spec import Target, WorkerSpec

COMMAND = (sys.executable, "-m", "easyscale.runtime.nursery")
MAX_REQUEST = 1 << 20
PIPES = 3  # events, stdout, stderr


class NurseryLauncher:
    """Starts the warm process with the first worker. `close` ends it, and all its workers."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._codes: dict[int, int] = {}
        self._started: list[int] = []

    @staticmethod
    def works() -> bool:
        return sys.platform == "linux"

    def start(self, spec: WorkerSpec, target: Target) -> NurseryWorker:
        environment = worker_environment(self._environment, replace(spec, events_fd=None))
        if self._channel is None:
            self._open(environment)
        pairs = [os.pipe() for _ in range(PIPES)]
        try:
            request = json.dumps({"environment": environment, "command": target.command()}).encode()
            assert self._channel is not None
            socket.send_fds(self._channel, [request], [writer for _, writer in pairs])
            pid = self._next_started()
        except BaseException:
            for reader, _ in pairs:
                os.close(reader)
            raise
        finally:
            for _, writer in pairs:
                os.close(writer)
        return NurseryWorker(self, pid, *(reader for reader, _ in pairs))

    def code_of(self, pid: int) -> int | None:
        """The exit code, once the warm process has told it."""
        while pid not in self._codes and self._heard(0.0):
            pass
        return self._codes.get(pid)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.wait()
        self._channel = self._process = None

    def _open(self, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *COMMAND, str(theirs.fileno())),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._channel = ours

    def _next_started(self) -> int:
        while not self._started:
            if not self._heard(None):
                raise EasyScaleError(
                    "The process that starts workers has ended.",
                    "it could not import torch, or was killed.",
                    "look at the lines above; `easyscale run` starts workers without it.",
                )
        return self._started.pop(0)

    def _heard(self, seconds: float | None) -> bool:
        """Whether there was a word from the warm process."""
        if self._channel is None or not select.select([self._channel], [], [], seconds)[0]:
            return False
        data = self._channel.recv(MAX_REQUEST)
        if not data:
            return False
        word = json.loads(data)
        if "started" in word:
            self._started.append(word["started"])
        else:
            self._codes[word["ended"]] = word["code"]
        return True


class NurseryWorker:
    """One forked worker: as a `LocalWorker`, but its end is told by the warm process."""

    def __init__(self, launcher: NurseryLauncher, pid: int, events: int, stdout: int, stderr: int) -> None:
        self._launcher, self.pid = launcher, pid
        self.events, self.stdout, self.stderr = events, stdout, stderr
        self.ended = None  # `poll` has to be called in turn
        for pipe in (events, stdout, stderr):
            os.set_blocking(pipe, False)

    def poll(self) -> int | None:
        return self._launcher.code_of(self.pid)

    def signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def stop(self, grace: float) -> int:
        """SIGTERM, then SIGKILL to all that is left after `grace` seconds. Returns the exit code."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.005)
        return code

    def close(self) -> None:
        """Give the pipes back. The worker has ended."""
        for pipe in (self.events, self.stdout, self.stderr):
            os.close(pipe)
