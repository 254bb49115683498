"""Workers as processes of this machine.

Each runs in a session of its own, so that Ctrl-C in a terminal reaches only the launcher, and dies
when the thread that started it dies (`leash`): start workers from the main thread. What is left of
its process group (data loading processes) is killed when the worker itself has ended. Workers of an elastic job are
started `apart`: they outlive the launcher, and the next one finds them.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from easyscale.backends import bounds, leash
from easyscale.backends.apart import ApartWorker, attach, start_apart
from easyscale.core.spec import WORKER_VARIABLE, Target, WorkerSpec

WORKER_COMMAND = (sys.executable, "-m", "easyscale.runtime.worker")


class LocalLauncher:
    """Starts workers. `command` takes a target behind it; its spec is in the environment that `surround` makes."""

    def __init__(
        self,
        environment: Mapping[str, str],
        command: Sequence[str] = WORKER_COMMAND,
        surround: Callable[[Mapping[str, str], WorkerSpec], dict[str, str]] | None = None,
    ) -> None:
        self._environment, self._command = dict(environment), tuple(command)
        self._surround = surround or worker_environment

    def start(self, spec: WorkerSpec, target: Target) -> LocalWorker:
        """Start one worker; its spec gets the number of the pipe on which it reports."""
        events, reports = os.pipe()
        command = bounded(spec, (*self._command, *target.command()))
        try:
            process = subprocess.Popen(
                (sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *command),
                env=self._surround(self._environment, replace(spec, events_fd=reports)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(reports,),
                start_new_session=True,
            )
        except BaseException:
            os.close(events)
            raise
        finally:
            os.close(reports)
        return LocalWorker(process, events)

    def start_apart(self, spec: WorkerSpec, target: Target, out: Path, err: Path) -> ApartWorker:
        """Start one worker that outlives this process and writes to two files."""
        environment = self._surround(self._environment, replace(spec, events_fd=None))
        return start_apart(bounded(spec, (*self._command, *target.command())), environment, out, err)

    def attach(self, pid: int, started: str) -> ApartWorker | None:
        """A worker that an earlier master started; None: it has ended."""
        return attach(pid, started)


class LocalWorker:
    """One worker process: its three pipes, its life, its end."""

    def __init__(self, process: subprocess.Popen[bytes], events: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.pid = process.pid
        self.events, self.stdout, self.stderr = events, process.stdout.fileno(), process.stderr.fileno()
        # Readable once the process has ended; where there is no such thing, `poll` has to be called in turn.
        self.ended = os.pidfd_open(process.pid) if sys.platform == "linux" else None
        for pipe in (self.events, self.stdout, self.stderr):
            os.set_blocking(pipe, False)

    def poll(self) -> int | None:
        """The exit code (-n: ended by signal n), or None while it runs."""
        if self._process.returncode is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._kill_group()  # before the process is reaped, so that the number is still ours
                self._process.wait()
        return self._process.returncode

    def signal(self, number: int) -> None:
        """To the worker alone: its data loading processes stay, it may need them for its last step."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        if self.poll() is None:
            self._kill_group()

    def stop(self, grace: float) -> int:
        """SIGTERM, then SIGKILL to all that is left after `grace` seconds. Returns the exit code."""
        self.signal(signal.SIGTERM)
        code = self._wait(grace)
        if code is None:
            self.kill()
            code = self._wait(None)
        assert code is not None
        return code

    def close(self) -> None:
        """Give the pipes back. The worker has ended."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()
        os.close(self.events)
        if self.ended is not None:
            os.close(self.ended)

    def _wait(self, seconds: float | None) -> int | None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.poll() is None:
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return None
            watched, longest = ([self.ended], left) if self.ended is not None else ([], min(left, 0.02))
            select.select(watched, [], [], longest)
        return self.poll()

    def _kill_group(self) -> None:
        # macOS says "permission" of a group that has only zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def worker_environment(environment: Mapping[str, str], spec: WorkerSpec) -> dict[str, str]:
    """What a worker finds: its spec, and the settings that libraries read only once, at their import."""
    spec, visible = placed(spec)
    threads = str(spec.threads)
    defaults = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS has no deterministic products
        "PYTHONHASHSEED": "0",  # the order of a set of strings must not differ between processes
    }
    return {
        **defaults,
        **environment,
        **visible,
        WORKER_VARIABLE: spec.to_json(),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
    }


def bounded(spec: WorkerSpec, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command, behind the limits that the operating system is to hold it to."""
    limits = spec.bounds
    if limits is None:
        return command
    memory = None if spec.slot is not None and spec.slot.uuid is not None else limits.memory
    given = ("-" if most is None else str(most) for most in (memory, limits.files, limits.processes))
    return (sys.executable, "-I", "-S", bounds.__file__, *given, *command)


def placed(spec: WorkerSpec) -> tuple[WorkerSpec, dict[str, str]]:
    """A worker with a device of its own sees that one alone: its spec, and what CUDA reads."""
    if spec.slot is None:
        return spec, {}
    device = "cpu" if spec.slot.uuid is None else "cuda"
    return replace(spec, device=device), {"CUDA_VISIBLE_DEVICES": spec.slot.uuid or ""}


def plain_environment(environment: Mapping[str, str], spec: WorkerSpec) -> dict[str, str]:
    """For a script that is to run as if python had started it: nothing but the spec."""
    return {**environment, WORKER_VARIABLE: spec.to_json(), "PYTHONUNBUFFERED": "1"}


def cores() -> int:
    """The cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """The NVIDIA GPUs that a worker would see, counted without loading CUDA."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    present = sum(1 for entry in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name))
    if visible is None:
        return present
    named = 0
    for name in visible.split(","):  # CUDA itself stops at the first name that it cannot use
        if not name.strip() or name.strip().startswith("-"):
            break
        named += 1
    return min(named, present)
