"""The split of ESTs over devices is the best there is, by comparison with all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.planner.assignment import assign, assign_types
from easyscale.planner.model import Reduction

SPEEDS = st.sampled_from([0.1, 0.3, 1 / 3, 0.5, 0.7, 1.0, 1.1, 2.0, 3.0]) | st.floats(0.01, 100.0)
SECONDS = st.sampled_from([0.1, 0.2, 0.3, 0.25, 1 / 3, 1.0]) | st.floats(0.01, 10.0)


def splits(ests: int, devices: int) -> Iterator[tuple[int, ...]]:
    if devices == 1:
        yield (ests,)
        return
    for first in range(ests + 1):
        for rest in splits(ests - first, devices - 1):
            yield (first, *rest)


def brute_force(ests: int, speeds: list[float], reduction: Callable[[int], float]) -> tuple[float, int]:
    return min(
        (max(a / c for a, c in zip(split, speeds, strict=True)) + reduction(used), used)
        for split in splits(ests, len(speeds))
        for used in [sum(1 for a in split if a)]
    )


@settings(deadline=None)
@given(
    st.integers(1, 7), st.lists(SPEEDS, min_size=1, max_size=4), st.lists(st.floats(0.0, 50.0), min_size=4, max_size=4)
)
def test_no_split_is_faster_whatever_the_reduction_costs(ests: int, speeds: list[float], costs: list[float]) -> None:
    found = assign(ests, speeds, lambda workers: costs[workers - 1])
    seconds, used = brute_force(ests, speeds, lambda workers: costs[workers - 1])
    assert found.seconds == seconds
    assert sum(found.split) == ests
    assert sum(1 for a in found.split if a) == used
    assert max(a / c for a, c in zip(found.split, speeds, strict=True)) + costs[used - 1] == seconds


@settings(deadline=None)
@given(st.integers(1, 9), st.lists(SPEEDS, min_size=1, max_size=4))
def test_without_communication_the_split_is_the_fastest_with_the_fewest_devices(ests: int, speeds: list[float]) -> None:
    found = assign(ests, speeds)
    seconds, used = brute_force(ests, speeds, lambda _: 0.0)
    assert (found.seconds, sum(1 for a in found.split if a)) == (seconds, used)
    assert found == assign(ests, speeds, lambda _: 0.0)


KINDS = ("a", "b", "c")


@settings(deadline=None)
@given(
    st.integers(1, 7),
    st.dictionaries(st.sampled_from(KINDS), st.integers(1, 2), min_size=1),
    st.fixed_dictionaries(dict.fromkeys(KINDS, SECONDS)),
    st.builds(
        Reduction, base=st.floats(0, 1), per_worker=st.floats(0, 1), bytes=st.just(1.0),
        seconds_per_byte=st.floats(0, 1), across_nodes=st.floats(1, 10), per_node=st.integers(1, 3),
        alone=st.floats(0, 1), known=st.sampled_from([(), ((2, False, 0.2), (4, True, 0.1)), ((3, True, 2.0),)]),
    ),
)  # fmt: skip
def test_no_use_of_devices_by_type_is_faster_when_machines_count(
    ests: int, devices: dict[str, int], seconds: dict[str, float], reduction: Reduction
) -> None:
    each = [kind for kind, count in devices.items() for _ in range(count)]

    def time(split: tuple[int, ...]) -> float:
        used = [kind for kind, a in zip(each, split, strict=True) if a]
        nodes = sum(reduction.nodes_for(used.count(kind)) for kind in set(used))
        slowest = max(a * seconds[kind] for kind, a in zip(each, split, strict=True))
        return slowest + reduction(len(used), nodes)

    found = assign_types(ests, devices, seconds, reduction)
    assert found.seconds == min(map(time, splits(ests, len(each))))
    assert sum(sum(of) for of in found.loads.values()) == ests
    assert found.used == {kind: len(of) for kind, of in found.loads.items()}
    assert all(found.used.get(kind, 0) + found.unused.get(kind, 0) == count for kind, count in devices.items())
    nodes = sum(map(reduction.nodes_for, found.used.values()))
    slowest = max(max(of) * seconds[kind] for kind, of in found.loads.items())
    assert found.seconds == slowest + reduction(sum(found.used.values()), nodes)


def test_loads_differ_within_a_type_where_that_is_faster() -> None:
    found = assign_types(8, {"v100": 3, "t4": 1}, {"v100": 1.0, "t4": 2.0})
    assert found.loads == {"v100": (3, 3, 2)}
    assert found.seconds == 3.0


def test_a_device_stays_unused_when_its_communication_costs_more_than_it_brings() -> None:
    assert assign(4, [1.0, 1.0, 1.0, 1.0], lambda workers: 1.5 * (workers - 1)).split == (2, 2, 0, 0)
    assert assign(4, [1.0] * 4, lambda workers: 0.1 * (workers - 1)).split == (1, 1, 1, 1)


def test_a_device_that_cannot_help_stays_unused() -> None:
    assert assign(3, [1.0, 1.0, 0.01]).split == (2, 1, 0)
    assert assign(2, [1.0] * 5).split == (1, 1, 0, 0, 0)
    assert assign(2, [0.0, 1.0]).split == (0, 2)


def test_no_devices_take_forever() -> None:
    assert assign(3, []).seconds == float("inf")
    assert assign(3, [0.0]).split == (0,)


def test_a_slower_type_in_one_machine_can_beat_a_mix_of_two_machines() -> None:
    reduction = Reduction(bytes=1.0, seconds_per_byte=1.0, across_nodes=20.0, per_node=4)
    found = assign_types(8, {"v100": 1, "t4": 4}, {"v100": 1.0, "t4": 1.1}, reduction)
    assert found.used == {"t4": 4}
    assert found.unused == {"v100": 1}


@pytest.mark.parametrize("ests", [1, 63, 64, 65, 500])
def test_large_cases_place_every_est_once(ests: int) -> None:
    devices = {"a": 16, "b": 16, "c": 16, "d": 16}
    seconds = {"a": 0.12, "b": 0.25, "c": 0.41, "d": 0.61}
    found = assign_types(ests, devices, seconds, Reduction(base=1e-3, per_worker=1e-4))
    assert sum(map(sum, found.loads.values())) == ests
    assert all(found.used[kind] <= devices[kind] for kind in found.used)
