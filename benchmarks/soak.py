"""The service for half an hour without a pause: does anything grow that should not?

    python benchmarks/soak.py [--minutes 30]      (`make soak`, MINUTES=N)

The whole service in a process of its own (`parts/fake_service.py`): jobs come and end all the time, clients ask, event
streams open and close, devices are drained and come back, and in the middle the service is killed and started again.
Every ten seconds its memory, open files, threads and tables are looked at. It fails (exit code 1) if after a warm-up
of a fifth of the time, and again after the restart, something has grown by more than its bound. What may grow is what
is kept of each job that has ended (`A_JOB`, in memory, so that the list and the page of a job can show it) and of each
record (on the disk). Writes benchmarks/results/soak.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts.clients import Caller, Listener
from parts.fake_service import FakeService

from easyscale.service.chronicle import replay
from easyscale.service.store import open_store

RESULTS = Path(__file__).parent / "results" / "soak.json"
DEVICES = "v100:40,p100:20"
EVERY = 10.0  # seconds between two looks
JOBS_A_SECOND = 2.0
CLIENTS, STREAMS = 20, 20
# By how much each may be more at the end of a stretch than at its beginning, both as medians of some looks.
BOUNDS = {"rss_mb": 30.0, "files": 30.0, "threads": 20.0, "queue": 400.0}
A_JOB = 12.0 / 1024  # MB that a job may cost, on top of the bound
Row = dict[str, Any]


@dataclass
class Soak:
    service: FakeService
    seconds: float
    rows: list[Row] = field(default_factory=list)
    known: list[str] = field(default_factory=list)  # the last jobs
    submitted: int = 0
    answers: int = 0
    events: int = 0
    refused: list[str] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(30))
    ends: float = 0.0
    away: bool = False  # the service is being started again

    async def run(self) -> None:
        self.ends = time.monotonic() + self.seconds
        tasks = [self.submit(), self.look(), self.restart(), self.drain()]
        tasks += [self.ask(n) for n in range(CLIENTS)]
        tasks += [self.hear(n) for n in range(STREAMS)]
        await asyncio.gather(*tasks)

    def goes_on(self) -> bool:
        return time.monotonic() < self.ends

    def caller(self, number: int) -> Caller:
        return Caller(self.service.url, self.service.tokens[number * 7 % len(self.service.tokens)])

    async def call(self, caller: Caller, path: str, body: Row | None = None) -> Row | None:
        """None: the service is away, which it is once, on purpose."""
        try:
            status, data = await caller.ask(path, body)
        except (OSError, asyncio.IncompleteReadError) as problem:
            if not self.away:
                self.refused.append(repr(problem))
            await asyncio.sleep(1.0)
            return None
        self.answers += 1
        if status >= 400 and status not in (404, 409):  # a job that has ended, a device that is drained already
            self.refused.append(f"{path}: {status} {data[:200]!r}")
        found: Row = json.loads(data)
        return found if status < 400 else None

    # ------------------------------------------------------------------------------------ what goes on

    async def submit(self) -> None:
        caller = self.caller(0)
        while self.goes_on():
            spec: Row = {
                "name": "soak", "module": "nothing", "workdir": str(self.service.folder / "work"),
                "ests": self.chance.choice((1, 1, 2, 4)), "steps": self.chance.randint(10, 100),
            }  # fmt: skip
            if self.chance.random() < 0.05:
                spec["array"] = 5
            found = await self.call(caller, "/jobs", spec)
            if found is not None:
                self.submitted += len(found["jobs"])
                self.known = [*self.known[-200:], *found["jobs"]]
            await asyncio.sleep(self.chance.expovariate(JOBS_A_SECOND))
        caller.close()

    async def ask(self, number: int) -> None:
        chance, caller = random.Random(number), self.caller(number)
        while self.goes_on():
            job = chance.choice(self.known) if self.known else "nobody"
            path = chance.choice(("/jobs", "/cluster", f"/jobs/{job}", f"/jobs/{job}/records", "/records?newest=true",
                                  "/jobs?state=running", "/timeline", "/info"))  # fmt: skip
            what, body = chance.random(), None
            if what < 0.05:
                path, body = f"/jobs/{job}/{chance.choice(('pause', 'resume', 'resume', 'cancel'))}", {}
            await self.call(caller, path, body)
            if chance.random() < 0.1:
                caller.close()
            await asyncio.sleep(chance.uniform(0.5, 3.0))
        caller.close()

    async def hear(self, number: int) -> None:
        """A stream for a while, then another one."""
        chance = random.Random(number)
        while self.goes_on():
            listener = Listener(self.service.url, self.service.tokens[number * 9 % len(self.service.tokens)], 2**50)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(min(chance.uniform(2.0, 60.0), max(0.1, self.ends - time.monotonic()))):
                    await listener.listen()
            self.events += len(listener.seqs)
            assert listener.seqs == sorted(set(listener.seqs)), "an event came twice or late"
            await asyncio.sleep(1.0)

    async def drain(self) -> None:
        caller = self.caller(1)
        while self.goes_on():
            name = f"p100-{self.chance.randrange(20)}"
            await self.call(caller, f"/devices/{name}/drain", {})
            await asyncio.sleep(min(20.0, max(0.1, self.ends - time.monotonic())))
            await self.call(caller, f"/devices/{name}/undrain", {})
        caller.close()

    async def restart(self) -> None:
        await asyncio.sleep(self.seconds / 2)
        self.away = True
        self.service.kill()
        await asyncio.to_thread(self.service.start)
        self.away = False

    async def look(self) -> None:
        began = time.monotonic()
        with closing(open_store(self.service.folder, existing=True)) as store:
            while self.goes_on():
                if not self.away:
                    with contextlib.suppress(OSError):  # it is being killed
                        tables = store.counts()
                        self.rows.append({
                            "s": round(time.monotonic() - began), "stretch": time.monotonic() > self.ends -
                            self.seconds / 2, **self.service.use(), **tables, "jobs": self.submitted,
                            "queue": await self.queue(), "disk_mb": self.disk(),
                        })  # fmt: skip
                        self.show(self.rows[-1])
                await asyncio.sleep(EVERY)

    async def queue(self) -> int:
        caller = self.caller(2)
        found = await self.call(caller, "/cluster")
        caller.close()
        return 0 if found is None else int(found["queued"])

    def disk(self) -> float:
        return sum(path.stat().st_size for path in self.service.folder.glob("easyscale.db*")) / 2**20

    def show(self, row: Row) -> None:
        if len(self.rows) % 20 == 1:
            print("     s   rss MB  files threads   cpu s    jobs  queued  records  disk MB", flush=True)
        print(
            f"{row['s']:6} {row['rss_mb']:8.1f} {row['files']:6} {row['threads']:7} {row['cpu_s']:7.1f} "
            f"{row['jobs']:7} {row['queue']:7} {row['records']:8} {row['disk_mb']:8.1f}", flush=True,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ what came of it

    def growth(self) -> list[Row]:
        """Of each stretch, before and after the restart: the median of its last looks beside that of its first ones."""
        found = []
        for stretch in (False, True):
            rows = [row for row in self.rows if row["stretch"] == stretch]
            rows = rows[len(rows) * 2 // 5 :]  # a fifth of the whole time is warm-up
            few = max(1, len(rows) // 4)
            if len(rows) < 2:
                continue
            for name, bound in BOUNDS.items():
                first = statistics.median(row[name] for row in rows[:few])
                last = statistics.median(row[name] for row in rows[-few:])
                jobs = rows[-1]["jobs"] - rows[0]["jobs"]
                allowed = bound + (A_JOB * jobs if name == "rss_mb" else 0.0)
                found.append({
                    "stretch": "after the restart" if stretch else "before the restart", "what": name,
                    "first": round(first, 1), "last": round(last, 1), "allowed": round(allowed, 1), "jobs": jobs,
                    "ok": last - first <= allowed,
                })  # fmt: skip
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args()
    busy = os.getloadavg()
    with (
        tempfile.TemporaryDirectory(prefix="easyscale-soak-") as folder,
        FakeService(Path(folder) / "data", DEVICES) as service,
    ):
        soak = Soak(service, options.minutes * 60)
        asyncio.run(soak.run())
        service.stop()
        said = service.said()
        with closing(open_store(service.folder, existing=True)) as store:
            decisions, different = replay(store.records())
            ended = sum(record.kind in ("job-finished", "job-cancelled") for record in store.records())
        twice = service.twice()
    growth = soak.growth()
    print("\nstretch             what        first     last  allowed more")
    for row in growth:
        print(f"{row['stretch']:19} {row['what']:8} {row['first']:8} {row['last']:8} {row['allowed']:8} "
              f"{'ok' if row['ok'] else 'GREW'}")  # fmt: skip
    sums: Row = {
        "minutes": options.minutes, "jobs": soak.submitted, "ended": ended, "answers": soak.answers,
        "events": soak.events, "decisions": decisions, "different": len(different), "twice": twice,
        "refused": soak.refused[:20], "load": [round(one, 1) for one in (*busy, *os.getloadavg())],
    }  # fmt: skip
    print(json.dumps(sums))
    print(said or "The service said nothing.")
    RESULTS.write_text(json.dumps({**sums, "growth": growth, "looks": soak.rows}, indent=1) + "\n")
    sound = all(row["ok"] for row in growth) and growth and not (different or twice or soak.refused)
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
