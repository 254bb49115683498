"""A store of an earlier version keeps its data; one of a later version is left alone. On both engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text

from easyscale.service.errors import StoreError
from easyscale.service.people import People, _hash
from easyscale.service.ports import Person
from easyscale.service.store import migrate, open_store
from easyscale.service.store.engines import place_of, postgres_engine, sqlite_engine
from easyscale.service.store.problems import Place
from easyscale.service.store.tables import metadata

TOKEN = "est_0123456789ab_" + "7" * 64
ROWS: dict[str, list[dict[str, Any]]] = {
    "records": [
        {"seq": n, "time": 1e9 + n / 3, "kind": "told", "job": f"j{n % 5}" if n % 3 else None, "body": f'{{"n":{n}}}'}
        for n in range(1, 501)
    ],
    "keys": [{"user": "ann", "key": f"k{n}", "time": 5.5, "jobs": f'["j{n}"]'} for n in range(20)],
    "teams": [{"name": "vision", "quota": 4, "borrow": False}, {"name": "audio", "quota": None, "borrow": True}],
    "users": [
        {"name": "ann", "team": "vision", "role": "admin", "made": 1.0, "removed": None},
        {"name": "old", "team": "audio", "role": "user", "made": 1.0, "removed": 2.0},
    ],
    "tokens": [
        {"id": "0123456789ab", "user": "ann", "hash": _hash(TOKEN).hex(), "note": "n", "made": 1.5,
         "expires": None, "revoked": None},
        {"id": "ba9876543210", "user": "old", "hash": "00" * 32, "note": "ü", "made": 1.5,
         "expires": 9.0, "revoked": 2.0},
    ],
}  # fmt: skip


def bare_engine(where: str | Path) -> tuple[Engine, Place]:
    place, url = place_of(where)
    return (sqlite_engine(place, url, existing=False) if place.file else postgres_engine(place, url)), place


def make_first_version(where: str | Path) -> None:
    engine, place = bare_engine(where)
    migrate.upgrade(engine, place, "0001")
    with engine.begin() as connection:
        for table, rows in ROWS.items():
            names = ", ".join(f'"{name}"' for name in rows[0])
            values = ", ".join(f":{name}" for name in rows[0])
            connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), rows)
    engine.dispose()


def rows_of(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    with engine.connect() as connection:
        return {
            table: [dict(row._mapping) for row in connection.execute(metadata.tables[table].select()).all()]
            for table in ROWS
        }


def test_a_store_of_the_first_version_keeps_every_row(where: str | Path) -> None:
    make_first_version(where)
    with open_store(where) as store:
        assert store.revision() == migrate.head() != "0001"
        after = rows_of(store.engine)
        assert [row.pop("used") for row in after["tokens"]] == [None, None]
        for table, rows in ROWS.items():
            assert sorted(after[table], key=str) == sorted(rows, key=str), table
        assert [record.seq for record in store.records()] == list(range(1, 501))
        assert store.used_key("ann", "k7") == ["j7"]
        people = People(store, lambda: 100.0)
        assert people.authenticate(TOKEN) == Person("ann", "vision", "admin")
        people.audit("ann", "look", "here", ok=True, address="")
        store.claim()
        assert [record.seq for record in store.append([])] == []


def test_the_steps_lead_to_the_tables_that_the_code_uses(where: str | Path) -> None:
    with open_store(where) as store, store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = [
            change for change in compare_metadata(context, metadata) if migrate.VERSION_TABLE not in str(change)
        ]
        assert differences == []


def test_opening_again_changes_nothing(where: str | Path) -> None:
    with open_store(where) as store:
        before = store.revision()
    with open_store(where) as store:
        assert store.revision() == before == migrate.head()


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(where: str | Path) -> None:
    with open_store(where) as store, store.write() as connection:
        connection.execute(text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'"))
    for existing in (False, True):
        with pytest.raises(StoreError, match="newer version") as refused:
            open_store(where, existing=existing)
        assert "9999" in refused.value.why
        assert "no downgrade" in refused.value.now
    engine, _ = bare_engine(where)
    with engine.connect() as connection:
        assert migrate.revision_of(connection) == "9999"
    engine.dispose()


def test_a_step_that_fails_leaves_the_store_as_it_was(where: str | Path) -> None:
    make_first_version(where)
    engine, place = bare_engine(where)
    with engine.begin() as connection:  # in the way of the second step, after it has added a column
        connection.execute(text("CREATE TABLE claims (x INTEGER)"))
    with pytest.raises(StoreError):
        open_store(where)
    with engine.connect() as connection:
        assert migrate.revision_of(connection) == "0001"
        columns = connection.execute(text("SELECT * FROM tokens")).keys()
        assert "used" not in columns
        assert not engine.dialect.has_table(connection, "audit")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE claims"))
    engine.dispose()
    with open_store(where) as store:
        assert store.revision() == migrate.head()
        assert store.last() == 500
    assert place.name


def test_a_store_is_not_upgraded_under_a_running_service(where: str | Path) -> None:
    make_first_version(where)
    engine, place = bare_engine(where)
    claim = migrate.claim_on(engine, place)
    assert claim.take()
    with pytest.raises(StoreError, match="in use"):
        open_store(where)
    claim.release()
    engine.dispose()
    open_store(where).close()


def test_a_command_that_only_looks_does_not_upgrade(where: str | Path) -> None:
    make_first_version(where)
    with open_store(where, existing=True) as store:
        assert store.revision() == "0001"
        assert store.counts() == {"records": 500, "keys": 20, "teams": 2, "users": 2, "tokens": 2}
        assert store.last() == 500


def test_tables_of_another_program_are_not_touched(where: str | Path) -> None:
    engine, _ = bare_engine(where)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE users (mine INTEGER)"))
    with pytest.raises(StoreError, match="another program"):
        open_store(where)
    with engine.connect() as connection:
        assert list(connection.execute(text("SELECT * FROM users")).keys()) == ["mine"]
        assert not engine.dialect.has_table(connection, "records")
    engine.dispose()


def test_several_processes_may_open_a_new_store_at_once(where: str | Path) -> None:
    code = "import sys\nfrom easyscale.service.store import open_store\nprint(open_store(sys.argv[1]).revision())"
    running = [
        subprocess.Popen((sys.executable, "-c", code, str(where)), stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [process.communicate(timeout=120) for process in running]
    assert [out.strip() for out, _ in said] == [migrate.head()] * 3, said
