"""Opens the two kinds of database so that both keep the same promises: durable commits, bounded waits."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from easyscale.service.errors import StoreError
from easyscale.service.paths import make_data_dir
from easyscale.service.store.problems import Place, explained

FILE = "easyscale.db"
WAIT = 30  # seconds for which a write waits for another process
WRITES = "easyscale_writes"  # marks connections whose transactions write
POOL = {"pool_size": 8, "max_overflow": 40, "pool_timeout": WAIT}


def is_url(where: str | Path) -> bool:
    return isinstance(where, str) and "://" in where


def place_of(where: str | Path) -> tuple[Place, URL]:
    """`where`: a PostgreSQL URL, or the data folder."""
    if not is_url(where):
        file = Path(where).expanduser().absolute() / FILE
        return Place(str(file), file), URL.create("sqlite", database=str(file))
    url = _postgres_url(str(where))
    return Place(_shown(url), secret=url.password or None), url


def _shown(url: URL) -> str:
    """The URL for people: no password, and none of the options, where one could also be."""
    host = url.host or url.query.get("host", "")
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{url.username or ''}@{host}{port}/{url.database or ''}"


def _postgres_url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # What make_url says may quote parts of the URL, and so of the password.
        raise StoreError(
            "The store's URL cannot be read.",
            "it is not of the form postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
            "write signs such as @, : and / in the password as %40, %3A and %2F.",
        ) from None
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise StoreError(
            f"A store of the kind {url.drivername} cannot be used.",
            "a store is SQLite in a data folder, or PostgreSQL.",
            "give a folder with --data-dir, or a URL that begins with postgresql://.",
        )
    word = url.query.get("password")
    if isinstance(word, str):  # the other place where it may be; from here on there is one
        url = url.difference_update_query(["password"]).set(password=word)
    return url.set(drivername="postgresql+psycopg")


# ---------------------------------------------------------------------------------------------------- SQLite


def sqlite_engine(place: Place, url: URL, *, existing: bool) -> Engine:
    file = place.file
    assert file is not None
    _prepare_file(file, existing)
    engine = create_engine(url, hide_parameters=True, connect_args={"timeout": WAIT}, **POOL)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    try:
        with explained(place):
            _into_wal(engine, place)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _prepare_file(file: Path, existing: bool) -> None:
    """An empty file for its owner alone; SQLite gives the files beside it the same rights."""
    if existing and not file.is_file():
        raise StoreError(
            f"There is no store {file}.",
            "the data folder is another one, or no service ran with it yet.",
            "give the folder with --data-dir, or set EASYSCALE_DATA.",
        )
    if existing:
        return
    make_data_dir(file.parent)
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as problem:
        raise StoreError(
            f"The store {file} cannot be written.",
            f"{problem.strerror or problem}.",
            "see who owns the file and its folder, or give another --data-dir.",
        ) from problem


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # we begin transactions ourselves, see _begin_sqlite
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "journal_size_limit=67108864"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """A transaction that writes says so at once: one that finds out later fails instead of waiting."""
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _into_wal(engine: Engine, place: Place) -> None:
    """The mode stays in the file. Changing it does not wait for others by itself."""
    until = time.monotonic() + WAIT
    raw = engine.raw_connection()
    try:
        while True:
            try:
                mode = raw.cursor().execute("PRAGMA journal_mode=WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(0.02)
    finally:
        raw.close()
    if mode != "wal":
        raise StoreError(
            f"The store {place.name} cannot be used.",
            f"its file system does not allow a write-ahead log (SQLite answers {mode!r}).",
            "put the data folder on a local disk, or use PostgreSQL.",
        )


# ---------------------------------------------------------------------------------------------------- PostgreSQL


def postgres_engine(place: Place, url: URL) -> Engine:
    waits = {} if "connect_timeout" in url.query else {"connect_timeout": 10}
    with explained(place):
        engine = create_engine(
            url,
            hide_parameters=True,
            pool_pre_ping=True,  # a server that was restarted is found again
            isolation_level="READ COMMITTED",  # a statement after a lock must see what was committed before it
            connect_args={"application_name": "easyscale", **waits},
            **POOL,
        )
    event.listen(engine, "connect", _prepare_postgres)
    return engine


def _prepare_postgres(connection: Any, _: object) -> None:
    """Commits wait for the disk even where the server's default says otherwise."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('lock_timeout', %s, false), set_config('synchronous_commit',"
            " CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'"
            " ELSE current_setting('synchronous_commit') END, false)",
            (f"{WAIT}s",),
        )
    connection.commit()
