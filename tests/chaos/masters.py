"""A job whose master is a process of its own, so that it too can be killed; the next one attaches to the job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from easyscale.backends import apart
from easyscale.client import Address, JobClient
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.master import attach, run_elastic
from easyscale.master.progress import Screen
from easyscale.master.registry import JobFolder
from easyscale.master.supervisor import Job, Outcome
from elasticity import ForkedLauncher


class Launcher(ForkedLauncher):
    """Finds workers that another process has forked."""

    def __init__(self, train: Callable[[], Any]) -> None:
        super().__init__(train, surround=lambda spec: _close_sockets())

    def attach(self, pid: int, started: str) -> apart.ApartWorker | None:
        return apart.attach(pid, started)


class Masters:
    """One job in `folder`, with one master at a time."""

    def __init__(self, train: Callable[[], Any], split: tuple[int, ...], limits: Limits, folder: Path, **spec: Any):
        self._train, self._limits = train, limits
        self._report, self._screen = folder / "report.json", folder / "screen"
        self._job = Job(
            target=Target("train"),
            schedule=Schedule(((0, Plan(split)),)),
            template=WorkerSpec(ests=sum(split), device="cpu", **spec),
        )
        self.folder = JobFolder.create("chaos", ("test",), sum(split))
        self.client = JobClient(self.folder.id, self._address)
        self._pid = self._fork(self._begin)

    def _address(self) -> Address | None:
        master, record = self.folder.master(), self.folder.record()
        if master is None or record is None:
            return None
        return Address(host=master.host, port=master.port, token=record.token)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def again(self) -> None:
        self._pid = self._fork(lambda screen: attach(self.folder, Launcher(self._train), screen))

    def ended(self) -> bool:
        """The master's process is over, or about to be."""
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self, seconds: float) -> int:
        """The job's exit code."""
        deadline = time.monotonic() + seconds
        while not self.ended():
            assert time.monotonic() < deadline, f"the job has not ended in {seconds:g} s\n{self.shown()}"
            time.sleep(0.05)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def end(self) -> None:
        """Nothing of it is left, whatever happened."""
        if self._still_there():
            self.kill()
        for worker in self.folder.live_workers():
            os.killpg(worker.pid, signal.SIGKILL)

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self._report.read_text())
        return report

    def shown(self) -> str:
        """What all masters wrote to the screen."""
        return self._screen.read_text() if self._screen.exists() else ""

    def _still_there(self) -> bool:
        try:
            return not self.ended()
        except ChildProcessError:  # reaped
            return False

    def _begin(self, screen: Screen) -> Outcome:
        outputs = Outputs(report=self._report)
        return run_elastic(self._job, Launcher(self._train), screen, outputs, self.folder, self._limits)

    def _fork(self, become: Callable[[Screen], Outcome]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 99
        try:
            with self._screen.open("a", buffering=1) as screen:
                try:
                    code = become(Screen(screen, screen, color=False)).exit_code
                except BaseException:
                    traceback.print_exc(file=screen)
        finally:
            os._exit(code)


def _close_sockets() -> None:
    """Those of the master: a worker that was forked from it must not keep them open when it is dead."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.close(int(name))
