"""The checkpoints of one job in one folder: written atomically, the newest good one found again.

A checkpoint appears under its name by a rename, after all its bytes are on the disk; whatever stops a save in
between, the folder holds the checkpoints that it held before. What a save has in hand lies beside them under
dotted names that end in the host and process that own it; those of dead owners are removed by the next save:

    .writing-step-...    being written
    .replaced-step-...   an older checkpoint of the same step, until the new one has its place
    .trash-step-...      being deleted

One `CheckpointStore` a folder in a process, and one process that saves, are assumed; any number may read. Where workers
come and go, `.holder` names the one that saves: see `take_over`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import platform
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from easyscale.core.errors import CheckpointError, UsageError
from easyscale.runtime.checkpoint.folder import OtherFormatError, Snapshot, looks_whole, read_folder, write_folder
from easyscale.runtime.checkpoint.tensorfile import fsync_folder

Report = Callable[[str, str, int], None]
T = TypeVar("T")

# After this many seconds a leftover of another host, whose processes cannot be asked, counts as abandoned.
_ABANDONED = 24 * 3600.0
_STEP = re.compile(r"step-(\d+)")
_REPLACED = re.compile(r"\.replaced-(step-(\d+))-.*")
_LEFTOVER = re.compile(r"\.(writing|replaced|trash)-(step-\d+)-(.*)-(\d+)")
_HOLDER = ".holder"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


class CheckpointStore:
    """Saves and finds checkpoints. `report(what, sentence, step)` is told what happened, maybe by the writer thread."""

    def __init__(self, folder: Path, *, keep: int = 3, report: Report) -> None:
        if keep < 1:
            raise UsageError(
                f"Keeping {keep} checkpoints is not possible.",
                "at least the newest one is kept.",
                "keep 1 or more; to save none, leave the checkpoint folder out.",
            )
        self._folder, self._keep, self._tell = Path(folder), keep, report
        self._disk = threading.Lock()  # held while files change
        self._turn = threading.Condition()  # guards the next three
        self._queued: Snapshot | None = None
        self._takes_over = False
        self._writer: threading.Thread | None = None
        self._claim: str | None = None  # what `.holder` says if this process saves
        self._verdicts: dict[Path, bool] = {}  # what this process knows of checkpoints, so as not to read them again

    def save(self, snapshot: Snapshot) -> Path:
        """Write a checkpoint; it is durable on return. Then delete those beyond `keep`."""
        path = self._folder / _name(snapshot.step)
        with self._disk:
            size = self._write(snapshot, path)
            self._verdicts[path] = True
            trouble = self._prune(path)
        self._report("checkpoint-saved", f"Saved {path} ({size / 1e6:.1f} MB).{trouble}", snapshot.step)
        return path

    def save_in_background(self, snapshot: Snapshot) -> None:
        """Hand a checkpoint to the writer thread and go on. If one is being written already, this one waits for its
        turn, in place of any other that was waiting. Failures are reported, not raised: training does not stop."""
        with self._turn:
            self._queued = snapshot
        self._wake_writer()

    def take_over(self) -> None:
        """From now on this process saves, and one that did before cannot: it may hang, be taken for dead and wake up.

        In the background, before the next save. Its claim goes first, which it looks at before it renames what it has
        written; then what it was writing goes, so that a rename behind that look fails.
        """
        with self._turn:
            self._takes_over = True
        self._wake_writer()

    def _wake_writer(self) -> None:
        with self._turn:
            if self._writer is not None:
                return
            # Not a daemon: a process that ends lets its last checkpoint become durable first.
            self._writer = threading.Thread(target=self._drain, name="easyscale-checkpoint")
        try:
            self._writer.start()
        except RuntimeError:  # the interpreter is shutting down: no more threads
            self._drain()

    def wait(self) -> None:
        """Until nothing is being written or waits to be."""
        with self._turn:
            self._turn.wait_for(lambda: self._writer is None)

    def latest(self) -> Snapshot | None:
        """The newest good checkpoint, verified to the last byte. None where there has never been one."""
        self.wait()

        def read(path: Path) -> Snapshot:
            self._verdicts[path] = False
            snapshot = read_folder(path)
            self._verdicts[path] = True
            return snapshot

        with self._disk:
            return newest_good(self._folder, read, self._report)

    @staticmethod
    def load(path: Path) -> Snapshot:
        """The checkpoint in one given folder, verified to the last byte."""
        return read_folder(Path(path))

    def _drain(self) -> None:
        while True:
            with self._turn:
                takes_over, self._takes_over = self._takes_over, False
                snapshot, self._queued = self._queued, None
                if snapshot is None and not takes_over:
                    self._writer = None
                    self._turn.notify_all()
                    return
            if takes_over:
                self._claim_folder()
            if snapshot is None:
                continue
            try:
                self.save(snapshot)
            except Exception as problem:
                goes_on = "Training goes on, and older checkpoints are untouched."
                self._report("checkpoint-failed", f"{_sentence(problem)} {goes_on}", snapshot.step)

    def _report(self, what: str, sentence: str, step: int) -> None:
        try:
            self._tell(what, sentence, step)
        except Exception:  # a listener that is gone must not stop the next checkpoint
            logging.getLogger(__name__).exception("nobody could be told: %s", sentence)

    def _claim_folder(self) -> None:
        with self._disk, contextlib.suppress(OSError):  # what hinders it hinders the next save, which says so
            self._folder.mkdir(parents=True, exist_ok=True)
            claim = uuid.uuid4().hex
            draft = self._folder / f"{_HOLDER}-{claim}"
            draft.write_text(claim)
            os.replace(draft, self._folder / _HOLDER)
            self._claim = claim
            for entry in list(self._folder.iterdir()):
                match = _LEFTOVER.fullmatch(entry.name)
                if match is not None and match[1] == "writing" and entry != self._beside("writing", Path(match[2])):
                    trash = self._beside("trash", Path(match[2]))
                    os.rename(entry, trash)
                    shutil.rmtree(trash, ignore_errors=True)

    def _refuse_if_another_saves(self) -> None:
        if self._claim is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if (self._folder / _HOLDER).read_text() != self._claim:
                raise CheckpointError(
                    f"This process may no longer save in {self._folder}.",
                    "another one has taken the folder over.",
                    "use one checkpoint folder a job.",
                )

    def _write(self, snapshot: Snapshot, path: Path) -> int:
        writing = self._beside("writing", path)
        try:
            if not self._folder.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True)
                fsync_folder(self._folder.parent)
            self._tidy()
            writing.mkdir()
            size = write_folder(writing, snapshot)
            self._refuse_if_another_saves()
            self._put_in_place(writing, path)
        except OSError as problem:
            raise _cannot_save(snapshot.step, self._folder, problem) from problem
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        return size

    def _put_in_place(self, writing: Path, path: Path) -> None:
        replaced = self._beside("replaced", path)
        if path.exists():
            os.rename(path, replaced)
        try:
            os.rename(writing, path)
        except BaseException:
            if replaced.exists():
                os.rename(replaced, path)
            raise
        fsync_folder(self._folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def _prune(self, saved: Path) -> str:
        """Delete what is older than the newest `keep` good ones. Damaged ones do not count; `saved` always stays.
        Returns what to add to the report, for what cannot be deleted is a nuisance and no failure."""
        try:
            checkpoints = [path for _, path in _checkpoints(self._folder) if _STEP.fullmatch(path.name)]
            good = [path for path in checkpoints if self._looks_good(path)]
            if len(good) <= self._keep:
                return ""
            for path in checkpoints[checkpoints.index(good[self._keep - 1]) + 1 :]:
                if path != saved:
                    self._verdicts.pop(path, None)
                    trash = self._beside("trash", path)
                    os.rename(path, trash)
                    shutil.rmtree(trash)
        except OSError as problem:
            return f" Older checkpoints could not be deleted: {problem}."
        return ""

    def _looks_good(self, path: Path) -> bool:
        if path not in self._verdicts:
            self._verdicts[path] = looks_whole(path)
        return self._verdicts[path]

    def _tidy(self) -> None:
        for entry in list(self._folder.iterdir()):
            match = _LEFTOVER.fullmatch(entry.name)
            if match is None or not _is_stale(entry, match[3], int(match[4])):
                continue
            path = self._folder / match[2]
            if match[1] == "replaced" and not path.exists():
                os.rename(entry, path)
            else:
                shutil.rmtree(entry, ignore_errors=True)

    def _beside(self, purpose: str, path: Path) -> Path:
        return self._folder / f".{purpose}-{path.name}-{_host()}-{os.getpid()}"


def newest_good(folder: Path, read: Callable[[Path], T], report: Report) -> T | None:
    """`read` the newest checkpoint that it does not raise CheckpointError for. None if there is none at all."""
    try:
        checkpoints = _checkpoints(folder)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise CheckpointError(
            f"The checkpoint folder {folder} cannot be read.", f"{problem}.", "check the path and its permissions."
        ) from problem
    for step, path in checkpoints:
        try:
            return read(path)
        except OtherFormatError:  # not damage: going back further would throw away good work
            raise
        except CheckpointError as problem:
            report("checkpoint-damaged", f"{problem.what} why: {problem.why} now: trying the one before it.", step)
    if not checkpoints:
        return None
    raise CheckpointError(
        f"None of the {len(checkpoints)} checkpoints in {folder} is good.",
        "each of them is damaged; the reasons were reported one by one.",
        "restore the folder from a backup, or start anew with another checkpoint folder.",
    )


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Newest first. One that was being replaced counts where its successor never came into place."""
    found: dict[int, Path] = {}
    for entry in sorted(folder.iterdir(), reverse=True):  # step-... before .replaced-...
        match = _STEP.fullmatch(entry.name)
        if match is not None:
            found[int(match[1])] = entry
            continue
        match = _REPLACED.fullmatch(entry.name)
        if match is not None:
            found.setdefault(int(match[2]), entry)
    return sorted(found.items(), reverse=True)


def _name(step: int) -> str:
    return f"step-{step:010d}"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", platform.node()) or "unknown"


def _is_stale(entry: Path, host: str, pid: int) -> bool:
    if host == _host():
        return pid == os.getpid() or not _is_alive(pid)
    try:
        return time.time() - entry.stat().st_mtime > _ABANDONED
    except FileNotFoundError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _sentence(problem: Exception) -> str:
    if isinstance(problem, CheckpointError):
        return f"{problem.what} why: {problem.why} now: {problem.now}"
    return f"A checkpoint could not be saved ({type(problem).__name__}: {problem})."


def _cannot_save(step: int, folder: Path, problem: OSError) -> CheckpointError:
    if problem.errno in _FULL:
        now = "free some space, keep fewer checkpoints, or use another checkpoint folder."
    elif problem.errno in _FORBIDDEN:
        now = "make the folder writable for this user, or use another checkpoint folder."
    else:
        now = "check the disk and the path, or use another checkpoint folder."
    return CheckpointError(f"The checkpoint of step {step} could not be saved in {folder}.", f"{problem}.", now)
