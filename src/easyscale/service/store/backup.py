"""Copies of a SQLite store: made while the service writes, checked before they are trusted, never over another file."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from easyscale.service.errors import StoreError
from easyscale.service.paths import make_data_dir
from easyscale.service.store.claims import FileClaim
from easyscale.service.store.engines import FILE, WAIT
from easyscale.service.store.migrate import VERSION_TABLE, refuse_unknown
from easyscale.service.store.problems import DAMAGED, Place, explained
from easyscale.service.store.store import Store

CHUNK = 1 << 20


def checksum_file(file: Path) -> Path:
    """Beside it, in the form of `sha256sum --check`."""
    return file.with_name(file.name + ".sha256")


def backup(store: Store, target: Path) -> str:
    """One moment of the store as a file, on the disk when this returns; its sha256. Writers are not held up."""
    source = store.place.file
    if source is None:
        raise StoreError(
            f"The store {store.place.name} is not copied by EasyScale.",
            "PostgreSQL has its own way to do it.",
            "use `pg_dump --format=custom`, and `pg_restore` for the way back.",
        )
    target = target.absolute()
    _refuse_existing(target)
    with _written(target) as new:
        with explained(store.place), closing(_look_into(source)) as old:
            _copy(old, new, Place(str(target), target))
        _check_database(new, target)
        digest = _sha256(new)
        _write_checksum(target, digest)  # first: a copy with its name has its checksum
    return digest


def restore(file: Path, data_dir: Path, *, trust: bool = False) -> Path:
    """Make a store in `data_dir` from a backup. `trust`: do without the checksum. Upgraded when it is opened next."""
    file, target = file.absolute(), data_dir.absolute() / FILE
    if not file.is_file():
        raise StoreError(f"There is no backup {file}.", "no such file.", "see that the path is right.")
    if not trust:
        _compare_checksum(file)
    make_data_dir(target.parent)
    claim = FileClaim(target.with_suffix(".lock"))
    if not claim.take():
        now = "stop it, or give another folder with --data-dir."
        raise StoreError(f"The store {target} is in use.", "a service runs on it.", now)
    try:
        for part in (target, *(target.with_name(FILE + tail) for tail in ("-wal", "-shm", "-journal"))):
            _refuse_existing(part)
        with _written(target) as new:
            shutil.copyfile(file, new)
            _check_database(new, file)
    finally:
        claim.release()
    return target


def check_file(file: Path, *, immutable: bool = False) -> list[str]:
    """What SQLite finds wrong in it; nothing if all is well. `immutable`: nobody else has it open."""
    with explained(Place(str(file), file)), closing(_look_into(file, immutable=immutable)) as database:
        try:
            found = [str(line) for (line,) in database.execute("PRAGMA integrity_check(10)") if line != "ok"]
            orphans = database.execute("PRAGMA foreign_key_check").fetchall()
        except sqlite3.DatabaseError as problem:
            if problem.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            return [str(problem)]  # so damaged that not even the check gets through
    return found + [f"{table}: row {row} names a missing one of {parent}" for table, row, parent, _ in orphans]


# ---------------------------------------------------------------------------------------------------- inside


def _look_into(file: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """To read only. Of one that is `immutable`, not even files beside it are made."""
    return sqlite3.connect(f"{file.as_uri()}?mode=ro{'&immutable=1' if immutable else ''}", uri=True, timeout=WAIT)


def _refuse_existing(file: Path) -> None:
    if file.exists() or file.is_symlink():
        raise StoreError(
            f"{file} is there already.", "nothing is overwritten.", "give another name, or move that file away."
        )


@contextmanager
def _written(target: Path) -> Iterator[Path]:
    """A file beside it to write to. It gets its name when all its bytes are on the disk, or is removed."""
    new = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # it holds hashes of tokens
        yield new
        _sync(new)
        _refuse_existing(target)  # which may have come in the meantime
        new.rename(target)
        _sync(target.parent)
    except OSError as problem:
        raise StoreError(
            f"{target} cannot be written.",
            f"{problem.strerror or problem}.",
            "make room or choose another place; nothing was changed.",
        ) from problem
    finally:
        new.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _copy(old: sqlite3.Connection, new: Path, place: Place) -> None:
    with explained(place), closing(sqlite3.connect(new)) as copy:
        old.backup(copy)  # in one go: in pieces it would begin again with each write
        copy.execute("PRAGMA journal_mode=DELETE")  # a backup is one file


def _check_database(file: Path, name: Path) -> None:
    """It is a store, whole, and of a version that we know. `name`: how messages call it."""
    place = Place(str(name), name)
    wrong = check_file(file, immutable=True)
    if wrong:
        raise StoreError(f"The store {name} is damaged.", f"{'; '.join(wrong[:3])}.", DAMAGED)
    with explained(place), closing(_look_into(file, immutable=True)) as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
        if VERSION_TABLE not in tables:
            raise StoreError(
                f"{name} is not a store.", "it lacks EasyScale's tables.", "see that it is the right file."
            )
        row = database.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    refuse_unknown(row[0] if row else None, place)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(CHUNK):
            digest.update(part)
    return digest.hexdigest()


def _write_checksum(target: Path, digest: str) -> None:
    file = checksum_file(target)
    new = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        new.write_text(f"{digest}  {target.name}\n")
        _sync(new)
        new.rename(file)  # over one that an interrupted backup left: there is no copy that it speaks of
    finally:
        new.unlink(missing_ok=True)


def _compare_checksum(file: Path) -> None:
    beside = checksum_file(file)
    try:
        words = beside.read_text().split()
    except (OSError, UnicodeDecodeError) as problem:
        raise StoreError(
            f"The backup {file} cannot be checked.",
            f"its checksum {beside.name} cannot be read: {problem}.",
            "bring that file along, or restore with --without-checksum.",
        ) from problem
    if not words or words[0] != _sha256(file):
        raise StoreError(
            f"The backup {file} is damaged.",
            f"its bytes do not have the sha256 that {beside.name} says.",
            "copy it again from where it came, or take another backup.",
        )
