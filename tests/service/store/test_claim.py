"""One service at a time, on both engines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.service.postgres import Server

from easyscale.service.errors import StoreError
from easyscale.service.records import News
from easyscale.service.store import Store, open_store

HOLD = """
import sys, time
from easyscale.service.store import open_store
store = open_store(sys.argv[1])
store.claim()
print("claimed", flush=True)
time.sleep(600)
"""


@contextmanager
def another_service(where: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen((sys.executable, "-c", HOLD, str(where)), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stdout.readline() == "claimed\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_service_is_refused_until_the_first_is_killed(where: str | Path) -> None:
    with open_store(where) as store, another_service(where) as other:
        with pytest.raises(StoreError, match="in use") as refused:
            store.claim()
        assert f"process {other.pid} " in refused.value.why
        assert "stop that one first" in refused.value.now
        other.send_signal(signal.SIGKILL)
        other.wait()
        claim_soon(store)


def claim_soon(store: Store) -> None:
    """PostgreSQL needs a moment to see that a client is gone."""
    for _ in range(200):
        try:
            return store.claim()
        except StoreError:
            time.sleep(0.05)
    return store.claim()


def test_of_two_stores_in_one_process_one_is_the_service(where: str | Path) -> None:
    with open_store(where) as one, open_store(where) as two:
        one.claim()
        one.claim()
        with pytest.raises(StoreError, match="in use"):
            two.claim()
        with pytest.raises(StoreError, match="in use"):
            two.claim()
        assert len(one.append([News(time=1.0, kind="service-started")])) == 1
        one.close()
        two.claim()


def test_others_may_read_and_count_while_a_service_runs(where: str | Path) -> None:
    with open_store(where) as store, another_service(where):
        assert store.counts()["records"] == 0


def test_a_service_that_lost_its_claim_cannot_write_any_more(where: str | Path) -> None:
    """As after a break of the network: it does not know yet that another has the store."""
    with open_store(where) as old, open_store(where) as new:
        old.claim()
        old.append([News(time=1.0, kind="service-started")])
        assert old._claim is not None
        old._claim.release()
        new.claim()
        with pytest.raises(StoreError, match="lost the store") as refused:
            old.append([News(time=2.0, kind="job-told")])
        assert "stop this service" in refused.value.now
        with pytest.raises(StoreError):
            old.claim()
        assert new.last() == 1
        new.append([News(time=3.0, kind="job-told")])


def test_a_forked_child_does_not_keep_the_claim(tmp_path: Path) -> None:
    """A master that outlives the service must not keep the next service out."""
    code = """
import os, sys, time
from easyscale.service.store import open_store
store = open_store(sys.argv[1])
store.claim()
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
os._exit(0)
"""
    done = subprocess.Popen((sys.executable, "-c", code, str(tmp_path / "data")), stdout=subprocess.PIPE, text=True)
    assert done.stdout
    child = int(done.stdout.readline())
    try:
        done.wait()
        with open_store(tmp_path / "data") as store:
            store.claim()
    finally:
        os.kill(child, signal.SIGKILL)
        done.stdout.close()


def test_a_claim_outlives_a_restart_of_the_database_server(postgres: Server, database: str) -> None:
    with open_store(database) as store, open_store(database) as other:
        store.claim()
        store.append([News(time=1.0, kind="service-started")])
        postgres.stop()
        with pytest.raises(StoreError, match="cannot be reached") as problem:
            store.append([News(time=2.0, kind="job-told")])
        assert "server runs" in problem.value.now
        postgres.start()
        store.append([News(time=3.0, kind="job-told")])
        store.claim()
        with pytest.raises(StoreError, match="in use"):
            other.claim()
        assert [record.time for record in store.records()] == [1.0, 3.0]


def test_the_lock_of_a_claim_is_in_the_server_alone(database: str) -> None:
    with open_store(database) as store:
        store.claim()
        with store.read() as connection:
            held = connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")).scalar_one()
        assert held == 1
        store.append([News(time=1.0, kind="job-told")])
        with store.read() as connection:
            held = connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")).scalar_one()
        assert held == 1, "the lock of an append ends with it"
