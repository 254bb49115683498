"""Brings a store to this version when it is opened. There is no way back; a store of a newer version is refused."""

from __future__ import annotations

from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from easyscale.service.errors import StoreError
from easyscale.service.store import tables
from easyscale.service.store.claims import UPGRADE, claim_on, refusal
from easyscale.service.store.engines import WRITES
from easyscale.service.store.problems import Place, explained

VERSION_TABLE = "easyscale_version"  # as in migrations/env.py
HEAD = "head"


def revision_of(connection: Connection) -> str | None:
    """None: nothing was made yet."""
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def head() -> str:
    with as_file(files("easyscale.service.store") / "migrations") as folder:
        newest = ScriptDirectory(str(folder)).get_current_head()
    assert newest is not None
    return newest


def known() -> set[str]:
    with as_file(files("easyscale.service.store") / "migrations") as folder:
        return {step.revision for step in ScriptDirectory(str(folder)).walk_revisions()}


def upgrade(engine: Engine, place: Place, target: str = HEAD) -> None:
    """In one transaction. A store with data is upgraded only while no service runs on it."""
    goal = head() if target == HEAD else target
    with explained(place), engine.connect() as connection:
        now = revision_of(connection)
        refuse_unknown(now, place)
        if now == goal:
            return
        if now is None:
            _refuse_foreign(connection, place)
    if now is None:
        _run(engine, place, goal)
        return
    claim = claim_on(engine, place)
    if not claim.take():
        raise refusal(engine, place)
    try:
        _run(engine, place, goal)
    finally:
        claim.release()


def refuse_unknown(now: str | None, place: Place) -> None:
    if now is not None and now not in known():
        raise StoreError(
            f"The store {place.name} is of a newer version.",
            f"a newer EasyScale has upgraded it (its revision is {now}, this version knows {head()}).",
            "install that EasyScale, or restore a backup that this version made; there is no downgrade.",
        )


def _run(engine: Engine, place: Place, goal: str) -> None:
    with explained(place), engine.execution_options(**{WRITES: True}).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": UPGRADE})
        if revision_of(connection) == goal:  # another process was faster
            return
        with as_file(files("easyscale.service.store") / "migrations") as folder:
            config = Config()
            config.set_main_option("script_location", str(folder).replace("%", "%%"))
            config.attributes["connection"] = connection
            command.upgrade(config, goal)


def _refuse_foreign(connection: Connection, place: Place) -> None:
    there = set(inspect(connection).get_table_names())
    # A file is ours alone. In a database beside other programs' tables, only the names must not collide.
    wrong = there if place.file else there & set(tables.metadata.tables)
    if wrong and revision_of(connection) is None:  # asked again: another process may be making it
        raise StoreError(
            f"The store {place.name} belongs to another program.",
            f"it has tables that EasyScale did not make: {', '.join(sorted(wrong)[:5])}.",
            "give EasyScale a data folder or a database of its own.",
        )
