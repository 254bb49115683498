"""Runs a training function under the real master, its workers forked from this process, with faults at chosen places.

The master is `run_elastic`, the workers are real processes with the real runtime; only their start is short, because
torch is imported already. A `Fault` is put into a worker from outside, by wrapping what the runtime calls there.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # once here, not once in each worker

from easyscale.backends.apart import ApartWorker, process_start
from easyscale.core.cluster import Slot
from easyscale.core.plan import Plan, Schedule
from easyscale.core.requests import AskScale, Reply, Request, pack_request, unpack_reply
from easyscale.core.spec import WORKER_VARIABLE, Target, WorkerSpec
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.master import run_elastic
from easyscale.master.progress import Screen
from easyscale.master.registry import JobFolder
from easyscale.master.state import JobState
from easyscale.master.supervisor import Job

Train = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to `worker` when, in global step `step`, it comes to `place` for the `nth` time.

    A place is `module:Class.method` of the runtime, or `module:function`; `after`: when the call has returned.
    """

    worker: int
    step: int
    place: str
    nth: int = 1
    after: bool = False
    action: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL)


class ForkedLauncher:
    """Behind the port of `backends.local`, but each worker is a fork of this process."""

    def __init__(
        self, train: Train, faults: Sequence[Fault] = (), surround: Callable[[WorkerSpec], None] | None = None
    ) -> None:
        self._train, self._faults, self._surround = train, faults, surround
        self.workers: dict[int, ApartWorker] = {}

    def start_apart(self, spec: WorkerSpec, target: Target, out: Path, err: Path) -> ApartWorker:
        pid = os.fork()
        if pid == 0:
            self._become_worker(spec, out, err)
        worker = _Child(pid, process_start(pid) or "", None, os.pidfd_open(pid))
        self.workers[spec.worker] = worker
        return worker

    def attach(self, pid: int, started: str) -> ApartWorker | None:
        return next((worker for worker in self.workers.values() if worker.pid == pid), None)

    def _become_worker(self, spec: WorkerSpec, out: Path, err: Path) -> None:
        code = 1
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for path, stream in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), stream)
            os.environ[WORKER_VARIABLE] = spec.to_json()
            torch.set_num_threads(1)
            if self._surround is not None:
                self._surround(spec)
            for fault in self._faults:
                if fault.worker == spec.worker:
                    _plant(fault)
            from easyscale.runtime import worker

            worker.run_target = lambda arguments: self._train()  # type: ignore[assignment]
            code = worker.main([])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)


class _Child(ApartWorker):
    """A fork of ours: its exit code is known, though no `Popen` started it."""

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def gone(self) -> bool:
        if not self._gone and self._has_ended():
            self._kill_group()
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._gone = True
        return self._gone

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Run:
    state: JobState
    exit_code: int
    text: str  # what the screen showed
    error: str | None

    @property
    def fingerprint(self) -> str | None:
        return self.state.fingerprint

    def happened(self, what: str) -> list[str]:
        return [event.text for event in self.state.events if event.what == what]


def run_with_master(
    train: Train,
    plan: Sequence[int] | Schedule,
    *,
    faults: Sequence[Fault] = (),
    limits: Limits | None = None,
    launcher: ForkedLauncher | None = None,
    outputs: Outputs | None = None,
    slots: tuple[Slot, ...] | None = None,
    **spec: Any,
) -> Run:
    """To its end. The schedule may name later plans; wishes come from the script itself (`ask`)."""
    schedule = plan if isinstance(plan, Schedule) else Schedule(((0, Plan(tuple(plan))),))
    ests = schedule.entries[0][1].ests
    with tempfile.TemporaryDirectory() as home:
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.chmod(home, 0o700)
        os.environ["XDG_RUNTIME_DIR"] = home
        try:
            template = WorkerSpec(ests=ests, **{"device": "cpu", "timeout": 60.0, **spec})
            screen = io.StringIO()
            outcome = run_elastic(
                Job(target=Target("train"), schedule=schedule, template=template),
                launcher or ForkedLauncher(train, faults),
                Screen(screen, screen, color=False),
                outputs or Outputs(),
                JobFolder.create("job", ("test",), ests),
                limits,
                slots=slots,
            )
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before
    return Run(state=outcome.state, exit_code=outcome.exit_code, text=screen.getvalue(), error=outcome.error)


# ---------------------------------------------------------------------------------------- inside a worker


def spec_here() -> WorkerSpec:
    return WorkerSpec.from_json(os.environ[WORKER_VARIABLE])


def step_here() -> int:
    """Completed global steps of this worker; -1 before it has joined."""
    from easyscale.runtime import api

    engine = api.current_engine()
    return -1 if engine is None or engine.model is None else engine.step


def ask(request: Request) -> Reply:
    """A command to this worker's own master, as `easyscale scale` sends it."""
    control = spec_here().control
    assert control is not None
    with socket.create_connection((control.host, control.port), timeout=10) as connection:
        connection.sendall(pack_request(request, control.token))
        heard = b""
        while not heard.endswith(b"\n"):
            heard += connection.recv(1 << 16)
    reply = unpack_reply(heard, control.token)
    assert reply is not None
    return reply


def wish(**scale: Any) -> Reply:
    return ask(AskScale(**scale))


def _plant(fault: Fault) -> None:
    import importlib

    module, _, path = fault.place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    seen = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        hit = step_here() == fault.step
        seen += hit
        if hit and seen == fault.nth and not fault.after:
            fault.action()
        result = original(*args, **kwargs)
        if hit and seen == fault.nth and fault.after:
            fault.action()
        return result

    setattr(owner, name, wrapped)


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
