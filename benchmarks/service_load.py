"""The service under load: 10,000 jobs in the queue, 1,000 devices, 200 clients, 200 event streams.

    python benchmarks/service_load.py [--jobs 10000] [--devices v100:500,p100:250,t4:250] [--clients 200] [--seconds 30]

The masters are numbers (`easyscale.testing.FakeFleet`), all else is real: HTTP, SQLite, the scheduler, the loop, in a
process of its own. Jobs come by arrays and one by one, over the API. Each client asks every two seconds, for a page of
the list, a job, the cluster, or submits one; `no pause` is the same without waiting, to see how many it can answer. At
the end the service is killed and started again, and its log is replayed. Times are by the clock, on a machine that may
be busy (its load is noted); processor times stand beside them. Writes benchmarks/results/service-load.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts.clients import Caller, Listener
from parts.fake_service import FakeService

from easyscale.service.chronicle import replay
from easyscale.service.reading import tells
from easyscale.service.store import open_store

RESULTS = Path(__file__).parent / "results" / "service-load.json"
ARRAY = 1000
SINGLES = 0.1  # of the jobs are submitted one by one
PAUSE = 2.0  # seconds between two questions of a client, in the mean
ASKED = (("list", 0.4), ("job", 0.3), ("cluster", 0.2), ("submit", 0.1))
SIZES = (1, 1, 1, 2, 2, 4, 8)
SETTLE = 15.0  # seconds for the first starts
Row = dict[str, Any]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    if not values:
        return {"count": 0}
    ranked = sorted(value * 1000 for value in values)
    at = {"p50": 0.5, "p99": 0.99}
    return {
        "count": len(ranked), "max": round(ranked[-1], 1),
        **{name: round(ranked[min(len(ranked) - 1, int(len(ranked) * part))], 1) for name, part in at.items()},
    }  # fmt: skip


@dataclass
class Load:
    service: FakeService
    clients: int
    seconds: float
    rows: list[Row] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(6))

    def note(self, what: str, **figures: Any) -> None:
        self.rows.append({"what": what, **figures})
        print(f"{what:48}", "  ".join(f"{name} {value}" for name, value in figures.items()), flush=True)

    def spec(self, **more: Any) -> Row:
        return {
            "name": "load", "module": "nothing", "workdir": str(self.service.folder / "work"),
            "ests": self.chance.choice(SIZES), "steps": self.chance.randint(600, 12_000), **more,
        }  # fmt: skip

    def caller(self, number: int) -> Caller:
        return Caller(self.service.url, self.token(number))

    def token(self, number: int) -> str:
        return self.service.tokens[number % len(self.service.tokens)]

    # ------------------------------------------------------------------------------------ what is done

    async def fill(self, jobs: int) -> None:
        singles = int(jobs * SINGLES)
        sizes = [ARRAY] * ((jobs - singles) // ARRAY)
        arrays = [self.spec(array=size) for size in [*sizes, (jobs - singles) - sum(sizes)] if size]
        for what, specs in (("arrays", arrays), ("one by one", [self.spec() for _ in range(singles)])):
            before, began, took = self.service.use(), time.perf_counter(), list[float]()
            count = sum(spec.get("array", 1) for spec in specs)
            await asyncio.gather(*(self._send(n, specs, took) for n in range(20 if what != "arrays" else 1)))
            seconds, processor = time.perf_counter() - began, self.service.use()["cpu_s"] - before["cpu_s"]
            self.note(
                f"submit {count:,} jobs, {what}", per_s=round(count / seconds),
                cpu_ms_a_job=round(processor / max(1, count) * 1000, 2), **percentiles(took),
            )  # fmt: skip

    async def _send(self, number: int, specs: list[Row], took: list[float]) -> None:
        caller = self.caller(number * 7)
        while specs:
            spec, began = specs.pop(), time.perf_counter()
            status, body = await caller.ask("/jobs", spec)
            took.append(time.perf_counter() - began)
            assert status == 201, body
            self.jobs += json.loads(body)["jobs"]
        caller.close()

    async def poll(self, what: str, pause: float, seconds: float) -> None:
        """Each client asks on its own; nobody waits for the others."""
        took: dict[str, list[float]] = {name: [] for name, _ in ASKED}
        began, before, end = time.time(), self.service.use(), time.monotonic() + seconds
        own = time.process_time()
        await asyncio.gather(*(self._ask(n, pause, end, took) for n in range(self.clients)))
        own = time.process_time() - own
        wall, processor = time.time() - began, self.service.use()["cpu_s"] - before["cpu_s"]
        for name, times in took.items():
            self.note(f"{what}: {name}", **percentiles(times))
        count = sum(map(len, took.values()))
        self.note(
            f"{what}: all", answers=count, per_s=round(count / wall), cpu_of_service=round(processor / wall, 2),
            cpu_ms_an_answer=round(processor / count * 1000, 1), cpu_of_clients=round(own / wall, 2),
        )  # fmt: skip
        self._loop(what, began)

    async def _ask(self, number: int, pause: float, end: float, took: dict[str, list[float]]) -> None:
        caller = self.caller(number)
        chance, names, weights = random.Random(number), *zip(*ASKED, strict=True)
        await asyncio.sleep(chance.uniform(0.0, pause))
        while time.monotonic() < end:
            name = chance.choices(names, weights)[0]
            began = time.perf_counter()
            path = {"job": f"/jobs/{chance.choice(self.jobs)}", "cluster": "/cluster"}.get(name, "/jobs")
            status, body = await caller.ask(path, self.spec() if name == "submit" else None)
            took[name].append(time.perf_counter() - began)
            assert status in (200, 201), body
            await asyncio.sleep(chance.uniform(0.5, 1.5) * pause)
        caller.close()

    async def stream(self, count: int, seconds: float) -> None:
        """All of them get all records from one moment on, each once and in order."""
        with closing(open_store(self.service.folder, existing=True)) as store:
            after, began, before = store.last(), time.time(), self.service.use()
            found = [Listener(self.service.url, self.token(n), after) for n in range(count)]
            tasks = [asyncio.create_task(one.listen()) for one in found]
            await asyncio.sleep(seconds)
            processor, last, ends = self.service.use()["cpu_s"] - before["cpu_s"], store.last(), time.monotonic() + 30
            expected = [record.seq for record in store.records(after) if tells(record) and record.seq <= last]
        while time.monotonic() < ends and any(not one.seqs or one.seqs[-1] < expected[-1] for one in found):
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        whole = sum(one.seqs[: len(expected)] == expected for one in found)
        self.note(
            f"{count} event streams", records=len(expected), whole=whole, events_per_s=round(
                sum(len(one.seqs) for one in found) / seconds), cpu_of_service=round(processor / seconds, 2),
        )  # fmt: skip
        self.note("from a record to its event", **percentiles([delay for one in found for delay in one.delays]))
        self._loop("with event streams", began)
        assert whole == count, f"{count - whole} streams missed something"

    def _loop(self, when: str, since: float) -> None:
        for name in ("decision", "round", "garbage"):
            times = self.service.times(name, since)
            figures = percentiles([wall for wall, _ in times])
            processor = percentiles([processor for _, processor in times])
            self.note(f"{when}: {name}", **figures, **{f"cpu_{k}": v for k, v in processor.items() if k != "count"})

    def memory(self, when: str) -> None:
        use = self.service.use()
        self.note(f"process {when}", rss_mb=round(use["rss_mb"]), files=use["files"], threads=use["threads"])


async def measure(load: Load, jobs: int) -> None:
    load.memory("at the start")
    began = time.time()
    await load.fill(jobs)
    load.memory("with the queue")
    await asyncio.sleep(SETTLE)
    load._loop("while the queue fills and jobs start", began)
    began = time.time()
    await asyncio.sleep(load.seconds / 2)
    load._loop("undisturbed", began)
    await load.poll(f"{load.clients} clients", PAUSE, load.seconds)
    await load.poll(f"{load.clients} clients, no pause", 0.0, load.seconds / 3)
    await load.stream(min(200, load.clients), load.seconds / 2)
    load.memory("after all that")


def restart(load: Load) -> None:
    service = load.service
    service.kill()
    began = time.time()
    seconds = service.start()
    load.note("killed, started again: ready", s=round(seconds, 2), **{k: round(v, 2) for k, v in service.fold.items()})
    time.sleep(SETTLE)
    load._loop("after the restart", began)
    load.memory("after the restart")
    load.note("stopped", s=round(service.stop(), 2))
    with closing(open_store(service.folder, existing=True)) as store:
        began, records = time.process_time(), store.last()
        decisions, different = replay(store.records())
    twice = service.twice()
    load.note(
        "the log, replayed", records=records, decisions=decisions, different=len(different), devices_twice=twice,
        cpu_s=round(time.process_time() - began, 1), file_mb=round(size_of(service.folder) / 2**20),
    )  # fmt: skip
    assert not different
    assert not twice


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("easyscale.db*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--devices", default="v100:500,p100:250,t4:250")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a measurement")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="easyscale-load-") as folder,
        FakeService(Path(folder) / "data", options.devices) as service,
    ):
        load = Load(service, options.clients, options.seconds)
        busy = os.getloadavg()
        asyncio.run(measure(load, options.jobs))
        restart(load)
    machine = {
        "cores": os.cpu_count(), "python": platform.python_version(), "load_before": [round(one, 1) for one in busy],
        "load_after": [round(one, 1) for one in os.getloadavg()],
    }  # fmt: skip
    asked = {"jobs": options.jobs, "devices": options.devices, "clients": options.clients}
    RESULTS.write_text(json.dumps({"machine": machine, **asked, "rows": load.rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
