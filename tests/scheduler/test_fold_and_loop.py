"""The state that events make, and the order in which changes come out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.core.cluster import DeviceKind, Needs, total
from easyscale.scheduler.colocation import Colocation
from easyscale.scheduler.events import (
    Allocated,
    DevicesCalledBack,
    DevicesLent,
    DevicesLost,
    JobFinished,
    JobProgressed,
    JobSubmitted,
)
from easyscale.scheduler.fold import apply
from easyscale.scheduler.loop import Change, in_order
from easyscale.scheduler.placing import Placer
from easyscale.scheduler.policies import make
from easyscale.scheduler.rules import RuleBroken, check
from easyscale.scheduler.state import Cluster
from scheduler.streams import KINDS, Life, Power

LINEAR = Power({"a": 1.0, "b": 0.5, "c": 0.5}, 1.0)


def cluster_with(*names: str, **more: object) -> Cluster:
    cluster = Cluster(kinds=dict(KINDS), capacity={"a": 4, "b": 4})
    for name in names:
        needs = Needs(ests=4, **more)  # type: ignore[arg-type]
        apply(cluster, JobSubmitted(time=0.0, job=name, needs=needs, speed=LINEAR, work=100.0))
    return cluster


def test_progress_goes_on_at_the_speed_of_the_devices_after_the_pause_of_a_switch() -> None:
    cluster = cluster_with("j")
    job = cluster.jobs["j"]
    apply(cluster, Allocated(time=10.0, job="j", devices={"a": 2}))
    assert job.progress(10.5) == 0.0
    assert job.progress(21.0) == pytest.approx(20.0)
    apply(cluster, Allocated(time=21.0, job="j", devices={"b": 2}))
    assert job.remaining(32.0) == pytest.approx(70.0)
    apply(cluster, JobProgressed(time=32.0, job="j", done=50.0))
    assert job.remaining(32.0) == pytest.approx(50.0)
    assert job.attained_by(31.0) == pytest.approx(2 * 11.0 + 2 * 10.0)
    assert job.switches == 1


def test_words_about_a_job_that_has_left_change_nothing() -> None:
    cluster = cluster_with("j")
    apply(cluster, JobFinished(time=1.0, job="j"))
    apply(cluster, JobProgressed(time=2.0, job="j", done=5.0))
    apply(cluster, Allocated(time=2.0, job="j", devices={"a": 1}))
    assert not cluster.jobs
    assert total(cluster.held) == 0 == cluster.demand


def test_a_call_stands_until_the_devices_are_given_up() -> None:
    cluster = cluster_with("j")
    apply(cluster, DevicesLent(time=0.0, devices={"a": 2}))
    apply(cluster, Allocated(time=0.0, job="j", devices={"a": 5}))
    apply(cluster, DevicesCalledBack(time=1.0, devices={"a": 2}, by=6.0))
    assert cluster.called == [(6.0, {"a": 1})]
    apply(cluster, Allocated(time=2.0, job="j", devices={"a": 4}))
    assert cluster.called == []
    assert cluster.capacity["a"] == 4


def test_a_loss_takes_devices_from_their_jobs() -> None:
    cluster = cluster_with("j")
    apply(cluster, Allocated(time=0.0, job="j", devices={"a": 3}))
    apply(cluster, DevicesLost(time=1.0, devices={"a": 2}, held={"j": {"a": 1}}))
    assert cluster.jobs["j"].devices == {"a": 2}
    assert cluster.capacity["a"] == 2
    assert cluster.free() == {"b": 4}


@pytest.mark.parametrize(
    ("rule", "more", "devices"),
    [
        ("no device twice", {}, {"a": 3}),
        ("maximum", {"max_workers": 2}, {"b": 3}),
        ("minimum", {"min_workers": 2}, {"b": 1}),
        ("one type", {}, {"a": 1, "b": 1}),
        ("allowed types", {"types": ("b",)}, {"a": 1}),
        ("memory", {"memory_gb": 20.0}, {"b": 1}),
        ("gang", {"gang": 4}, {"b": 3}),
    ],
)
def test_each_rule_is_named_when_it_is_broken(rule: str, more: dict[str, object], devices: dict[str, int]) -> None:
    cluster = cluster_with("j", "k", **more)
    with pytest.raises(RuleBroken) as caught:
        check(cluster, {"j": devices, "k": devices})
    assert caught.value.rule == rule


def test_a_quota_and_a_priority_that_are_broken_are_named() -> None:
    cluster = cluster_with("j", tenant="x")
    cluster.quotas = {"x": 2}
    with pytest.raises(RuleBroken, match="quota"):
        check(cluster, {"j": {"a": 3}})
    cluster = cluster_with("j")
    apply(cluster, JobSubmitted(time=0.0, job="high", needs=Needs(ests=4, priority=1, types=("a",)), speed=LINEAR))
    with pytest.raises(RuleBroken, match="priority"):
        check(cluster, {"j": {"a": 4}})


def test_jobs_that_swap_types_let_go_before_they_take() -> None:
    swap = [
        Change(job="j", before={"a": 2}, devices={"b": 2}),
        Change(job="k", before={"b": 2}, devices={"a": 2}),
    ]
    ordered = in_order(swap, {})
    assert [(change.job, dict(change.devices)) for change in ordered] == [("j", {}), ("k", {"a": 2}), ("j", {"b": 2})]


def test_shrinks_come_before_grows() -> None:
    grow = Change(job="g", before={"a": 1}, devices={"a": 3})
    shrink = Change(job="s", before={"a": 3}, devices={"a": 1})
    assert in_order([grow, shrink], {}) == [shrink, grow]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 5)), max_size=30),
    st.integers(1, 4),
)
def test_no_machine_gives_more_than_it_has(steps: list[tuple[int, int, int]], per_node: int) -> None:
    kinds = {kind: DeviceKind(name=kind, per_node=per_node) for kind in "ab"}
    counts, holds = {"a": 10, "b": 6}, dict[int, dict[str, int]]()
    placer = Placer(kinds, counts)
    for job, a, b in steps:
        wanted = {"a": a, "b": b}
        others = {k: sum(h.get(k, 0) for j, h in holds.items() if j != job) for k in counts}
        wanted = {kind: min(n, counts[kind] - others[kind]) for kind, n in wanted.items()}
        holds[job] = {kind: n for kind, n in wanted.items() if n}
        places = placer.place(str(job), wanted)
        assert {kind: sum(machines.values()) for kind, machines in places.items()} == holds[job]
        for kind in counts:
            on: dict[int, int] = {}
            for other in holds:
                for machine, count in placer.places(str(other)).get(kind, {}).items():
                    on[machine] = on.get(machine, 0) + count
            assert all(count <= per_node for count in on.values())


def test_a_job_that_fits_one_machine_gets_one_machine_and_keeps_what_it_has() -> None:
    placer = Placer({"a": DeviceKind(name="a", per_node=4)}, {"a": 12})
    placer.place("one", {"a": 3})
    assert placer.place("two", {"a": 4}) == {"a": {1: 4}}
    assert placer.place("three", {"a": 1}) == {"a": {0: 1}}
    assert placer.place("two", {"a": 6}) == {"a": {1: 4, 2: 2}}
    assert placer.place("two", {"a": 4}) == {"a": {1: 4}}
    assert placer.nodes("two") == 1


def test_training_uses_what_a_service_leaves_and_gives_it_back_in_time() -> None:
    life = Life.under(make("easyscale"))
    life.cluster.capacity.clear()
    service = Colocation(owned={"a": 8}, headroom={"a": 1})
    life.happen(JobSubmitted(time=0.0, job="j", needs=Needs(ests=8), speed=LINEAR, work=1e6))
    for now, need in ((0.0, 2), (100.0, 6), (200.0, 8), (300.0, 0)):
        for event in service.signal(now, {"a": need}, life.cluster):
            life.happen(event)
        assert life.scheduler.next_decision(now) == now
        life.decide(now)
        service.settle(now, life.cluster, leaving=1.0)
        assert life.cluster.held.get("a", 0) == max(0, 8 - need - 1)
    service.pass_to(400.0, life.cluster)
    figures = service.figures
    assert (figures.calls, figures.violations, figures.short, figures.slowest) == (2, 0, 0.0, 1.0)
    assert figures.utilization == pytest.approx((16 / 32, (16 + 5 + 1 + 0 + 7) / 32))


def test_a_call_that_is_not_answered_in_time_is_a_violation() -> None:
    life = Life.under(make("easyscale"))
    life.cluster.capacity.clear()
    service = Colocation(owned={"a": 4})
    life.happen(JobSubmitted(time=0.0, job="j", needs=Needs(ests=4), speed=LINEAR, work=1e6))
    for event in service.signal(0.0, {}, life.cluster):
        life.happen(event)
    life.decide(0.0)
    for event in service.signal(10.0, {"a": 3}, life.cluster):
        life.happen(event)
    service.pass_to(20.0, life.cluster)  # nobody decided
    assert (service.figures.violations, service.figures.short) == (1, 30.0)
    life.decide(21.0)
    service.settle(21.0, life.cluster)
    assert (service.figures.violations, service.figures.slowest) == (1, 11.0)  # late once, however late


def test_what_is_on_its_way_back_is_not_lent_again() -> None:
    life = Life.under(make("easyscale"))
    life.cluster.capacity.clear()
    service = Colocation(owned={"a": 4})
    life.happen(JobSubmitted(time=0.0, job="j", needs=Needs(ests=4), speed=LINEAR, work=1e6))
    for event in service.signal(0.0, {}, life.cluster):
        life.happen(event)
    life.decide(0.0)
    for event in service.signal(10.0, {"a": 3}, life.cluster):
        life.happen(event)
    assert service.signal(11.0, {"a": 0}, life.cluster) == []
    life.decide(11.0)
    service.settle(11.0, life.cluster)
    (again,) = service.signal(12.0, {"a": 0}, life.cluster)
    assert (type(again), again.devices) == (DevicesLent, {"a": 3})
