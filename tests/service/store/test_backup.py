"""A backup is one moment of the store, made while it is written; a damaged one is not taken for good."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.service.postgres import Server, programs

from easyscale.service.errors import StoreError
from easyscale.service.people import People
from easyscale.service.records import News
from easyscale.service.store import migrate, open_store
from easyscale.service.store.backup import backup, check_file, checksum_file, restore


def news(count: int) -> list[News]:
    return [News(time=1.0, kind="job-told", body={"n": n}) for n in range(count)]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A backup of a store with 100 records."""
    with open_store(tmp_path / "data") as store:
        store.append(news(100), ("ann", "k", ["j"]))
        backup(store, tmp_path / "copy.db")
    return tmp_path / "copy.db"


def test_a_restored_store_has_everything_and_goes_on(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        written = store.append(news(100), ("ann", "k", ["j"]))
        token = People(store).first_admin("root")
        digest = backup(store, tmp_path / "copy.db")
        store.append(news(1))
    assert hashlib.sha256((tmp_path / "copy.db").read_bytes()).hexdigest() == digest
    assert restore(tmp_path / "copy.db", tmp_path / "other") == tmp_path / "other" / "easyscale.db"
    with open_store(tmp_path / "other") as store:
        assert list(store.records()) == written
        assert store.used_key("ann", "k") == ["j"]
        assert token is not None
        assert People(store).authenticate(token)
        store.claim()
        assert store.append(news(1))[0].seq == 101


def test_a_backup_is_one_private_file_with_its_checksum_beside_it(tmp_path: Path, copy: Path) -> None:
    here = {file.name for file in tmp_path.iterdir()}
    assert here == {"data", "copy.db", "copy.db.sha256"}
    assert copy.stat().st_mode & 0o777 == 0o600
    done = subprocess.run(
        ("sha256sum", "--check", "copy.db.sha256"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "copy.db: OK\n"


def test_a_backup_under_writers_is_one_moment(tmp_path: Path) -> None:
    stop = threading.Event()
    with open_store(tmp_path / "data") as store:
        store.claim()

        def write() -> None:
            batch = 0
            while not stop.is_set():
                batch += 1
                store.append([News(time=1.0, kind="job-told", body={"batch": batch}) for _ in range(7)])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            while store.last() == 0:
                time.sleep(0.005)
            for number in range(5):
                least = store.last()
                backup(store, tmp_path / f"copy{number}.db")
                restore(tmp_path / f"copy{number}.db", tmp_path / f"other{number}")
                with open_store(tmp_path / f"other{number}") as other:
                    records = list(other.records())
                assert least <= len(records) <= store.last()
                assert len(records) % 7 == 0, "half a batch"
                assert [record.seq for record in records] == list(range(1, len(records) + 1))
        finally:
            stop.set()
            writer.join()


def test_a_backup_of_another_processes_store_while_it_runs(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as service:
        service.claim()
        service.append(news(5))
        code = """
import sys
from pathlib import Path
from easyscale.service.store import open_store
from easyscale.service.store.backup import backup
with open_store(sys.argv[1], existing=True) as store:
    backup(store, Path(sys.argv[2]))
"""
        subprocess.run((sys.executable, "-c", code, tmp_path / "data", tmp_path / "copy.db"), check=True)
        service.append(news(1))
    restore(tmp_path / "copy.db", tmp_path / "other")
    with open_store(tmp_path / "other") as store:
        assert store.last() == 5


def test_nothing_is_overwritten(tmp_path: Path, copy: Path) -> None:
    before = copy.read_bytes()
    with open_store(tmp_path / "data") as store:
        store.append(news(1))
        with pytest.raises(StoreError, match="there already"):
            backup(store, copy)
    assert copy.read_bytes() == before
    with pytest.raises(StoreError, match="there already"):
        restore(copy, tmp_path / "data")
    with open_store(tmp_path / "data") as store:
        assert store.last() == 101


@pytest.mark.parametrize("left", ["easyscale.db-wal", "easyscale.db-shm"])
def test_parts_of_an_older_store_are_in_the_way_too(tmp_path: Path, copy: Path, left: str) -> None:
    """SQLite would take an old write-ahead log for the restored file's own."""
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "other" / left).write_bytes(b"old")
    with pytest.raises(StoreError, match="there already"):
        restore(copy, tmp_path / "other")
    assert not (tmp_path / "other" / "easyscale.db").exists()


def test_a_store_in_use_is_not_restored_over(tmp_path: Path, copy: Path) -> None:
    with open_store(tmp_path / "data") as store:
        store.claim()
        with pytest.raises(StoreError, match="in use"):
            restore(copy, tmp_path / "data")


def test_a_copy_with_a_flipped_bit_is_refused(tmp_path: Path, copy: Path) -> None:
    raw = bytearray(copy.read_bytes())
    raw[len(raw) // 2] ^= 1
    copy.write_bytes(raw)
    with pytest.raises(StoreError, match="damaged") as problem:
        restore(copy, tmp_path / "other")
    assert "sha256" in problem.value.why
    assert not (tmp_path / "other").exists()


def test_a_copy_without_its_checksum_is_refused_unless_told_otherwise(tmp_path: Path, copy: Path) -> None:
    checksum_file(copy).unlink()
    with pytest.raises(StoreError, match="cannot be checked") as problem:
        restore(copy, tmp_path / "other")
    assert "--without-checksum" in problem.value.now
    restore(copy, tmp_path / "other", trust=True)
    with open_store(tmp_path / "other") as store:
        assert store.last() == 100


def test_damage_is_found_without_a_checksum_too(tmp_path: Path, copy: Path) -> None:
    raw = bytearray(copy.read_bytes())
    raw[4096 * 2 : 4096 * 3] = b"\x5a" * 4096
    copy.write_bytes(raw)
    with pytest.raises(StoreError, match="damaged"):
        restore(copy, tmp_path / "other", trust=True)
    assert list((tmp_path / "other").glob("*.db*")) == []
    assert list((tmp_path / "other").glob(".*.part")) == []


def test_files_that_are_no_stores_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE mine (x INTEGER)")
    database.close()
    (tmp_path / "text.db").write_text("not a database, but a text that is long enough to have a header" * 20)
    (tmp_path / "empty.db").write_text("")
    for name in ("other.db", "text.db", "empty.db"):
        with pytest.raises(StoreError):
            restore(tmp_path / name, tmp_path / "data", trust=True)
    with pytest.raises(StoreError, match="no backup"):
        restore(tmp_path / "missing.db", tmp_path / "data")
    assert not (tmp_path / "data" / "easyscale.db").exists()


def test_a_copy_of_a_newer_version_is_refused(tmp_path: Path, copy: Path) -> None:
    with sqlite3.connect(copy) as database:
        database.execute(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    database.close()
    with pytest.raises(StoreError, match="newer version"):
        restore(copy, tmp_path / "other", trust=True)


def test_a_place_that_cannot_be_written_is_named_and_left_clean(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        with pytest.raises(StoreError, match="cannot be written") as problem:
            backup(store, tmp_path / "nowhere" / "copy.db")
        assert "o such file" in problem.value.why
    assert {file.name for file in tmp_path.iterdir()} == {"data"}


def test_an_interrupted_backup_leaves_no_file_with_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with open_store(tmp_path / "data") as store:
        store.append(news(3))
        with monkeypatch.context() as patch:
            patch.setattr("easyscale.service.store.backup._write_checksum", fail)
            with pytest.raises(KeyboardInterrupt):
                backup(store, tmp_path / "copy.db")
        assert {file.name for file in tmp_path.iterdir()} == {"data"}
        backup(store, tmp_path / "copy.db")
    assert check_file(tmp_path / "copy.db") == []


def test_a_damaged_store_makes_no_backup(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        store.append(news(2000))
        with store.engine.connect() as connection:
            connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
        assert store.place.file
        with store.place.file.open("r+b") as file:
            file.seek(4096 * 12)
            file.write(b"\xa5" * 4096)
    with open_store(tmp_path / "data", existing=True) as store, pytest.raises(StoreError, match="damaged"):
        backup(store, tmp_path / "copy.db")
    assert {file.name for file in tmp_path.iterdir()} == {"data"}


def test_a_postgresql_store_is_left_to_pg_dump(database: str, tmp_path: Path) -> None:
    with open_store(database) as store, pytest.raises(StoreError, match="pg_dump"):
        backup(store, tmp_path / "copy.db")


def test_pg_dump_and_pg_restore_bring_everything_back(postgres: Server, database: str, tmp_path: Path) -> None:
    """What the documentation says to do."""
    with open_store(database) as store, postgres.database() as empty:
        store.claim()
        written = store.append(news(50), ("ann", "k", ["j"]))
        source, target = (url.replace("postgresql+psycopg", "postgresql") for url in (database, empty))
        dump = tmp_path / "dump"
        subprocess.run((programs() / "pg_dump", "--format=custom", f"--file={dump}", source), check=True)
        subprocess.run((programs() / "pg_restore", "--no-owner", f"--dbname={target}", dump), check=True)
        with open_store(empty) as restored:
            assert list(restored.records()) == written
            assert restored.append(news(1))[0].seq == 51
