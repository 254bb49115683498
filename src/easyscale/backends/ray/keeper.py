"""Looks after one process on a node: starts it, keeps what it prints, passes signals on, tells how it ended.

Runs as a Ray actor that no driver owns, so the process outlives whoever asked for it. It does not outlive the keeper: a
keeper that is gone means a process that is gone, which is what Ray can tell the master.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from easyscale.backends import leash
from easyscale.backends.lives import KEPT_VARIABLE
from easyscale.backends.local import WORKER_COMMAND, bounded, worker_environment
from easyscale.backends.ray.tape import Tape
from easyscale.core.spec import WorkerSpec

CHUNK = 1 << 16
MOST_AT_ONCE = 1 << 20  # bytes of each stream in one answer


class Errand(TypedDict, total=False):
    """What to run. All in plain values: it crosses the network."""

    command: list[str]  # `spec` given: what follows the worker's command
    whole: bool  # `command` is all of it
    environment: dict[str, str]
    cwd: str
    spec: str | None  # of a worker, as JSON
    visible: str | None  # the UUID of its GPU; empty: it has none; None: those that Ray has named
    log: str | None  # both streams go to this file instead of the tapes
    memo: dict[str, str]  # what whoever finds the process again wants to know


class News(TypedDict):
    """`places`: how far the two streams were read. `code`: once it has ended and all is read."""

    streams: tuple[bytes, bytes]
    places: tuple[int, int]
    ended: bool
    code: int | None


class Keeper:
    """`begin` once, then `listen` again and again. After the end, or without a beginning, it stays for `linger` s."""

    def __init__(self, linger: float) -> None:
        self._linger = linger
        self._beginning, self._changed = threading.Lock(), threading.Condition()
        self._tapes = (Tape(), Tape())
        self._process: subprocess.Popen[bytes] | None = None
        self._refused: str | None = None
        self._over, self._code = False, 0
        self._endpoint: Path | None = None
        self._memo: dict[str, str] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="easyscale-keeper-"))
        self._leave_by = time.monotonic() + linger
        threading.Thread(target=self._watch_clock, name="easyscale-clock", daemon=True).start()

    # ------------------------------------------------------------------ called from afar

    def begin(self, errand: Errand) -> dict[str, Any]:
        """The process's facts, or `refused`: why it does not run. The second time: the facts of the first."""
        with self._beginning:
            if self._process is None and self._refused is None:
                self._memo = errand.get("memo", {})
                started = threading.Event()
                # The thread that starts a process on a leash must live as long as the process.
                threading.Thread(target=self._look_after, args=(errand, started), daemon=True).start()
                started.wait()
        return self.facts()

    def facts(self) -> dict[str, Any]:
        import ray

        context = ray.get_runtime_context()
        return {
            "refused": self._refused,
            "pid": self._process.pid if self._process is not None else None,
            "ended": self._over,
            "node": context.get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "memo": self._memo,
        }

    def listen(self, taken: tuple[int, int], endpoint: str | None, seconds: float) -> News:
        """What is new; after `seconds`, that nothing is. `endpoint`: where the worker's master listens now, as JSON."""
        deadline = time.monotonic() + seconds
        with self._changed:
            if endpoint is not None and not self._over:
                self._tell_endpoint(endpoint)
            for tape, place in zip(self._tapes, taken, strict=True):
                tape.taken(place)
            while not self._over and all(tape.begin == tape.end for tape in self._tapes):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            (out, out_place), (err, err_place) = (tape.read(MOST_AT_ONCE) for tape in self._tapes)
            all_read = (out_place, err_place) == (self._tapes[0].end, self._tapes[1].end)
            ended = self._over and all_read
            return News(
                streams=(out, err), places=(out_place, err_place), ended=ended, code=self._code if ended else None
            )

    def signal(self, number: int) -> None:
        """To the process alone; SIGKILL to all that it started."""
        process = self._process
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process is not None and not self._over:
                (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)

    # ------------------------------------------------------------------ the process

    def _look_after(self, errand: Errand, started: threading.Event) -> None:
        try:
            process = self._start(errand)
        except OSError as problem:
            where = f" ({problem.filename})" if problem.filename else ""
            self._refused = f"{problem.strerror or problem}{where}"
            self._over = True
            started.set()
            return
        self._process = process
        started.set()
        self._follow(process)
        with self._changed:
            self._code, self._over = process.returncode, True
            shutil.rmtree(self._folder, ignore_errors=True)  # who is asked to leave at once gets no other occasion
            self._leave_by = time.monotonic() + self._linger
            self._changed.notify_all()

    def _start(self, errand: Errand) -> subprocess.Popen[bytes]:
        spec = errand.get("spec")
        environment = node_environment(
            os.environ, errand["environment"], errand.get("visible"), driver=spec is None
        )  # fmt: skip
        command = errand["command"]
        if spec is not None:
            worker = with_device(WorkerSpec.from_json(spec), environment.get("CUDA_VISIBLE_DEVICES"))
            environment = worker_environment(environment, self._at_home(worker))
            command = list(bounded(worker, tuple(command if errand.get("whole") else (*WORKER_COMMAND, *command))))
        log = errand.get("log")
        with contextlib.ExitStack() as files:
            out: int = subprocess.PIPE
            if log is not None:
                out = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                files.callback(os.close, out)
            return subprocess.Popen(
                (sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *command),
                env=environment,
                cwd=errand["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out if log is not None else subprocess.PIPE,
                start_new_session=True,
            )

    def _at_home(self, spec: WorkerSpec) -> WorkerSpec:
        """The worker is reached at this node's address, and finds its master through a file of this node."""
        if spec.control is None:
            return spec
        import ray

        control = spec.control
        self._endpoint = self._folder / "master.json"
        self._tell_endpoint(json.dumps({"host": control.host, "port": control.port}))
        address = ray.util.get_node_ip_address()
        return replace(spec, control=replace(control, address=address, endpoint=str(self._endpoint)))

    def _tell_endpoint(self, text: str) -> None:
        if self._endpoint is None or (self._endpoint.exists() and self._endpoint.read_text() == text):
            return
        part = self._endpoint.with_name("part")
        part.write_text(text)
        part.replace(self._endpoint)

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Until it has ended. What its children left unread is taken, then they are killed."""
        ended = os.pidfd_open(process.pid)
        streams = {
            pipe.fileno(): tape
            for pipe, tape in zip((process.stdout, process.stderr), self._tapes, strict=True)
            if pipe is not None
        }
        for pipe in streams:
            os.set_blocking(pipe, False)
        try:
            while True:
                ready, _, _ = select.select([ended, *streams], [], [])
                for pipe in [pipe for pipe in ready if pipe in streams]:
                    if self._take(pipe, streams[pipe]) == b"":
                        del streams[pipe]
                if ended in ready:
                    break
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # before it is reaped, so that the number is still its own
            for pipe, tape in streams.items():
                while self._take(pipe, tape):
                    pass
            process.wait()
        finally:
            os.close(ended)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _take(self, pipe: int, tape: Tape) -> bytes | None:
        """None: nothing is there now. Nothing at all: there will never be more."""
        try:
            data = os.read(pipe, CHUNK)
        except BlockingIOError:
            return None
        with self._changed:
            tape.write(data)
            self._changed.notify_all()
        return data

    # ------------------------------------------------------------------ the end

    def _watch_clock(self) -> None:
        while True:
            time.sleep(min(1.0, self._linger / 4))
            if (self._process is None or self._over) and time.monotonic() > self._leave_by:
                break
        self._leave()

    def _leave(self) -> None:
        """Nobody asks any more: give the device back."""
        import ray
        from ray.util.placement_group import get_current_placement_group, remove_placement_group

        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(ray.exceptions.RayError):
            group = get_current_placement_group()
            if group is not None:
                remove_placement_group(group)
        os._exit(0)


# What a machine has of its own. All else of the environment in which a job was started goes along with its workers.
_OF_THE_MACHINE = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR", "DISPLAY",
    "TERM", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
}  # fmt: skip


def with_device(spec: WorkerSpec, visible: str | None) -> WorkerSpec:
    """A slot whose GPU has no name that we know is the one that Ray has given to this keeper."""
    if spec.slot is None or spec.slot.uuid is not None or not visible:
        return spec
    return replace(spec, slot=replace(spec.slot, uuid=visible))


def luggage(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment goes to another machine."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _OF_THE_MACHINE and not name.startswith(("RAY_", "SSH_")) and name != KEPT_VARIABLE
    }


# What Ray tells a process of its own about itself. All else is how the cluster is to be spoken to.
_OF_A_RAY_PROCESS = {
    "RAY_JOB_ID", "RAY_NODE_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE", "RAY_LD_PRELOAD_ON_WORKERS", "RAY_WORKER_ID",
}  # fmt: skip


def node_environment(
    here: Mapping[str, str], given: Mapping[str, str], visible: str | None = None, *, driver: bool = False
) -> dict[str, str]:
    """The node's own variables, and what was sent along. Without Ray's, unless the process is to speak to Ray."""
    own = {
        name: value
        for name, value in here.items()
        if not name.startswith("RAY_") or (driver and name not in _OF_A_RAY_PROCESS)
    }
    shown = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return {**own, **given, **shown}
