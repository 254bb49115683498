"""Masters in processes of their own: in the background (`--detach`), or under a front that starts them again.

The command line of `run` is given to the new process as it is, with the role that it has to play in front of it:
`--internal front:ID` or `--internal master:ID`, where ID names the folder of a job that is already registered.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from easyscale.core.errors import EasyScaleError

if TYPE_CHECKING:
    import subprocess

    from easyscale.master.registry import JobFolder

Role = Literal["front", "master"]
COMMAND = (sys.executable, "-m", "easyscale")
POLL_SECONDS = 0.1
# A master that dies so soon after its start, so often in a row, will die again: it is not started once more.
SHORT_LIFE = 5.0
SHORT_LIVES = 3


def run_as(role: Role, folder: JobFolder, argv: Sequence[str]) -> tuple[str, ...]:
    return (*COMMAND, "run", "--internal", f"{role}:{folder.id}", *argv)


def arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """What the user wrote after `easyscale run`, without a role that was put in front of it."""
    own = tuple(argv[2:])
    return own[2:] if own[:1] == ("--internal",) else own


def role_of(internal: str | None) -> tuple[Role | None, str]:
    """The role and the job's id; no role: the command of a user."""
    if internal is None:
        return None, ""
    role, _, job = internal.partition(":")
    if role == "front":
        return "front", job
    if role == "master":
        return "master", job
    raise EasyScaleError(
        f"--internal {internal} is unknown.", "easyscale gives it to processes of its own.", "leave it out."
    )


def detach(folder: JobFolder, command: Sequence[str]) -> int:
    """Start the job in a session of its own; return when its master listens, or with its exit code if it ended."""
    import subprocess

    log = folder.path / "logs" / "master.log"
    log.touch(mode=0o600)
    with log.open("r+b") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        # The folder is removed if the job is refused, the file stays readable.
        while folder.master() is None and folder.result() is None:
            if process.poll() is not None:
                out.seek(0)
                sys.stderr.write(out.read().decode(errors="replace"))
                return _exit_code(process.returncode)
            time.sleep(POLL_SECONDS)
    process.returncode = 0  # it is on its own now: nobody waits for it here
    print(folder.id)
    return 0


class Front:
    """Runs a job's master as a child. If that dies while workers live, another one is attached to them.

    Signals that ask the job to stop are passed on. The child has a process group of its own, so that Ctrl-C in a
    terminal does not reach it twice.
    """

    def __init__(self, folder: JobFolder, first: Sequence[str], again: Sequence[str]) -> None:
        from easyscale.master.interrupts import Interrupts

        self._folder, self._first, self._again = folder, first, again
        self._interrupts = Interrupts()
        self._passed_on = 0

    def run(self) -> int:
        command, short_lives = self._first, 0
        with self._interrupts:
            while True:
                began = time.monotonic()
                code = self._run_master(command, attached=command is self._again)
                result = self._folder.result()
                if result is not None:
                    return result.exit_code
                if not self._folder.live_workers():
                    return _exit_code(code)
                short_lives = short_lives + 1 if time.monotonic() - began < SHORT_LIFE else 0
                if short_lives == SHORT_LIVES:
                    self._give_up()
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                print(f"The master of {self._folder.id} {how}; another one takes over.", file=sys.stderr)
                command = self._again
                self._passed_on = 0  # the new one has not heard of a wish to stop

    def _run_master(self, command: Sequence[str], *, attached: bool) -> int:
        import subprocess

        process = subprocess.Popen(command, process_group=0)
        try:
            while (code := self._poll(process)) is None:
                # Before it listens, an attached master would die of the signal instead of heeding it.
                if not attached or self._is_master(process.pid):
                    self._pass_on(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return code

    def _poll(self, process: subprocess.Popen[bytes]) -> int | None:
        import subprocess

        try:
            return process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _is_master(self, pid: int) -> bool:
        master = self._folder.master()
        return master is not None and master.pid == pid

    def _pass_on(self, process: subprocess.Popen[bytes]) -> None:
        first = self._interrupts.first
        while first is not None and self._passed_on < self._interrupts.count:
            self._passed_on += 1
            process.send_signal(first)

    def _give_up(self) -> None:
        raise EasyScaleError(
            f"The master of {self._folder.id} died {SHORT_LIVES} times in a row within {SHORT_LIFE:g} seconds.",
            "what ends it is not an accident.",
            f"see its messages above; `easyscale attach {self._folder.id}` tries once more while workers live.",
        )


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code
