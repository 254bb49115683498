"""kill -9 in the middle of writing: what was promised is there, and nothing is there by halves. On both engines."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from itertools import groupby
from pathlib import Path

import pytest

from easyscale.service.records import News
from easyscale.service.store import open_store

# Each batch of (batch, size) is told on stdout once its append has returned.
WRITER = """
import random, sys
from easyscale.service.records import News
from easyscale.service.store import open_store
where, seed, start = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
choose = random.Random(seed)
store = open_store(where)
batch = start
while True:
    size = choose.choice((1, 2, 5, 40, 300))
    news = [News(time=1.0, kind="job-told", body={"batch": batch, "size": size, "at": i}) for i in range(size)]
    records = store.append(news, ("ann", f"key-{batch}", [f"job-{batch}"]))
    print(batch, records[0].seq, flush=True)
    batch += 1
"""


def write_and_kill(where: str | Path, seed: int, start: int, told: int) -> dict[int, int]:
    """Batches whose append had returned, with the seq of their first record; killed some time after `told` of them."""
    with subprocess.Popen(
        (sys.executable, "-c", WRITER, str(where), str(seed), str(start)), stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout
        done: dict[int, int] = {}
        # Not right after a line, when it may do nothing: at a moment of its own.
        killer = threading.Timer(random.Random(seed).uniform(0.0, 0.05), writer.kill)
        for line in writer.stdout:
            if line.endswith("\n"):
                batch, seq = map(int, line.split())
                done[batch] = seq
            if len(done) == told:
                killer.start()
        killer.join()
    return done


@pytest.mark.slow
def test_a_killed_writer_leaves_what_it_was_told_is_safe_and_at_most_one_batch_more(where: str | Path) -> None:
    start, promised = 0, dict[int, int]()
    for seed in range(3):
        promised |= write_and_kill(where, seed, start, told=15 + seed)
        with open_store(where) as store:
            store.append([News(time=1.0, kind="job-told", body={"batch": -1, "size": 1, "at": 0})])
            records = [record for record in store.records() if record.body["batch"] >= 0]
            batches = {name: list(group) for name, group in groupby(records, key=lambda record: record.body["batch"])}
            more = set(batches) - set(promised)
            assert set(promised) <= set(batches), "what was accepted is lost"
            assert len(more) <= 1
            for name, group in batches.items():
                assert [record.body["at"] for record in group] == list(range(group[0].body["size"])), "half a batch"
                assert promised.get(name, group[0].seq) == group[0].seq
                assert store.used_key("ann", f"key-{name}") == [f"job-{name}"]
            start = max(batches) + 1
            assert store.used_key("ann", f"key-{start}") is None
            assert [record.seq for record in store.records()] == list(range(1, store.last() + 1))
            promised |= {name: batches[name][0].seq for name in more}  # one more for each kill is allowed


@pytest.mark.slow
def test_writers_in_several_processes_make_one_log(where: str | Path) -> None:
    code = """
import sys
from easyscale.service.records import News
from easyscale.service.store import open_store
store = open_store(sys.argv[1])
for batch in range(30):
    store.append([News(time=1.0, kind="job-told", body={"by": sys.argv[2], "batch": batch}) for _ in range(3)])
"""
    open_store(where).close()
    writers = [subprocess.Popen((sys.executable, "-c", code, str(where), name)) for name in "abc"]
    seen, after = [], 0
    with open_store(where) as store:
        running = True
        while running:
            running = any(writer.poll() is None for writer in writers)
            for record in store.records(after=after):
                seen.append(record)
                after = record.seq
            time.sleep(0.005)
        assert [writer.returncode for writer in writers] == [0, 0, 0]
        assert seen == list(store.records())
    assert [record.seq for record in seen] == list(range(1, 271))
    for name in "abc":
        assert [r.body["batch"] for r in seen if r.body["by"] == name] == [b for b in range(30) for _ in range(3)]
