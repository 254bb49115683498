"""What can go wrong with a store, and what its user reads then: three parts, and no password."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, text
from tests.service.postgres import USER, Server

from easyscale.service.errors import StoreError
from easyscale.service.records import News
from easyscale.service.store import Store, open_store

NOBODY = 65534
SECRET = "hunter2" + "secret"  # not in one piece: a traceback shows lines of this file


def news(count: int, size: int = 10) -> list[News]:
    return [News(time=1.0, kind="job-told", job="j", body={"text": "x" * size}) for _ in range(count)]


def assert_three_parts(error: StoreError, *words: str) -> None:
    assert error.what.endswith(".")
    assert error.why.endswith(".")
    assert error.now
    for word in words:
        assert word in str(error)


# ------------------------------------------------------------------------------------------ the disk


def test_a_full_disk_is_named_and_nothing_half_is_written(tmp_path: Path) -> None:
    with open_store(tmp_path / "data") as store:
        written = store.append(news(10), ("ann", "k", ["j"]))
        with limited(store):
            with pytest.raises(StoreError, match="disk is full") as problem:
                store.append(news(2000, 500), ("ann", "k2", ["j2"]))
            assert_three_parts(problem.value, "cannot be written", "Make room")
            assert list(store.records()) == written
            assert store.used_key("ann", "k2") is None
        assert store.append(news(2000, 500), ("ann", "k2", ["j2"]))[0].seq == 11
    with open_store(tmp_path / "data") as store:
        assert store.last() == 2010


@contextlib.contextmanager
def limited(store: Store) -> Iterator[None]:
    """The file may grow no more: SQLite's own error for a full disk."""

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={most}")

    with store.read() as connection:
        most = connection.execute(text("PRAGMA page_count")).scalar_one() + 2
    event.listen(store.engine, "checkout", limit)
    yield
    event.remove(store.engine, "checkout", limit)
    most = 1_000_000_000
    with store.engine.connect() as connection:
        connection.execute(text(f"PRAGMA max_page_count={most}"))


ON_A_SMALL_DISK = """
import sys
from pathlib import Path
from easyscale.service.errors import StoreError
from easyscale.service.records import News
from easyscale.service.store import open_store
folder = Path(sys.argv[1])
store = open_store(folder / "data")
done = 0
try:
    while True:
        store.append([News(time=1.0, kind="job-told", body={"text": "x" * 200}) for _ in range(50)])
        done += 50
except StoreError as error:
    assert "disk is full" in error.why, error
    assert store.last() == done, (store.last(), done)
(folder / "ballast").unlink()
store.append([News(time=2.0, kind="job-told")])
store.close()
with open_store(folder / "data") as store:
    assert [record.seq for record in store.records()] == list(range(1, done + 2))
    assert done
print("survived")
"""


def test_a_disk_that_runs_full_and_gets_room_again_loses_nothing(tmp_path: Path) -> None:
    """On a real small disk, in a mount namespace of its own."""
    make = 'mount -t tmpfs -o size=4m small "$1" && dd if=/dev/zero of="$1/ballast" bs=1M count=2 2>/dev/null'
    enter = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-c")
    if shutil.which("unshare") is None or subprocess.run((*enter, make, "-", tmp_path), check=False).returncode:
        pytest.skip("no right to mount a small disk (CAP_SYS_ADMIN, or user namespaces)")
    run = f'{make} && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        (*enter, run, "-", tmp_path, sys.executable, ON_A_SMALL_DISK), capture_output=True, text=True, check=False
    )
    assert done.stdout == "survived\n", done.stderr


def test_a_full_disk_of_the_server_is_named_and_nothing_half_is_written(database: str) -> None:
    with open_store(database) as store:
        written = store.append(news(3))
        with store.write() as connection:  # the server's own error, in the middle of a batch
            fail = "RAISE EXCEPTION 'no space' USING ERRCODE = '53100'"
            raises = f"BEGIN IF NEW.seq = 7 THEN {fail}; END IF; RETURN NEW; END"
            connection.execute(text(f"CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ {raises} $$"))
            each = "BEFORE INSERT ON records FOR EACH ROW EXECUTE FUNCTION full_disk()"
            connection.execute(text(f"CREATE TRIGGER full_disk {each}"))
        with pytest.raises(StoreError, match="disk is full") as problem:
            store.append(news(10), ("ann", "k", ["j"]))
        assert_three_parts(problem.value, "cannot be written", "Make room")
        assert list(store.records()) == written
        assert store.used_key("ann", "k") is None
        with store.write() as connection:
            connection.execute(text("DROP TRIGGER full_disk ON records"))
        assert [record.seq for record in store.append(news(2))] == [4, 5]


# ------------------------------------------------------------------------------------------ files and folders


@pytest.mark.parametrize("damage", ["header", "nonsense", "middle"])
def test_a_damaged_file_is_named_with_the_way_back(tmp_path: Path, damage: str) -> None:
    with open_store(tmp_path / "data") as store:
        store.append(news(2000, 100))
        file = store.place.file
        assert file
        with store.engine.connect() as connection:
            connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    raw = bytearray(file.read_bytes())
    if damage == "header":
        raw[:100] = bytes(100)
    elif damage == "nonsense":
        raw = bytearray(b"this is not a database at all, but long enough to look like one" * 100)
    else:
        raw[4096 * 10 :] = b"\xa5" * (len(raw) - 4096 * 10)
    file.write_bytes(raw)
    with pytest.raises(StoreError, match="damaged") as problem:
        read_all(tmp_path / "data")
    assert_three_parts(problem.value, str(file), "store restore")


def read_all(folder: Path) -> None:
    with open_store(folder) as store:
        list(store.records())


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere; the tests must see what others see."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    open_store(tmp_path / "warm").close()  # loads what is needed while we may still read it
    (tmp_path / "shut").mkdir(mode=0o500)
    with unprivileged(), pytest.raises(StoreError, match="cannot be") as problem:
        open_store(tmp_path / "shut" / "data")
    assert_three_parts(problem.value, str(tmp_path / "shut"), "ermission denied", "--data-dir")


def test_a_file_that_cannot_be_written_is_named() -> None:
    folder = Path("/tmp") / f"es-store-{os.getpid()}"  # pytest's own folders cannot be entered by others
    try:
        folder.mkdir(mode=0o755)
        open_store(folder / "data").close()
        (folder / "data").chmod(0o555)
        (folder / "data" / "easyscale.db").chmod(0o444)
        for existing in (False, True):
            with unprivileged(), pytest.raises(StoreError, match="cannot be") as problem:
                open_store(folder / "data", existing=existing)
            assert_three_parts(problem.value, "easyscale.db", "--data-dir")
    finally:
        shutil.rmtree(folder)


def test_a_data_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StoreError, match="it is a file"):
        open_store(tmp_path / "data")
    with pytest.raises(StoreError, match="cannot be made"):
        open_store(tmp_path / "data" / "below")


def test_a_data_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    with pytest.raises(StoreError, match="not safe") as problem:
        open_store(tmp_path / "data")
    assert "chmod 700" in problem.value.now


def test_only_the_owner_may_read_what_is_stored(tmp_path: Path) -> None:
    with open_store(tmp_path / "new" / "data") as store:
        store.claim()
        store.append(news(1))
        folder = tmp_path / "new" / "data"
        assert folder.stat().st_mode & 0o777 == 0o700
        modes = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert modes == dict.fromkeys(("easyscale.db", "easyscale.db-wal", "easyscale.db-shm", "easyscale.lock"), 0o600)


def test_a_store_that_must_be_there_is_not_made(tmp_path: Path, database: str) -> None:
    with pytest.raises(StoreError, match="no store"):
        open_store(tmp_path / "data", existing=True)
    assert not (tmp_path / "data").exists()
    with pytest.raises(StoreError, match="no store"):
        open_store(database, existing=True)


def test_names_with_odd_signs_are_fine(tmp_path: Path) -> None:
    with open_store(tmp_path / "a b%20?c#d'ü") as store:
        store.append(news(1))
        assert store.place.file
        assert store.place.file.is_file()


# ------------------------------------------------------------------------------------------ the server


def test_a_wrong_password_is_said_without_it(postgres: Server, database: str) -> None:
    wrong = database.replace(postgres.password, SECRET)
    with pytest.raises(StoreError, match="password authentication failed") as problem:
        open_store(wrong)
    assert_three_parts(problem.value, USER, "pg_hba.conf")
    assert SECRET not in "".join(traceback.format_exception(problem.value))


def test_a_server_that_is_not_there_is_said_without_the_password() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, and nobody listens
        port = free.getsockname()[1]
        with pytest.raises(StoreError, match="cannot be reached") as problem:
            open_store(f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:{port}/db")
    assert_three_parts(problem.value, f"postgresql://ann@127.0.0.1:{port}/db", "server runs")
    assert SECRET not in "".join(traceback.format_exception(problem.value))


def test_a_database_that_is_not_there_is_named(postgres: Server) -> None:
    with pytest.raises(StoreError, match="does not exist") as problem:
        open_store(postgres.url("nothing"))
    assert_three_parts(problem.value, "createdb")
    assert postgres.password not in str(problem.value)


@pytest.mark.parametrize(
    "url", ["postgresql://ann:hunter2:x@y@host:hunter2/db", "postgresql://ann:hunter2@host:5432x/db", "://hunter2"]
)
def test_a_url_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(StoreError, match="cannot be read") as problem:
        open_store(url)
    assert_three_parts(problem.value, "%40")
    assert "hunter2" not in "".join(traceback.format_exception(problem.value))


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/d", "sqlite:///x.db", "https://u:hunter2@h/d"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="cannot be used") as problem:
        open_store(url)
    assert "hunter2" not in str(problem.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_the_usual_forms_of_the_url_are_understood(postgres: Server, database: str, scheme: str) -> None:
    with open_store(database.replace("postgresql+psycopg", scheme)) as store:
        store.append(news(1))
        assert postgres.password not in store.place.name


def test_a_password_among_the_options_of_the_url_is_kept_out_of_messages_too(postgres: Server, database: str) -> None:
    plain = database.replace(f":{postgres.password}@", "@")
    with open_store(f"{plain}&password={postgres.password}") as store:
        assert postgres.password not in store.place.name
    with pytest.raises(StoreError, match="authentication failed") as problem:
        open_store(f"{plain}&password={SECRET}")
    assert SECRET not in "".join(traceback.format_exception(problem.value))


def test_a_missing_driver_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match="driver is not installed") as problem:
        open_store("postgresql://ann:hunter2@127.0.0.1/db")
    assert "easyscale-torch[postgres]" in problem.value.now


def test_a_server_that_does_not_wait_for_its_disk_is_made_to(database: str) -> None:
    with open_store(database) as store, store.write() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar_one()
        connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    try:
        with open_store(database) as store, store.read() as connection:
            assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
    finally:
        with open_store(database) as store, store.write() as connection:
            connection.execute(text(f"ALTER DATABASE {name} RESET synchronous_commit"))
