"""The job's private folder: rendezvous files and the state that one plan hands to the next.

In memory (/dev/shm) where there is room, because a hand-over is written and read at once. It is
removed at the end; what a killed launcher left behind, the next one removes: a living launcher holds
a lock in its folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MEMORY = Path("/dev/shm")
# Model, optimizer and contexts of a hand-over must fit; below this the disk is the safer place.
ROOM = 2 << 30
PREFIX = "easyscale-job-"
LOCK = "launcher.lock"
_YOUNG = 60.0  # seconds in which a folder may not have its lock yet


@contextlib.contextmanager
def workspace(memory: Path = MEMORY, room: int = ROOM) -> Iterator[Path]:
    parent = memory if _has_room(memory, room) else Path(tempfile.gettempdir())
    _remove_stale(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # 0700
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _has_room(folder: Path, room: int) -> bool:
    try:
        return os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free >= room
    except OSError:
        return False


def _remove_stale(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another's folder, or removed by someone else meanwhile
            facts = folder.lstat()
            if facts.st_uid == os.getuid() and time.time() - facts.st_mtime > _YOUNG:
                _remove_unless_locked(folder)


def _remove_unless_locked(folder: Path) -> None:
    lock = os.open(folder / LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
