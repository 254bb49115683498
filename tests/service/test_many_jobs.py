"""The loop with more jobs than one looks at by hand: a real store, masters that are numbers, virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from easyscale.core.cluster import Slot
from easyscale.service.chronicle import Chronicle, replay
from easyscale.service.devices import Found
from easyscale.service.live import Live
from easyscale.service.models import JobSpec
from easyscale.service.ports import JobQuery, Launch, Person
from easyscale.service.store import Store, open_store
from easyscale.testing import FakeFleet, VirtualClock

ANN = Person("ann", "red", "admin")
DEVICES = [
    Found(Slot(id=f"{kind}-{n}", kind=kind, node=f"{kind}-node-{n // 4}"))
    for kind, count in (("v100", 12), ("p100", 8))
    for n in range(count)
]


class AtOnce(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:
            future.set_exception(problem)
        return future


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "data") as store:
        yield store


def test_two_hundred_jobs_on_twenty_devices_all_end_and_no_device_is_held_twice(store: Store, tmp_path: Path) -> None:
    clock = VirtualClock(1e9)
    fleet = FakeFleet(clock, tmp_path, seconds={"v100": 0.05, "p100": 0.08}, start=3.0)
    live = Live(store, fleet, tmp_path, clock=clock, ticks=clock, pool=AtOnce())
    live.begin(DEVICES)
    for number in range(20):
        spec = JobSpec(
            name=f"job{number}", module="train", workdir=str(tmp_path), ests=1 + number % 8, steps=50 + 10 * number,
            array=10, priority=number % 2, gang=number % 5 == 4, determinism="D2" if number % 3 == 0 else "D1",
        )  # fmt: skip
        live.submit(spec, ANN)
    rounds = 0
    while live.book.state.living:
        clock.run(clock.now + 0.5)
        live.round()
        rounds += 1
        held = [device for job in live.book.state.busy.values() for device in job.assigned]
        assert len(held) == len(set(held))
        assert rounds < 5000, [job.word for job in live.book.state.living.values()]
    assert {job.end for job in live.book.state.jobs.values()} == {"finished"}
    assert not fleet.twice
    assert not fleet.users()
    decisions, different = replay(store.records())
    assert decisions > 10
    assert not different
    folded = Chronicle(store, "easyscale", clock).state
    assert folded == live.book.state


def test_a_page_of_the_list_is_the_same_whichever_way_it_is_found(store: Store, tmp_path: Path) -> None:
    clock = VirtualClock(1e9)
    live = Live(store, FakeFleet(clock, tmp_path), tmp_path, clock=clock, ticks=clock, pool=AtOnce())
    live.begin(DEVICES)
    for name in ("b", "a", "c"):
        live.submit(JobSpec(name=name, module="train", workdir=str(tmp_path), ests=4, array=10, steps=400), ANN)
        clock.run(clock.now + 1.0)
    for _ in range(20):
        clock.run(clock.now + 0.5)
        live.round()
    jobs = list(live.book.state.jobs.values())
    for words in ((), ("running", "starting"), ("queued",), ("queued", "finished")):
        found = live.jobs(JobQuery(states=words, order="submitted", limit=1000))
        assert [row.id for row in found.jobs] == [job.id for job in jobs if not words or job.word in words]
        newest = live.jobs(JobQuery(states=words, limit=1000))
        assert [row.id for row in newest.jobs] == [row.id for row in found.jobs][::-1]
    by_name = live.jobs(JobQuery(order="name", limit=1000)).jobs
    assert [row.name for row in by_name] == sorted(row.name for row in by_name)
    view = live.cluster()
    assert view.queued == sum(job.word == "queued" for job in jobs)
    assert view.running == sum(job.word in ("running", "starting") for job in jobs) > 0


# ------------------------------------------------------------------------------------------ the fake itself


def slots(*names: str) -> tuple[Slot, ...]:
    return tuple(Slot(id=name, kind="v100") for name in names)


def launch(job: str, run: int, *devices: str, ests: int = 2) -> Launch:
    spec = JobSpec(name=job, module="train", workdir="/", ests=ests, steps=100)
    return Launch(
        job=job, run=run, spec=spec, workdir=Path("/"), checkpoint_dir=Path("/nowhere"), slots=slots(*devices)
    )  # fmt: skip


def test_a_fake_run_makes_steps_by_its_devices_and_ends_with_the_same_print_however_it_ran() -> None:
    clock = VirtualClock()
    fleet = FakeFleet(clock, seconds={"v100": 0.1}, start=2.0, switch=1.0)
    fleet.launch(launch("one", 1, "a"))
    fleet.launch(launch("other", 1, "b", "c"))
    clock.run(4.0)
    one, other = fleet.look("one", 1).status, fleet.look("other", 1).status
    assert one is not None
    assert other is not None
    assert (one.step, other.step) == (10, 20)  # two local steps of 0.1 s each, or one
    assert [(seat.slot, seat.count) for seat in other.seats] == [("b", 1), ("c", 1)]
    fleet.place("one", 1, slots("a", "d"))
    clock.run(5.0)
    assert fleet.look("one", 1).status.step == 10  # type: ignore[union-attr]
    clock.run(60.0)
    assert fleet.look("one", 1).state == fleet.look("other", 1).state == "ended"
    again = FakeFleet(clock, seconds={"v100": 0.1})
    again.launch(launch("one", 1, "x"))
    clock.run(120.0)
    assert again.look("one", 1).fingerprint == fleet.look("one", 1).fingerprint
    assert not fleet.twice


def test_a_fake_run_goes_on_from_its_checkpoint_and_a_death_leaves_none() -> None:
    clock = VirtualClock()
    fleet = FakeFleet(clock, seconds={"v100": 0.1}, start=0.0, stop=1.0)
    fleet.launch(launch("job", 1, "a"))
    clock.run(4.0)
    fleet.stop("job", 1)
    assert fleet.users() == {"a": "job"}
    clock.run(5.0)
    assert (fleet.look("job", 1).exit_code, fleet.look("job", 1).steps) == (143, 20)
    fleet.launch(launch("job", 2, "a"))
    clock.run(6.0)
    assert fleet.look("job", 2).status.step == 25  # type: ignore[union-attr]
    fleet.vanish("job")
    assert fleet.look("job", 2).state == "gone"
    fleet.launch(launch("job", 3, "a"))
    assert fleet.look("job", 3).status.step == 20  # type: ignore[union-attr]


def test_the_fake_tells_of_a_device_that_two_sit_on() -> None:
    clock = VirtualClock()
    fleet = FakeFleet(clock, leave=5.0)
    fleet.launch(launch("one", 1, "a", "b"))
    fleet.place("one", 1, slots("a"))
    fleet.launch(launch("two", 1, "b"))
    assert fleet.twice == [("b", "one", "two")]
