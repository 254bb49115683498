"""What the master needs of a back end, and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from easyscale.core.spec import Target, WorkerSpec


class WorkerProcess(Protocol):
    """One worker: its three pipes (file descriptors that do not block), its life, its end."""

    @property
    def pid(self) -> int: ...
    @property
    def events(self) -> int: ...
    @property
    def stdout(self) -> int: ...
    @property
    def stderr(self) -> int: ...
    @property
    def ended(self) -> int | None:
        """Readable once the process has ended; None: `poll` has to be called in turn."""

    def poll(self) -> int | None:
        """The exit code (-n: ended by signal n), or None while it runs."""

    def signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    def stop(self, grace: float) -> int:
        """SIGTERM, then SIGKILL to all that is left after `grace` seconds. Returns the exit code."""

    def close(self) -> None:
        """Give the pipes back. The worker has ended."""


class ApartProcess(Protocol):
    """A worker that outlives whoever started it: no pipes, only its life and its end."""

    code: int | None  # once it is gone (-n: ended by signal n); None: nobody can tell, it was not our child

    @property
    def pid(self) -> int:
        """0: it is not a process of this machine."""

    @property
    def started(self) -> str:
        """When it began, as a word: a later process with its pid has another one. Elsewhere: where it is found."""

    @property
    def ended(self) -> int | None:
        """Readable once the process has ended; None: `gone` has to be called in turn."""

    def gone(self) -> bool: ...
    def signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class ElasticLauncher(Protocol):
    """Starts workers of an elastic job, and finds those that an earlier master started."""

    def start_apart(self, spec: WorkerSpec, target: Target, out: Path, err: Path) -> ApartProcess: ...
    def attach(self, pid: int, started: str) -> ApartProcess | None:
        """None: it has ended."""


class Launcher(Protocol):
    """Starts one worker at a time; no worker outlives the process that started it."""

    def start(self, spec: WorkerSpec, target: Target) -> WorkerProcess: ...
