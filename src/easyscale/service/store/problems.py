"""From what a database says to what a user reads: what happened, why, what to do now. Passwords stay out of it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from easyscale.service.errors import StoreError

Parts = tuple[str, str, str]

FULL = "nothing of this was written. Make room on the disk; what was accepted before is safe."
DAMAGED = "keep the file for study, and bring a backup back with `easyscale store restore`."

REPORT = "run `easyscale store check`; if that is clean, please report it."
ADVICE = {  # what to do, by PostgreSQL's code
    "28P01": "see to user and password in the store's URL, and to the server's pg_hba.conf.",
    "28000": "see to user and password in the store's URL, and to the server's pg_hba.conf.",
    "3D000": "make the database first: `createdb NAME`.",
    "42501": "let the user own its database: `ALTER DATABASE NAME OWNER TO USER`.",
    "25006": "give the URL of the main server, not of a copy that takes no writes.",
    "55P03": "another process holds it for too long: see `pg_stat_activity`, and try again.",
    "40P01": "another process holds it for too long: see `pg_stat_activity`, and try again.",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Which store: its name for people, its file if it has one, and the word that must not be shown."""

    name: str
    file: Path | None = None
    secret: str | None = None

    def clean(self, text: str) -> str:
        """One line of it, without the password."""
        line = " ".join(text.split())
        return line.replace(self.secret, "***") if self.secret else line


@contextmanager
def explained(place: Place) -> Iterator[None]:
    """Every error of the database becomes a `StoreError`."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        raise StoreError(*_parts(error, place)) from error
    except NoConnectionError as error:
        raise StoreError(
            f"The store {place.name} has no free connection.",
            "too many requests use it at once, or it hangs.",
            "try again soon; look at the database server if it stays so.",
        ) from error
    except ModuleNotFoundError as error:
        raise StoreError(
            f"The store {place.name} cannot be opened.",
            f"the driver is not installed: {error}.",
            "`pip install 'easyscale-torch[postgres]'`.",
        ) from error


def _parts(error: DBAPIError | sqlite3.Error, place: Place) -> Parts:
    cause = error.orig if isinstance(error, DBAPIError) else error
    said = place.clean(str(cause)).rstrip(".")
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause, place, said)
    return _of_postgres(getattr(cause, "sqlstate", None) or "", place, said)


def _of_sqlite(cause: sqlite3.Error, place: Place, said: str) -> Parts:
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # the rest of it tells apart what is one to a user
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_room(place)):
        return f"The store {place.name} cannot be written.", f"the disk is full ({said}).", FULL
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return f"The store {place.name} is damaged.", f"{said}.", DAMAGED
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        why = f"the file or its folder cannot be read and written ({said})."
        now = "see who owns them, or give another --data-dir."
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        why = f"another process holds it for too long ({said})."
        now = "see which process has the file open, and try again."
    elif code == sqlite3.SQLITE_IOERR:
        why = f"the disk reports an error ({said})."
        now = "see the system's log (`dmesg`); the data may need another disk."
    else:
        why, now = f"{said}.", REPORT
    return f"The store {place.name} cannot be used.", why, now


def _no_room(place: Place) -> bool:
    """SQLite calls some writes to a full disk an input/output error."""
    if place.file is None:
        return False
    try:
        facts = os.statvfs(place.file.parent)
    except OSError:
        return False
    return facts.f_bavail * facts.f_frsize < 1 << 20


def _of_postgres(state: str, place: Place, said: str) -> Parts:
    if state == "53100":
        return f"The store {place.name} cannot be written.", f"the server's disk is full ({said}).", FULL
    if state in ("XX001", "XX002"):
        return f"The store {place.name} is damaged.", f"{said}.", "bring a backup of the database back."
    if now := ADVICE.get(state) or _advice(said):
        return f"The store {place.name} cannot be used.", f"{said}.", now
    if not state or state[:2] in ("08", "57", "53"):
        now = "see that the server runs, that the URL is right and that its connections are not used up."
        return f"The store {place.name} cannot be reached.", f"{said}.", now
    return f"The store {place.name} cannot be used.", f"{said} (code {state}).", REPORT


def _advice(said: str) -> str:
    """The driver passes no code on for what fails while it connects, only the server's words."""
    if "authentication failed" in said:
        return ADVICE["28P01"]
    if "database" in said and "does not exist" in said:
        return ADVICE["3D000"]
    return ""
