"""One service at a time: a lock that ends with its process, whatever ends it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import DBAPIError

from easyscale.service.errors import StoreError
from easyscale.service.store.problems import Place, explained
from easyscale.service.store.tables import claims

CLAIM = 0x6561_7379_0001  # advisory locks are numbers, one space for each database
APPEND = 0x6561_7379_0002
UPGRADE = 0x6561_7379_0003


class Claim(Protocol):
    def take(self) -> bool:
        """False: another has it."""

    def renew(self) -> bool:
        """Have it still, or take it again after the connection was lost. False: another has it."""

    def release(self) -> None: ...


def claim_on(engine: Engine, place: Place) -> Claim:
    return FileClaim(place.file.with_suffix(".lock")) if place.file else ServerClaim(engine, place)


def refusal(engine: Engine, place: Place) -> StoreError:
    """What to say to the second."""
    holder = ""
    with contextlib.suppress(DBAPIError), engine.connect() as connection:
        holder = connection.execute(select(claims.c.holder)).scalar_one_or_none() or ""
    return StoreError(
        f"The store {place.name} is in use.",
        f"another service runs on it{f' ({holder})' if holder else ''}, and two would start jobs twice.",
        "stop that one first, or give this one a data folder or database of its own.",
    )


class FileClaim:
    """A lock of the process (fcntl), not of the open file: a child that was forked does not keep it."""

    # A process that closes any handle of a locked file loses the lock, so it never opens one twice.
    _mine: dict[tuple[int, Path], int] = {}  # noqa: RUF012  one for all, on purpose

    def __init__(self, file: Path) -> None:
        self._file = file.resolve()

    def take(self) -> bool:
        name = (os.getpid(), self._file)
        if name in self._mine:
            return False
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            os.close(handle)
            if isinstance(problem, BlockingIOError | PermissionError):
                return False
            raise
        self._mine[name] = handle
        return True

    def renew(self) -> bool:
        return (os.getpid(), self._file) in self._mine or self.take()

    def release(self) -> None:
        handle = self._mine.pop((os.getpid(), self._file), None)
        if handle is not None:
            os.close(handle)


class ServerClaim:
    """An advisory lock of a connection that is kept open for it alone."""

    def __init__(self, engine: Engine, place: Place) -> None:
        self._engine, self._place = engine, place
        self._connection: Connection | None = None

    def take(self) -> bool:
        with explained(self._place):
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()  # closed when we close it, and with it the lock
            try:
                # The server notices within half a minute that our machine is gone.
                connection.execute(
                    text(
                        "SELECT set_config('tcp_keepalives_idle', '15', false),"
                        " set_config('tcp_keepalives_interval', '5', false),"
                        " set_config('tcp_keepalives_count', '3', false)"
                    )
                )
                got = connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": CLAIM}).scalar_one()
            except BaseException:
                connection.close()
                raise
        if not got:
            connection.close()
            return False
        self._connection = connection
        return True

    def renew(self) -> bool:
        if self._connection is not None:
            try:
                self._connection.execute(text("SELECT 1"))
            except DBAPIError:
                self.release()
            else:
                return True
        return self.take()

    def release(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(DBAPIError):
                self._connection.close()
            self._connection = None
