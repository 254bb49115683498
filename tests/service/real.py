"""A real service for tests: `easyscale up` in a process of its own, killed and started again as a test likes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from easyscale.service.client import ServiceClient
from easyscale.service.models import JobSpec, JobView

SRC = Path(__file__).parents[2] / "src"
START_SECONDS = 120.0


class Service:
    """`folder`: of this test alone."""

    def __init__(
        self, folder: Path, devices: str | None = "v100:2,p100:2", *flags: str, policy: str = "easyscale"
    ) -> None:
        """`devices` None: those that are found."""
        self.folder, self.data = folder, folder / "data"
        self._flags = (*(("--devices", devices) if devices is not None else ()), "--policy", policy, *flags)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._client: ServiceClient | None = None
        self.environment = {
            **os.environ, "PYTHONPATH": str(SRC), "XDG_CONFIG_HOME": str(folder / "config"),
            "EASYSCALE_DATA": str(self.data), "SECRET_OF_THE_SERVICE": "hunter2",
        }  # fmt: skip
        self.start()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # ------------------------------------------------------------------------------------ life

    def start(self) -> None:
        log = (self.folder / "up.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "easyscale", "up", "--port", str(self._port), *self._flags),
                env=self.environment, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        until(self._is_up, START_SECONDS, self.said)
        self._port = int(self.connection["url"].rpartition(":")[2])

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.said()
        try:
            here = json.loads((self.data / "service.json").read_text())
            return here["pid"] == self._process.pid and self.client.ready()
        except (OSError, ValueError):
            return False

    def kill(self) -> None:
        """SIGKILL: nothing is tidied up."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def end(self) -> None:
        """No process of this service or of its jobs is left behind."""
        if self._client is not None:
            self._client.close()
        if self._process is not None and self._process.poll() is None:
            self.kill()
        for pid in self.pids():
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def pids(self) -> list[int]:
        """Leaders of the sessions of all masters and workers."""
        found = []
        for path in self.data.glob("runs/easyscale/jobs/*/**/*.json"):
            try:
                raw = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            if isinstance(raw, dict) and "pid" in raw and Path(f"/proc/{raw['pid']}").exists():
                found.append(int(raw["pid"]))
        return found

    # ------------------------------------------------------------------------------------ use

    @property
    def connection(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "config" / "easyscale" / "connection.json").read_text())
        return found

    @property
    def client(self) -> ServiceClient:
        """Of its first user, an admin."""
        if self._client is None:
            self._client = ServiceClient(self.connection["url"], self.connection["token"])
        return self._client

    def said(self) -> str:
        return (self.folder / "up.log").read_text()[-4000:]

    def submit(self, script: Path, args: list[str] | None = None, **more: Any) -> str:
        spec = JobSpec(name=more.pop("name", script.stem), script=script.name, workdir=str(script.parent),
                       args=args or [], **more)  # fmt: skip
        (job,) = self.client.submit(spec).jobs
        return job

    def until(self, job: str, true: Callable[[JobView], bool], seconds: float = 120.0) -> JobView:
        client = self.client
        view = client.job(job)
        ends = time.monotonic() + seconds
        while not true(view):
            assert time.monotonic() < ends, f"{job} is {view.state} at step {view.step}: {view}\n{self.said()}"
            time.sleep(0.2)
            view = client.job(job)
        return view

    def finished(self, job: str, seconds: float = 240.0) -> JobView:
        view = self.until(job, lambda view: view.ended is not None, seconds)
        assert view.state == "finished", f"{view.error}\n{self.logs(job)}\n{self.said()}"
        return view

    def logs(self, job: str) -> str:
        files = [*self.data.glob(f"runs/easyscale/jobs/{job}.*/logs/*")]
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-2000:]}" for file in files)

    def run(self, *command: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """A command of the CLI, as a user types it."""
        done = subprocess.run(
            (sys.executable, "-m", "easyscale", *command), env=self.environment, cwd=self.folder, text=True,
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        assert not ok or done.returncode == 0, done.stdout + done.stderr
        return done


def until(true: Callable[[], bool], seconds: float, otherwise: Callable[[], str] = lambda: "") -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, otherwise()
        time.sleep(0.1)


def stock(script: Path, ests: int, args: list[str], environment: Mapping[str, str]) -> str:
    """The fingerprint of the same script under stock DDP."""
    report = script.parent / f"stock-{ests}-{abs(hash(tuple(args)))}.json"
    subprocess.run(
        (sys.executable, "-m", "easyscale", "run", "--engine", "ddp", "--ests", str(ests), "--quiet", "--report",
         str(report), str(script), *args),
        env=dict(environment), cwd=script.parent, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    found: str = json.loads(report.read_text())["fingerprint"]
    return found
