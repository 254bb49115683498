"""Worker processes that outlive whoever started them: they write to files, and are watched by their pid alone.

A pid may be used again after its process has ended, so it always goes with the process's start time, and signals go
through a descriptor of the process itself where the system has one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class ApartWorker:
    """One worker. `process`: it is our child, so its exit code can be known; else only that it ended."""

    def __init__(self, pid: int, started: str, process: subprocess.Popen[bytes] | None, ended: int | None) -> None:
        self.pid, self.started, self._process = pid, started, process
        self.ended = ended
        self._gone = False
        self.code: int | None = None

    def gone(self) -> bool:
        """Whether it has ended; what is left of its process group is then killed."""
        if not self._gone and self._has_ended():
            self._kill_group()  # before a child is reaped, so that the number is still its own
            if self._process is not None:
                self.code = self._process.wait()
            self._gone = True
        return self._gone

    def signal(self, number: int) -> None:
        """To the worker alone: its data loading processes stay, it may need them for its last step."""
        if not self.gone():
            with contextlib.suppress(ProcessLookupError):
                if self.ended is not None:
                    signal.pidfd_send_signal(self.ended, number)
                else:
                    os.kill(self.pid, number)

    def kill(self) -> None:
        if not self.gone():
            self._kill_group()

    def close(self) -> None:
        if self.ended is not None:
            os.close(self.ended)
            self.ended = None

    def _has_ended(self) -> bool:
        if self._process is not None:
            if self._process.returncode is not None:
                return True
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if self.ended is not None:
            return bool(select.select([self.ended], [], [], 0)[0])
        return process_start(self.pid) != self.started

    def _kill_group(self) -> None:
        """Of a process that is not our child and is gone, the number may belong to another by now."""
        if self._process is None and process_start(self.pid) not in (None, self.started):
            return
        # macOS says "permission" of a group that has only zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def start_apart(command: Sequence[str], environment: Mapping[str, str], out: Path, err: Path) -> ApartWorker:
    """A process in a session of its own, whose output goes to the ends of two files."""
    with contextlib.ExitStack() as files:
        streams = []
        for path in (out, err):
            stream = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            files.callback(os.close, stream)
            streams.append(stream)
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            start_new_session=True,
        )
    return ApartWorker(process.pid, process_start(process.pid) or "", process, _open(process.pid))


def attach(pid: int, started: str) -> ApartWorker | None:
    """A worker that another process started. None: it has ended, whoever has its number now."""
    try:
        ended = _open(pid)
    except ProcessLookupError:
        return None
    if process_start(pid) != started:  # looked at with the descriptor in hand, so that it cannot change meanwhile
        if ended is not None:
            os.close(ended)
        return None
    return ApartWorker(pid, started, None, ended)


def process_start(pid: int) -> str | None:
    """When a process began, as a word that no later process with its pid has. None: it does not run."""
    try:
        # The name in the second field may hold anything, brackets and spaces included.
        after = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if after[0] in "ZX" else f"{after[19]}@{boot}"


def _open(pid: int) -> int | None:
    return os.pidfd_open(pid) if sys.platform == "linux" else None
