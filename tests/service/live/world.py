"""A service in virtual time: masters that are numbers, a log in memory that can fail, calls that come late or never."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from easyscale.core.cluster import Slot
from easyscale.scheduler.rules import check_job
from easyscale.service.chronicle import Chronicle, replay
from easyscale.service.devices import Found, declared
from easyscale.service.errors import KeyUsedError, StoreError
from easyscale.service.live import Live
from easyscale.service.models import JobSpec
from easyscale.service.ports import Launch, Person
from easyscale.service.records import News, Record
from easyscale.service.state import State
from easyscale.testing import FakeFleet, VirtualClock

WHO = Person("ann", "red", "admin")
START = 1_000_000.0


class MemoryLog:
    """A `Log`. `full`: nothing can be written. `torn`: the next write is done, and nobody hears of it."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, float, str, str | None, str]] = []
        self.keys: dict[tuple[str, str], list[str]] = {}
        self.full = self.torn = False

    def append(self, news: Sequence[News], key: tuple[str, str, Sequence[str]] | None = None) -> list[Record]:
        if self.full:
            raise StoreError("The disk is full.", "nothing was written.", "make room.")
        if key is not None and key[:2] in self.keys:
            raise KeyUsedError(self.keys[key[:2]])
        bodies = [json.dumps(one.body, allow_nan=False) for one in news]
        first = len(self.lines) + 1
        self.lines += [
            (first + n, one.time, one.kind, one.job, body)
            for n, (one, body) in enumerate(zip(news, bodies, strict=True))
        ]  # fmt: skip
        if key is not None:
            self.keys[key[0], key[1]] = list(key[2])
        if self.torn:
            self.torn = False
            raise StoreError("The server went away.", "nobody knows what it did.", "wait.")
        return list(self.records(first - 1))

    def records(
        self, after: int = 0, limit: int | None = None, job: str | None = None, newest: bool = False
    ) -> Iterator[Record]:
        found = [line for line in self.lines[after:] if job is None or line[3] == job]
        if limit is not None:
            found = found[-limit:] if newest else found[:limit]
        return iter([Record(seq=s, time=t, kind=k, job=j, body=json.loads(b)) for s, t, k, j, b in found])

    def last(self) -> int:
        return len(self.lines)

    def used_key(self, user: str, key: str) -> list[str] | None:
        return self.keys.get((user, key))

    def of(self, kind: str, job: str | None = None) -> list[Record]:
        return [record for record in self.records(job=job) if record.kind == kind]


class Calls(Executor):
    """Calls are made at once; or, where they are `late`, when `make` is called; or never, if the service dies first."""

    def __init__(self) -> None:
        self.late = False
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        if not self.late:
            self.make()
        return future

    def make(self, most: int = 1 << 30) -> None:
        for _ in range(min(most, len(self.waiting))):
            future, call = self.waiting.pop(0)
            try:
                future.set_result(call())
            except Exception as problem:
                future.set_exception(problem)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.waiting.clear()


class World:
    """`round` by round. `restart`: the service is killed and started again, whatever it was about to do."""

    def __init__(
        self, folder: Path, devices: dict[str, int] | list[Found] | None = None, policy: str = "easyscale"
    ) -> None:
        self.folder, self.policy = folder, policy
        self.clock = VirtualClock(START)
        self.log = MemoryLog()
        self.fleet = FakeFleet(self.clock, folder / "runs")
        self.found = devices if isinstance(devices, list) else declared(devices or {"a": 3, "b": 2}, node="here")
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)
        (self.work / "train.py").touch()
        self.submitted: list[str] = []
        self.restart()

    def restart(self, found: Sequence[Found] | None = None) -> None:
        self.found = list(found) if found is not None else self.found
        self.calls = Calls()
        self.live = Live(
            self.log, self.fleet, self.folder, policy=self.policy, clock=self.clock, ticks=self.clock, pool=self.calls
        )  # fmt: skip
        self.live.begin(self.found)

    @property
    def state(self) -> State:
        return self.live.book.state

    def spec(self, **more: Any) -> JobSpec:
        return JobSpec(**{"name": "job", "script": "train.py", "workdir": str(self.work), "ests": 2, **more})

    def submit(self, who: Person = WHO, key: str | None = None, **more: Any) -> str:
        jobs = self.live.submit(self.spec(**more), who, key).jobs
        self.submitted += [job for job in jobs if job not in self.submitted]
        return jobs[0]

    def round(self, seconds: float = 0.5) -> None:
        self.clock.run(self.clock.now + seconds)
        self.live.round()
        self.check()

    def rounds(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.round()

    def until(self, true: Callable[[], bool], seconds: float = 600.0) -> None:
        ends = self.clock.now + seconds
        while not true():
            assert self.clock.now < ends, self.story()
            self.round()

    def word(self, job: str) -> str:
        return self.state.jobs[job].word

    def ended(self, job: str, seconds: float = 2000.0) -> str:
        self.until(lambda: self.state.jobs[job].over, seconds)
        return self.word(job)

    def running(self, job: str) -> None:
        self.until(lambda: self.word(job) == "running")

    def slots(self, job: str) -> list[str]:
        """What its master was told last, as the fleet has it."""
        return sorted(slot.id for (name, _), run in self.fleet.runs.items() if name == job for slot in run.slots)

    def story(self) -> str:
        lines = [f"{r.seq} {r.time - START:.1f} {r.kind} {r.job or ''} {json.dumps(r.body)[:160]}" for r in
                 self.log.records()]  # fmt: skip
        return "\n".join(["", *lines[-80:], str(self.fleet.users())])

    # ------------------------------------------------------------------------------------ what is always so

    def check(self) -> None:
        assert not self.fleet.twice, (self.fleet.twice, self.story())
        assert self.live._broken is None, (self.live._broken, self.story())
        state, cluster = self.state, self.live.book.scheduler.cluster
        assert set(self.submitted) <= state.jobs.keys(), "what was accepted is lost"
        for kind in cluster.kinds:
            there = sum(device.standing == "in" for device in state.devices.values() if device.kind == kind)
            assert cluster.capacity.get(kind, 0) == there, (kind, self.story())
        held = [device for job in state.living.values() for device in job.assigned]
        assert len(held) == len(set(held)), self.story()
        for name, device in state.devices.items():
            assert device.job is None or name in state.jobs[device.job].assigned, (name, self.story())
        for job in state.living.values():
            inside = cluster.jobs.get(job.id)
            assert (inside is not None) == (job.wish == "run"), (job.id, self.story())
            if inside is not None:
                assert inside.needs == job.needs(), (job.id, inside.needs, job.needs())
                assert dict(inside.devices) == state.counts(job.assigned), (job.id, self.story())
                if not self.live.book.scheduler.policy.interval:  # others see to it when it is time
                    check_job(cluster, inside, inside.devices)
            assert all(state.devices[device].standing == "in" for device in job.assigned), (job.id, self.story())
        for tenant, quota in cluster.quotas.items():
            assert cluster.by_tenant.get(tenant, 0) <= quota, (tenant, self.story())
        for (name, _), run in self.fleet.runs.items():
            job = state.jobs[name]
            kinds = {slot.kind for slot in run.slots}
            assert len(kinds) <= 1 or job.spec.determinism == "D2", (name, kinds)
            assert kinds <= set(job.spec.types or kinds), (name, kinds)
            assert 1 <= len(run.slots) <= job.spec.ests, (name, run.slots)
        starts = [(record.job, record.body["run"]) for record in self.log.of("job-starting")]
        assert len(starts) == len(set(starts)), "a run was written down twice"
        assert all((run.launch.job, run.launch.run) in starts for run in self.fleet.runs.values())

    def check_log(self) -> int:
        """The log tells the same as what the service has in mind, and another scheduler says the same to it."""
        again = Chronicle(self.log, self.policy, self.clock)
        assert again.state == self.state
        mine, other = self.live.book.scheduler.cluster, again.scheduler.cluster
        assert (mine.capacity, mine.held, mine.entitled) == (other.capacity, other.held, other.entitled)
        assert {name: (j.needs, j.devices, j.done) for name, j in mine.jobs.items()} == {
            name: (j.needs, j.devices, j.done) for name, j in other.jobs.items()
        }
        decisions, different = replay(self.log.records())
        assert not different, different
        return decisions


def launch(spec: JobSpec, *slots: Slot, job: str = "job", run: int = 1) -> Launch:
    return Launch(job=job, run=run, spec=spec, workdir=Path("/"), checkpoint_dir=Path("/"), slots=slots)
