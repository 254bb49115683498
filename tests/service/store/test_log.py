"""The contract of the log (`ports.Log`), on both engines."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from easyscale.core.errors import UsageError
from easyscale.service.errors import KeyUsedError, StoreError
from easyscale.service.ports import Log
from easyscale.service.records import News, Record
from easyscale.service.store import Store, open_store
from easyscale.service.store.store import PAGE


def news(*numbers: int, job: str | None = None) -> list[News]:
    return [News(time=1000.0 + number, kind="job-told", job=job, body={"number": number}) for number in numbers]


def numbers(records: list[Record]) -> list[int]:
    return [record.body["number"] for record in records]


def test_a_store_is_a_log(store: Store) -> None:
    log: Log = store
    assert log.last() == 0
    assert list(log.records()) == []


def test_what_is_appended_is_read_back_in_order_with_rising_numbers(store: Store) -> None:
    first = store.append(news(1, 2))
    second = store.append(news(3, job="a"))
    assert [record.seq for record in first + second] == [1, 2, 3]
    assert list(store.records()) == first + second
    assert second[0] == Record(seq=3, time=1003.0, kind="job-told", job="a", body={"number": 3})
    assert store.last() == 3


def test_it_is_still_there_after_opening_again(where: str | Path) -> None:
    with open_store(where) as store:
        written = store.append(news(1, 2), ("ann", "k", ["j1"]))
    with open_store(where) as store:
        assert list(store.records()) == written
        assert store.used_key("ann", "k") == ["j1"]
        assert [record.seq for record in store.append(news(3))] == [3]


def test_reading_goes_on_after_a_number_and_stops_at_a_limit(store: Store) -> None:
    store.append(news(*range(10)))
    assert numbers(list(store.records(after=4))) == [4, 5, 6, 7, 8, 9]
    assert numbers(list(store.records(after=4, limit=2))) == [4, 5]
    assert list(store.records(after=10)) == []
    assert list(store.records(limit=0)) == []


def test_the_newest_are_asked_for_and_come_the_oldest_first(store: Store) -> None:
    store.append(news(*range(10)))
    assert numbers(list(store.records(limit=3, newest=True))) == [7, 8, 9]
    assert numbers(list(store.records(after=8, limit=3, newest=True))) == [8, 9]
    assert numbers(list(store.records(newest=True))) == list(range(10))
    assert list(store.records(limit=0, newest=True)) == []


def test_a_jobs_records_are_found_among_others(store: Store) -> None:
    store.append([*news(1, 2, job="a"), *news(3, job="b"), *news(4), *news(5, 6, job="a")])
    assert numbers(list(store.records(job="a"))) == [1, 2, 5, 6]
    assert numbers(list(store.records(job="a", after=2, limit=1))) == [5]
    assert numbers(list(store.records(job="a", limit=3, newest=True))) == [2, 5, 6]
    assert list(store.records(job="nobody")) == []


def test_more_than_a_page_is_read_whole(store: Store) -> None:
    store.append(news(*range(2 * PAGE + 7)))
    assert numbers(list(store.records())) == list(range(2 * PAGE + 7))
    assert numbers(list(store.records(limit=PAGE + 1))) == list(range(PAGE + 1))
    assert numbers(list(store.records(limit=2 * PAGE))) == list(range(2 * PAGE))


def test_a_reader_that_stops_in_the_middle_holds_nobody_up(store: Store) -> None:
    store.append(news(*range(PAGE + 1)))
    reading = store.records()
    next(reading)
    store.append(news(-1))
    assert numbers(list(reading))[-1] == -1
    with store.engine.connect() as connection:
        assert not connection.in_transaction()


def test_nothing_to_append_writes_nothing(store: Store) -> None:
    assert store.append([]) == []
    assert store.last() == 0


def test_a_key_is_used_once_by_each_user(store: Store) -> None:
    store.append(news(1), ("ann", "k", ["j1", "j2"]))
    with pytest.raises(KeyUsedError) as refused:
        store.append(news(2), ("ann", "k", ["j3"]))
    assert refused.value.jobs == ["j1", "j2"]
    assert store.last() == 1, "what came with a used key is not written"
    store.append(news(3), ("bob", "k", ["j4"]))
    assert store.used_key("ann", "k") == ["j1", "j2"]
    assert store.used_key("bob", "k") == ["j4"]
    assert store.used_key("eve", "k") is None


def test_of_many_threads_with_one_key_one_wins(store: Store) -> None:
    outcomes: list[list[str]] = []

    def submit(number: int) -> None:
        try:
            store.append(news(number), ("ann", "k", [f"j{number}"]))
            outcomes.append([f"j{number}"])
        except KeyUsedError as used:
            outcomes.append(used.jobs)

    in_threads(submit, 8)
    assert len(outcomes) == 8
    assert len({tuple(jobs) for jobs in outcomes}) == 1, "the others are told of the winner's jobs"
    assert store.last() == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, {1, 2}, b"bytes", object()])
def test_a_body_that_is_not_json_is_refused_and_nothing_of_its_batch_is_written(store: Store, wrong: object) -> None:
    with pytest.raises(UsageError, match="not JSON") as refused:
        store.append([*news(1), News(time=1.0, kind="job-told", body={"deep": [{"x": wrong}]})], ("ann", "k", ["j"]))
    assert refused.value.why
    assert refused.value.now
    assert store.last() == 0
    assert store.used_key("ann", "k") is None


@pytest.mark.parametrize("time", [math.nan, math.inf])
def test_a_time_that_is_none_is_refused(store: Store, time: float) -> None:
    with pytest.raises(UsageError, match="time"):
        store.append([News(time=time, kind="job-told")])


@pytest.mark.parametrize("word", ["a\x00b", "\ud800"])
def test_words_that_one_engine_could_not_hold_are_refused_by_both(store: Store, word: str) -> None:
    with pytest.raises(UsageError, match="not text"):
        store.append([News(time=1.0, kind="job-told", job=word)])
    with pytest.raises(UsageError, match="not text"):
        store.append(news(1), ("ann", word, ["j"]))
    with pytest.raises(UsageError, match="not text"):
        store.used_key("ann", word)
    assert store.last() == 0


texts = st.text(st.characters(codec=None))  # NULs and halves of surrogate pairs too: in a body they are allowed
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies=st.lists(st.dictionaries(texts, values, max_size=4), min_size=1, max_size=3))
def test_any_json_body_comes_back_as_it_was(store: Store, bodies: list[dict[str, object]]) -> None:
    before = store.last()
    written = store.append([News(time=2.5, kind="job-told", body=body) for body in bodies])
    read = list(store.records(after=before))
    assert read == written
    # Text for text: -0.0 is not 0.0, and 1 is not True.
    assert [json.dumps(record.body) for record in read] == [json.dumps(body) for body in bodies]


def test_a_tuple_in_a_body_is_a_list_for_the_writer_as_for_the_reader(store: Store) -> None:
    [written] = store.append([News(time=1.0, kind="decided", body={"changes": (("j", 1),)})])
    assert written.body == {"changes": [["j", 1]]}
    assert list(store.records()) == [written]


def in_threads(work, count: int) -> None:  # type: ignore[no-untyped-def]
    problems: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_a_reader_that_polls_misses_nothing_of_writers_in_two_services(where: str | Path) -> None:
    """Two stores on one database stand for two processes: nothing is shared between them."""
    batches, size, done = 20, 7, threading.Event()
    seen: list[Record] = []

    with open_store(where) as one, open_store(where) as other:

        def write(number: int) -> None:
            for batch in range(batches):
                store = (one, other)[number % 2]
                store.append([News(time=1.0, kind="job-told", body={"by": [number, batch, i]}) for i in range(size)])

        def read() -> None:
            after = 0
            while True:
                last_round = done.is_set()
                for record in other.records(after=after):
                    seen.append(record)
                    after = record.seq
                if last_round:
                    return

        reader = threading.Thread(target=read)
        reader.start()
        try:
            in_threads(write, 4)
        finally:
            done.set()
            reader.join()
        assert seen == list(one.records())
    assert [record.seq for record in seen] == list(range(1, 4 * batches * size + 1))
    assert {tuple(record.body["by"]) for record in seen} == {
        (n, b, i) for n in range(4) for b in range(batches) for i in range(size)
    }
    for a, b in pairwise(seen):  # a batch is together
        if a.body["by"][2] < size - 1:
            assert b.body["by"] == [*a.body["by"][:2], a.body["by"][2] + 1]


def test_a_failure_in_the_middle_of_a_batch_leaves_nothing_of_it(store: Store) -> None:
    from sqlalchemy import text

    store.append(news(1))
    with store.write() as connection:
        connection.execute(text("INSERT INTO keys VALUES ('ann', 'k', 1.0, '[\"j\"]')"))
    with pytest.raises(KeyUsedError):
        store.append(news(2, 3), ("ann", "k", ["x"]))
    with contextlib.suppress(ZeroDivisionError), store.write() as connection:
        connection.execute(text("INSERT INTO records VALUES (2, 1.0, 'half', NULL, '{}')"))
        _ = 1 / 0
    assert numbers(list(store.records())) == [1]
    assert [record.seq for record in store.append(news(2))] == [2]


def test_a_record_whose_body_was_damaged_is_an_error_with_what_to_do(store: Store) -> None:
    from sqlalchemy import text

    store.append(news(1, 2))
    with store.write() as connection:
        connection.execute(text("UPDATE records SET body = '{\"numb' WHERE seq = 2"))
    with pytest.raises(StoreError, match="record 2") as problem:
        list(store.records())
    assert "restore" in problem.value.now or "backup" in problem.value.now


def test_commits_wait_for_the_disk(store: Store) -> None:
    from sqlalchemy import text

    with store.write() as connection:
        if store.place.file:
            assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
            assert connection.execute(text("PRAGMA synchronous")).scalar_one() == 2
            assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1
        else:
            assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
            assert connection.execute(text("SHOW transaction_isolation")).scalar_one() == "read committed"
