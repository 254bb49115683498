"""The log over SQLAlchemy Core. Records are numbered without gaps and become visible in that order."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, func, insert, select, text, update

from easyscale.core.errors import UsageError
from easyscale.service.errors import KeyUsedError, StoreError
from easyscale.service.records import News, Record
from easyscale.service.store.claims import APPEND, Claim, claim_on, refusal
from easyscale.service.store.engines import WRITES, place_of, postgres_engine, sqlite_engine
from easyscale.service.store.migrate import refuse_unknown, revision_of, upgrade
from easyscale.service.store.problems import Place, explained
from easyscale.service.store.tables import claims, keys, metadata, records

PAGE = 1000  # records read in one go: a reader that is slow keeps no transaction open
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_UNNEST = text(
    "INSERT INTO records (seq, time, kind, job, body) SELECT * FROM unnest(CAST(:seq AS bigint[]),"
    " CAST(:time AS double precision[]), CAST(:kind AS text[]), CAST(:job AS text[]), CAST(:body AS text[]))"
)


def open_store(where: str | Path, *, existing: bool = False) -> Store:
    """`where`: a data folder, in which SQLite's file is made, or a PostgreSQL URL. It is brought to this version.

    `existing`: it must be there, and is left at its version: for commands that look at a store that a service may use.
    """
    place, url = place_of(where)
    engine = sqlite_engine(place, url, existing=existing) if place.file else postgres_engine(place, url)
    try:
        if existing:
            with explained(place), engine.connect() as connection:
                _refuse_empty(revision_of(connection), place)
        else:
            upgrade(engine, place)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine, place)


def _refuse_empty(revision: str | None, place: Place) -> None:
    refuse_unknown(revision, place)
    if revision is None:
        raise StoreError(
            f"There is no store in {place.name}.", "no service ran with it yet.", "see that it is the right one."
        )


class Store:
    """May be used by many threads. Every problem of the database is a `StoreError`."""

    def __init__(self, engine: Engine, place: Place) -> None:
        self.engine, self.place = engine, place
        self._writer = engine.execution_options(**{WRITES: True})
        self._writing = threading.Lock()
        self._claim: Claim | None = None
        self._turn: int | None = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ the log

    def append(self, news: Sequence[News], key: tuple[str, str, Sequence[str]] | None = None) -> list[Record]:
        """Durable when it returns, all or nothing. `key`: (user, idempotency key, jobs) of a submission, in the same
        transaction; `KeyUsedError` (with the jobs of then) if it was used before.

        A `StoreError` means that nothing was written, with one exception: a server that was lost in the very moment of
        the commit may have done it. Read the log again after that.
        """
        rows = [_row(one) for one in news]
        used = _key_row(*key, news[0].time if news else 0.0) if key else None
        if not rows and used is None:
            return []
        with self.write() as connection:
            last = self._end_of_log(connection)
            if used is not None:
                self._use_key(connection, used)
            for number, row in enumerate(rows, last + 1):
                row["seq"] = number
            _insert(connection, rows)
        # What is returned is what a reader would get: a tuple in a body is a list now.
        return [
            Record(seq=row["seq"], time=row["time"], kind=row["kind"], job=row["job"], body=json.loads(row["body"]))
            for row in rows
        ]

    def records(
        self, after: int = 0, limit: int | None = None, job: str | None = None, newest: bool = False
    ) -> Iterator[Record]:
        """After a seq, the oldest first. `newest`: the last `limit` of them (still the oldest first)."""
        if limit is not None and newest:
            return iter(self._page(after, limit, job, newest=True)[::-1])
        return self._pages(after, limit, job)

    def last(self) -> int:
        """The newest seq; 0: nothing was written yet."""
        with self.read() as connection:
            return connection.execute(select(func.max(records.c.seq))).scalar_one() or 0

    def used_key(self, user: str, key: str) -> list[str] | None:
        with self.read() as connection:
            return _jobs_of(connection, _plain(user, "user"), _plain(key, "key"))

    # ------------------------------------------------------------------------------------------ one service at a time

    def claim(self) -> None:
        """This process is the service on this store. Call it again now and then: a lost connection to PostgreSQL is
        made anew. If another service has come in between, that is an error, and nothing can be appended any more."""
        if self._claim is None:
            claim = claim_on(self.engine, self.place)
            if not claim.take():
                raise refusal(self.engine, self.place)
            try:
                self._turn = self._next_turn()
            except BaseException:
                claim.release()
                raise
            self._claim = claim
            return
        if not self._claim.renew():
            raise refusal(self.engine, self.place)
        with self.read() as connection:
            self._refuse_old_turn(connection)

    def _next_turn(self) -> int:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {now}"
        with self.write() as connection:
            self._end_of_log(connection)  # waits for an older service's last write
            change = update(claims).values(turn=claims.c.turn + 1, holder=holder).returning(claims.c.turn)
            return int(connection.execute(change).scalar_one())

    def _refuse_old_turn(self, connection: Connection) -> None:
        if self._turn is not None and connection.execute(select(claims.c.turn)).scalar_one() != self._turn:
            raise StoreError(
                f"This service has lost the store {self.place.name}.",
                "its connection broke, and another service has taken the store since.",
                "stop this service; the other one goes on with the same jobs.",
            )

    # ------------------------------------------------------------------------------------------ connections

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One moment of the store."""
        with explained(self.place), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction, durable when it ends; an exception undoes it. Threads take turns."""
        with explained(self.place), self._writing, self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        if self._claim is not None:
            self._claim.release()
            self._claim = None
        self.engine.dispose()

    def revision(self) -> str:
        with self.read() as connection:
            return revision_of(connection) or ""

    def counts(self) -> dict[str, int]:
        """Rows of each table that is there."""
        with self.read() as connection:
            there = {name for name in metadata.tables if self.engine.dialect.has_table(connection, name)}
            return {
                name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for name, table in metadata.tables.items()
                if name in there and table is not claims
            }

    # ------------------------------------------------------------------------------------------ inside

    def _end_of_log(self, connection: Connection) -> int:
        """The newest seq, and nobody else appends until our commit is visible: readers may trust the order.

        In SQLite the transaction itself sees to that. PostgreSQL gives this lock back only after the commit, and a
        statement that begins after we got it sees all that was committed before.
        """
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": APPEND})
        self._refuse_old_turn(connection)
        return connection.execute(select(func.max(records.c.seq))).scalar_one() or 0

    def _use_key(self, connection: Connection, used: Mapping[str, Any]) -> None:
        before = _jobs_of(connection, used["user"], used["key"])
        if before is not None:
            raise KeyUsedError(before)
        connection.execute(insert(keys), [used])

    def _pages(self, after: int, limit: int | None, job: str | None) -> Iterator[Record]:
        left = math.inf if limit is None else limit
        while left > 0:
            page = self._page(after, int(min(left, PAGE)), job)
            yield from page
            if len(page) < PAGE:
                return
            after, left = page[-1].seq, left - len(page)

    def _page(self, after: int, limit: int, job: str | None, *, newest: bool = False) -> list[Record]:
        query = select(records).where(records.c.seq > after).limit(max(limit, 0))
        query = query.order_by(records.c.seq.desc() if newest else records.c.seq)
        if job is not None:
            query = query.where(records.c.job == _plain(job, "job"))
        with self.read() as connection:
            rows = connection.execute(query).all()
        return [self._record(row) for row in rows]

    def _record(self, row: Row[Any]) -> Record:
        try:
            body = json.loads(row.body)
        except (ValueError, TypeError) as problem:
            raise StoreError(
                f"The store {self.place.name} is damaged.",
                f"the body of record {row.seq} cannot be read: {problem}.",
                "run `easyscale store check`, and bring a backup back.",
            ) from problem
        return Record(seq=row.seq, time=row.time, kind=row.kind, job=row.job, body=body)


def _insert(connection: Connection, rows: list[dict[str, Any]]) -> None:
    if len(rows) > 1 and connection.dialect.name == "postgresql":  # one statement: the server is asked once
        connection.execute(_UNNEST, {name: [row[name] for row in rows] for name in rows[0]})
    elif rows:
        connection.execute(insert(records), rows)


def _jobs_of(connection: Connection, user: str, key: str) -> list[str] | None:
    query = select(keys.c.jobs).where(keys.c.user == user, keys.c.key == key)
    found = connection.execute(query).scalar_one_or_none()
    return None if found is None else list(json.loads(found))


def _row(news: News) -> dict[str, Any]:
    try:
        body = _encode(dict(news.body))
    except (TypeError, ValueError, RecursionError) as problem:
        raise UsageError(
            f"A record of the kind {news.kind!r} cannot be written.",
            f"its body is not JSON: {problem}.",
            "give it numbers that are finite, texts, lists and dicts only.",
        ) from problem
    if not math.isfinite(news.time):
        raise UsageError(
            f"A record of the kind {news.kind!r} cannot be written.",
            f"its time is {news.time}.",
            "give it seconds since the epoch.",
        )
    job = None if news.job is None else _plain(news.job, "job")
    return {"time": float(news.time), "kind": _plain(news.kind, "kind"), "job": job, "body": body}


def _key_row(user: str, key: str, jobs: Sequence[str], time: float) -> dict[str, Any]:
    return {"user": _plain(user, "user"), "key": _plain(key, "key"), "time": time, "jobs": _encode(list(jobs))}


def _plain(word: str, what: str) -> str:
    """Both engines can hold it: no NUL, no half of a surrogate pair."""
    if "\x00" in word or (not word.isascii() and any("\ud800" <= sign <= "\udfff" for sign in word)):
        raise UsageError(
            f"The {what} {word!r} cannot be written.", "it holds a sign that is not text.", "use letters and digits."
        )
    return word
