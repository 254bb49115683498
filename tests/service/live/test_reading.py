"""What the service tells of a job's output, where the oldest part may be gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from easyscale.master.trimming import trim
from easyscale.service.errors import NotFoundError
from easyscale.service.live import newer
from service.live.world import WHO, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def printed(world: World, job: str, text: bytes) -> Path:
    path = world.fleet.folder(job, 1) / "logs" / "worker-0.out"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text)
    return path


def test_places_in_a_log_count_from_its_first_byte_though_the_oldest_part_is_gone(world: World) -> None:
    job = world.submit(steps=10_000)
    world.running(job)
    lines = [f"line {n}\n".encode() for n in range(1000)]
    path = printed(world, job, b"".join(lines))
    size = len(b"".join(lines))
    assert trim(path, 4000)
    assert world.live.logs(job)[0].size == size
    whole, place = "", 0
    while (part := world.live.log(job, 1, 0, "out", place, 700)).text:
        whole, place = whole + part.text, part.next
    assert place == size
    assert whole.startswith("line ")
    assert whole.endswith("line 999\n")
    assert not part.end
    tail = world.live.log(job, 1, 0, "out", -9, 700)
    assert (tail.text, tail.next) == ("line 999\n", size)
    printed(world, job, b"more\n")
    assert world.live.log(job, 1, 0, "out", place, 700).text == "more\n"
    world.live.cancel(job, WHO)
    world.ended(job)
    assert world.live.log(job, 1, 0, "out", place, 700).end


def test_letters_are_not_cut_in_two(world: World) -> None:
    job = world.submit(steps=10_000)
    world.running(job)
    text = "größer — 速い 🚀 " * 40
    printed(world, job, text.encode())
    found, place = "", 0
    while (part := world.live.log(job, 1, 0, "out", place, 7)).text:
        found, place = found + part.text, part.next
    assert found == text


def test_a_log_that_never_was_is_said_so(world: World) -> None:
    job = world.submit()
    with pytest.raises(NotFoundError):
        world.live.log(job, 1, 7, "out", 0, 10)


def test_pauses_are_counted_once_each() -> None:
    assert newer([], [1.0, 2.0]) == [1.0, 2.0]
    assert newer([1.0, 2.0], [1.0, 2.0]) == []
    assert newer([1.0, 2.0], [1.0, 2.0, 2.0]) == [2.0]
    assert newer([1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0]) == [4.0, 5.0]
    assert newer([1.0, 2.0], [7.0]) == [7.0]


def test_switches_and_lost_workers_are_figures(world: World) -> None:
    job = world.submit(ests=3, types=["a"], steps=3000)
    world.running(job)
    world.fleet.lose_worker(job)
    world.until(lambda: list(world.fleet.users().values()).count(job) == 3)
    world.rounds(25)
    text = world.live.metrics.text(world.live, []).decode()
    switches = len(world.fleet.runs[job, 1].pauses)
    assert switches
    assert f"easyscale_switches_total {switches:.1f}" in text
    assert "easyscale_workers_lost_total 1.0" in text
