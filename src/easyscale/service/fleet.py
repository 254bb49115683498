"""The masters of this machine: one process a run, apart from the service, found again through its folder.

    <data>/runs/easyscale/jobs/<job>.<run>/     the folder of a run (master/registry.py)
    <data>/jobs/<job>/metrics/                  what the job logged, over all its runs
    <data>/jobs/<job>/tmp/                      its TMPDIR
    <data>/jobs/<job>/report-<run>.json
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from easyscale.backends import lives
from easyscale.client import Address, JobClient, UnreachableError
from easyscale.core.cluster import Devices, Slot
from easyscale.core.errors import EasyScaleError
from easyscale.master.registry import JobFolder, JobResult, TakenError
from easyscale.service.devices import Found
from easyscale.service.ports import Launch, Sight

# Of the service's environment, what a job's processes get: what programs need to run at all, and nothing secret.
KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH",
    "SSL_CERT_FILE", "CUDA_HOME", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR",
)  # fmt: skip
KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_")
STARTING = 20.0  # seconds after which a folder without a master counts as one whose master never began
ANSWER_SECONDS = 5.0
STOPPED, CANNOT_START, GONE = 128 + 15, 127, 128 + 9
# What passes: the start is tried again. Anything else (no such folder, no such interpreter) would be the same again.
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)


class LocalFleet:
    """A `Fleet` of processes of this machine."""

    name = "local"

    def __init__(self, data: Path, environment: Mapping[str, str] | None = None) -> None:
        self._data = data
        self._environment = dict(os.environ if environment is None else environment)
        self._runtime = data / "runs"
        for folder in (self._runtime, self._runtime / "easyscale", self._jobs, data / "jobs"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # by folder: the masters that this process started
        self._lock = threading.Lock()

    @property
    def _jobs(self) -> Path:
        return self._runtime / "easyscale" / "jobs"

    def folder(self, job: str, run: int) -> Path:
        """Of a run; run 0: of the job itself."""
        return self._jobs / f"{job}.{run}" if run else self._data / "jobs" / job

    # ------------------------------------------------------------------------------------ acting

    def launch(self, launch: Launch) -> None:
        path = self.folder(launch.job, launch.run)
        folder = JobFolder(path)
        if not path.exists():
            slots = [asdict(slot) for slot in launch.slots]
            JobFolder.create(
                launch.job, ("easyscale", *self._command(launch)[3:]), launch.spec.ests,
                {"slots": slots, "kinds": list(launch.kinds), "env": launch.spec.env},
                id=path.name, jobs=self._jobs, cwd=self._workdir(launch),
            )  # fmt: skip
        elif not _without_master(folder):
            return
        try:
            self._begin(launch, path)
        except OSError as problem:
            if problem.errno in PASSING:
                raise
            where = f": {problem.filename}" if problem.filename else ""
            error = EasyScaleError(
                f"The job {launch.job} cannot be started.",
                f"{problem.strerror or problem}{where}.",
                "see to its working directory, its checkpoint folder and its interpreter, and submit it again.",
            )
            _close(folder, CANNOT_START, str(error))

    def _begin(self, launch: Launch, path: Path) -> None:
        own, workdir = self.folder(launch.job, 0), self._workdir(launch)
        for folder in (own, own / "tmp", launch.checkpoint_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if workdir != launch.workdir and not workdir.exists():
            part = Path(tempfile.mkdtemp(prefix=".part-", dir=own))
            shutil.copytree(launch.workdir, part, symlinks=True, dirs_exist_ok=True)
            part.rename(workdir)
        self._spawn(path, self._command(launch), workdir, self._surroundings(launch.spec.env, own))

    def _workdir(self, launch: Launch) -> Path:
        """A job has a copy of its own of a snapshot, which others may use as well."""
        return launch.workdir if launch.spec.snapshot is None else self.folder(launch.job, 0) / "work"

    def place(self, job: str, run: int, slots: Sequence[Slot]) -> None:
        self._client(job, run).scale(slots=tuple(slots))

    def stop(self, job: str, run: int, *, now: bool = False) -> None:
        path = self.folder(job, run)
        folder = JobFolder(path)
        if not path.exists():
            JobFolder.create(job, (), 1, {}, id=path.name, jobs=self._jobs)
        if folder.master() is None and _close(folder, STOPPED, None):
            return
        try:
            self._client(job, run).stop(now=now)
        except UnreachableError:
            if not now or not _kill(folder):
                raise

    def adopt(self, job: str, run: int) -> None:
        path = self.folder(job, run)
        command = [sys.executable, "-m", "easyscale", "attach", path.name, "--quiet"]
        record = JobFolder(path).record()
        if record is None:
            raise EasyScaleError(f"The run {path.name} has no record.", "its folder is damaged.", "cancel the job.")
        wanted = record.settings.get("env", {})
        self._spawn(path, command, Path(record.cwd), self._surroundings(wanted, self.folder(job, 0)))

    def stock(self) -> list[Found] | None:
        """None: its devices do not come and go by themselves."""
        return None

    def want(self, held: Devices, more: Devices) -> None:
        """Nobody here could bring more."""

    def close(self) -> None:
        """The masters go on. Those that ended are collected, the others become the init process's."""
        for child in self._children.values():
            if child.poll() is None:
                child.returncode = 0  # nobody waits for it here any more

    # ------------------------------------------------------------------------------------ looking

    def look(self, job: str, run: int, events: int = 50) -> Sight:
        path = self.folder(job, run)
        code = self._ended(path.name)
        died = code is not None
        if not path.exists():
            return Sight(state="gone", error="Its folder was removed.") if died else Sight(state="absent")
        folder = JobFolder(path)
        result = folder.result()
        if result is not None:
            return _over(result)
        if folder.master() is None and self._knows(path.name) and not died:
            return Sight(state="starting")
        state = folder.state()
        if state == "masterless":
            return Sight(state="masterless")
        if state == "dead" or (folder.master() is None and died):
            return _gone(folder, f"Its master ended with code {code}." if died else None)
        if folder.master() is None:
            return Sight(state="absent" if _without_master(folder) else "starting")
        try:
            return Sight(state="running", status=self._client(job, run).status(events))
        except UnreachableError:
            result = folder.result()
            return _over(result) if result is not None else Sight(state="starting")

    def _client(self, job: str, run: int) -> JobClient:
        folder = JobFolder(self.folder(job, run))

        def find() -> Address | None:
            record, master = folder.record(), folder.master()
            if record is None or master is None:
                return None
            return Address(host=master.host, port=master.port, token=record.token)

        return JobClient(job, find, ANSWER_SECONDS)

    # ------------------------------------------------------------------------------------ processes

    def _knows(self, name: str) -> bool:
        """Whether this process has started a master of this run."""
        return name in self._children

    def _ended(self, name: str) -> int | None:
        """The exit code of a master that this process started; None: it runs, or another one started it."""
        child = self._children.get(name)
        return child.poll() if child is not None else None

    def _keeps(self, name: str) -> bool:
        """A variable of the service's own environment that jobs get."""
        return name in KEPT or name.startswith(KEPT_PREFIXES)

    def _flags(self, launch: Launch) -> list[str]:
        return ["--quiet", *(("--rebalance",) if launch.spec.determinism != "D0" else ())]

    def _command(self, launch: Launch) -> list[str]:
        spec, limits, own = launch.spec, launch.spec.limits, self.folder(launch.job, 0)
        given = {
            "--internal": f"master:{launch.job}.{launch.run}", "--ests": spec.ests, "--name": launch.job,
            "--workers": f"1:{spec.ests}", "--threads": spec.threads, "--determinism": spec.determinism,
            "--checkpoint-dir": launch.checkpoint_dir, "--resume": "auto", "--metrics-dir": own / "metrics",
            "--report": own / f"report-{launch.run}.json", "--checkpoint-every": spec.checkpoint_every,
            "--checkpoint-seconds": spec.checkpoint_seconds, "--max-steps": spec.max_steps,
            "--log-limit": limits.log_mb, "--process-limit": limits.processes, "--memory-limit": limits.memory_gb,
            "--file-limit": limits.open_files,
        }  # fmt: skip
        flags = [part for flag, value in given.items() if value is not None for part in (flag, str(value))]
        what = ["--module", spec.module] if spec.module is not None else [spec.script or ""]
        python = spec.python or sys.executable
        return [python, "-m", "easyscale", "run", *flags, *self._flags(launch), *what, *spec.args]

    def _surroundings(self, wanted: Mapping[str, str], own: Path) -> dict[str, str]:
        kept = {name: value for name, value in self._environment.items() if self._keeps(name)}
        return {**kept, **wanted, "TMPDIR": str(own / "tmp"), "XDG_RUNTIME_DIR": str(self._runtime)}

    def _spawn(self, folder: Path, command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        with (folder / "logs" / "master.log").open("ab") as out:
            child = subprocess.Popen(
                command, cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        with self._lock:
            for name in [name for name, one in self._children.items() if one.poll() is not None]:
                if JobFolder(self._jobs / name).result() is not None:  # others are looked at first
                    del self._children[name]
            self._children[folder.name] = child


def _over(result: JobResult) -> Sight:
    return Sight(
        state="ended", exit_code=result.exit_code, steps=result.steps, fingerprint=result.fingerprint,
        error=result.error,
    )  # fmt: skip


def _without_master(folder: JobFolder) -> bool:
    """A folder whose master never began, and will not: whoever made it was killed before it started one."""
    if folder.master() is not None or folder.journal.exists() or folder.result() is not None:
        return False
    record = folder.record()
    if record is None or time.time() - record.started < STARTING:
        return False
    try:
        with folder.claim():
            return True
    except TakenError:
        return False


def _close(folder: JobFolder, exit_code: int, error: str | None) -> bool:
    """No master will ever begin this run: one that comes late sees that it has ended. False: there is one."""
    try:
        with folder.claim():
            folder.write_result(JobResult(exit_code=exit_code, error=error))
    except TakenError:
        return folder.result() is not None
    return True


def _gone(folder: JobFolder, otherwise: str | None) -> Sight:
    """Nobody lives. It is closed, so that nobody of it lives again while the next run does."""
    words = _last_words(folder.path) or otherwise
    return Sight(state="gone", error=words) if _close(folder, GONE, words) else Sight(state="starting")


def _kill(folder: JobFolder) -> bool:
    """A master that does not answer, and its workers. False: there was nobody."""
    found = [one for one in (folder.master(), *folder.workers()) if one and lives.is_alive(one.pid, one.started)]
    for one in found:
        with contextlib.suppress(OSError):
            lives.kill(one.pid, one.started)
    return bool(found)


def _last_words(path: Path) -> str | None:
    """What a master that died said last."""
    try:
        text = (path / "logs" / "master.log").read_bytes()[-2000:].decode(errors="replace").strip()
    except OSError:
        return None
    return text or None
