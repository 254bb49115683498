"""The jobs of this user on this machine: one folder a job, in a private directory that every command can find.

    <runtime directory>/jobs/<id>/
        job.json            what the job is; written once
        master.json         where its master listens; each master writes it anew, workers read it when they reconnect
        workers/N.json      the process of worker N, so that a job without a master can be told from a dead one
        journal.jsonl       what a master that is started again must know
        logs/worker-N.out   what worker N printed, and .err
        rendezvous-E        where the members of plan E find each other
        result.json         how it ended

Folders are 0700, files 0600. A file gets its name only when it is whole on the disk, so a reader never sees half of
one; a file that is damaged all the same counts as missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from easyscale.backends import lives
from easyscale.core.errors import UsageError
from easyscale.master.files import fold, jobs_directory, process_start, read_json, write_json

EntryState = Literal["running", "masterless", "dead", "ended"]
Stream = Literal["out", "err"]

# From its first file until its master listens, a job has no master.json; after so long there will never be one.
STARTING_SECONDS = 60.0
_LONGEST_NAME = 40
_LONGEST_ID = 100


class TakenError(UsageError):
    """The job has another master, or has ended: nothing of it may be touched."""


@dataclass(frozen=True, kw_only=True)
class Keep:
    """How long `ps` leaves the folders of jobs that ended or died."""

    # A day: whoever comes back in the morning still finds the logs of the night.
    seconds: float = 86400.0
    # Each may hold long logs, in memory on most machines.
    newest: int = 20


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """What a job is. `settings`: what its master wants to find again, in a form of its own."""

    id: str
    name: str
    command: tuple[str, ...]
    ests: int
    started: float  # wall clock, seconds since the epoch
    cwd: str
    token: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MasterRecord:
    """The process of the master, and where it listens."""

    pid: int
    started: str
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    worker: int
    pid: int
    started: str


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """How a job ended."""

    exit_code: int
    steps: int = 0
    fingerprint: str | None = None
    error: str | None = None
    ended: float = 0.0  # wall clock, seconds since the epoch


@dataclass(frozen=True)
class JobFolder:
    """One job's folder. Reading never fails on what others do to it meanwhile: what is gone reads as None."""

    path: Path

    @classmethod
    def create(
        cls,
        name: str,
        command: tuple[str, ...],
        ests: int,
        settings: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        jobs: Path | None = None,
        cwd: Path | None = None,
    ) -> JobFolder:
        """A new job with a new token, and with a new id unless this very one is wanted. Its folder appears with
        job.json in it, never without. `jobs`: among those of another runtime directory than the user's own."""
        jobs = jobs or jobs_directory()
        name = clean_name(name)
        if id is not None:
            _check_id(jobs, id)
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=jobs))  # 0700
        for part in ("logs", "workers"):
            (new / part).mkdir(mode=0o700)
        while True:
            record = JobRecord(
                id=id or f"{name}-{secrets.token_hex(2)}", name=name, command=command, ests=ests, started=time.time(),
                cwd=str(cwd or os.getcwd()), token=secrets.token_hex(16), settings=dict(settings or {}),
            )  # fmt: skip
            write_json(new / "job.json", asdict(record))
            try:
                new.rename(jobs / record.id)
            except OSError:  # that id is in use: a folder with files in it is not replaced
                if id is not None:
                    shutil.rmtree(new, ignore_errors=True)
                    _check_id(jobs, id)
                if not (jobs / record.id).exists():
                    raise
            else:
                return cls(jobs / record.id)

    @classmethod
    def open(cls, job: str) -> JobFolder:
        """The folder of a job by its whole id."""
        folder = cls(jobs_directory() / job)
        if job != Path(job).name or job.startswith(".") or folder.record() is None:
            raise UsageError(
                f"There is no job {job}.",
                "it never ran on this machine as this user, or its folder was removed.",
                "`easyscale ps --all` lists the jobs.",
            )
        return folder

    # ------------------------------------------------------------------------------------ paths

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def job_file(self) -> Path:
        return self.path / "job.json"

    @property
    def master_file(self) -> Path:
        return self.path / "master.json"

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    def log(self, worker: int, stream: Stream) -> Path:
        return self.path / "logs" / f"worker-{worker}.{stream}"

    def logs(self) -> list[tuple[int, Stream, Path]]:
        """All logs that there are, by worker."""
        found: list[tuple[int, Stream, Path]] = []
        for path in (self.path / "logs").glob("worker-*.*"):
            match = re.fullmatch(r"worker-(\d+)\.(out|err)", path.name)
            if match:
                found.append((int(match[1]), "out" if match[2] == "out" else "err", path))
        return sorted(found, key=lambda log: (log[0], log[1] == "err"))

    def rendezvous(self, epoch: int) -> Path:
        return self.path / f"rendezvous-{epoch}"

    # ------------------------------------------------------------------------------------ records

    def record(self) -> JobRecord | None:
        raw = read_json(self.job_file)
        if raw is not None and isinstance(raw.get("command"), list):
            raw["command"] = tuple(raw["command"])
        return fold(JobRecord, raw)

    def master(self) -> MasterRecord | None:
        return fold(MasterRecord, read_json(self.master_file))

    def result(self) -> JobResult | None:
        return fold(JobResult, read_json(self.result_file))

    def workers(self) -> list[WorkerRecord]:
        files = sorted((self.path / "workers").glob("*.json"), key=lambda file: (len(file.name), file.name))
        return [worker for file in files if (worker := fold(WorkerRecord, read_json(file))) is not None]

    def write_master(self, pid: int, started: str, host: str, port: int) -> None:
        """`started` comes from `files.process_start(pid)`."""
        write_json(self.master_file, asdict(MasterRecord(pid=pid, started=started, host=host, port=port)))

    def write_worker(self, worker: int, pid: int, started: str | None = None) -> None:
        """Note the process of a worker that was just started. `started`: from its launcher, else from the pid."""
        started = (process_start(pid) or "") if started is None else started
        write_json(
            self.path / "workers" / f"{worker}.json", asdict(WorkerRecord(worker=worker, pid=pid, started=started))
        )

    def forget_worker(self, worker: int) -> None:
        (self.path / "workers" / f"{worker}.json").unlink(missing_ok=True)

    def write_result(self, result: JobResult) -> None:
        write_json(self.result_file, asdict(result) | {"ended": result.ended or time.time()})

    # ------------------------------------------------------------------------------------ life

    def state(self) -> EntryState:
        if self.result() is not None:
            return "ended"
        master = self.master()
        if master is not None and lives.is_alive(master.pid, master.started):
            return "running"
        if any(lives.is_alive(worker.pid, worker.started) for worker in self.workers()):
            return "masterless"
        if master is None and self.record() is not None and self._age() < STARTING_SECONDS:
            return "running"
        return "dead"

    def live_workers(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers() if lives.is_alive(worker.pid, worker.started)]

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        """The right to be this job's master, for one process at a time. A forked process does not inherit it."""
        lock = os.open(self.path / "master.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise TakenError(
                    f"The job {self.id} has a master.",
                    "a job has one master at a time, and another process is it.",
                    f"`easyscale top` shows the job; `easyscale stop {self.id}` ends it.",
                ) from None
            if self.result() is not None:
                raise TakenError(
                    f"The job {self.id} has ended.",
                    "whoever started it has given it up, or another master has brought it to its end.",
                    "start it anew, under another id.",
                )
            yield
        finally:
            os.close(lock)

    def mark_shown(self) -> None:
        with contextlib.suppress(OSError):
            (self.path / "shown").touch(mode=0o600)

    @property
    def was_shown(self) -> bool:
        return (self.path / "shown").exists()

    def remove(self) -> None:
        """Out of the list at once, then from the disk."""
        old = self.path.with_name(f".old-{self.id}-{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(old)
            shutil.rmtree(old, ignore_errors=True)

    def _age(self) -> float:
        """Seconds since the job ended or, if it did not, since its folder was made or its master began."""
        result = self.result()
        if result is not None:
            return time.time() - result.ended
        for file in (self.master_file, self.job_file, self.path):
            with contextlib.suppress(OSError):
                return time.time() - file.stat().st_mtime
        return float("inf")


def list_jobs() -> list[JobFolder]:
    """All jobs of this user, the oldest first; also those that ended or died and were not removed yet."""
    jobs = [JobFolder(path) for path in jobs_directory().iterdir() if path.is_dir() and path.name[0] != "."]
    return sorted(jobs, key=lambda job: (record.started if (record := job.record()) else 0.0, job.id))


def tidy(keep: Keep | None = None) -> list[str]:
    """Remove the folders of ended and dead jobs that were shown and are too old or too many. Returns their ids."""
    keep = keep or Keep()
    over = [job for job in list_jobs() if job.state() in ("ended", "dead")]
    over.sort(key=JobFolder._age)
    removed = []
    for place, job in enumerate(over):
        if job.was_shown and (job._age() >= keep.seconds or place >= keep.newest):
            job.remove()
            removed.append(job.id)
    _sweep(jobs_directory())
    return removed


def clean() -> list[str]:
    """Remove the folders of all ended and dead jobs. Returns their ids."""
    for job in list_jobs():
        job.mark_shown()
    return tidy(Keep(seconds=0.0, newest=0))


def _sweep(jobs: Path) -> None:
    """What a process left half made or half removed when it was killed."""
    for path in jobs.glob(".*-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STARTING_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _check_id(jobs: Path, id: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", id) or len(id) > _LONGEST_ID:
        raise UsageError(
            f"{id!r} cannot be the id of a job.",
            "it is the name of a folder, and is typed in a shell.",
            f"use letters, digits, dots, dashes and underscores, at most {_LONGEST_ID}, none of them first but a letter"
            " or a digit.",
        )
    if (jobs / id).exists():
        raise UsageError(
            f"There is a job {id} already.", "an id names one job.", "choose another, or `easyscale ps --clean`."
        )


def clean_name(name: str) -> str:
    """What of a name can be part of a file's name and typed in a shell."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:_LONGEST_NAME].strip("-.") or "job"
