"""What holds for every policy, whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from easyscale.core.cluster import Needs, total
from easyscale.core.errors import UsageError
from easyscale.planner.model import EstSpeed
from easyscale.scheduler.events import JobChanged, JobFinished, JobSubmitted, QuotaSet
from easyscale.scheduler.policies import POLICIES, make
from easyscale.scheduler.policy import whole
from easyscale.scheduler.rules import check
from scheduler.streams import Deed, Life, Power, deeds, event_of, live

every_policy = pytest.mark.parametrize("name", list(POLICIES))
LINEAR = Power({"a": 1.0, "b": 0.5, "c": 0.5}, 1.0)


@every_policy
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=deeds)
def test_no_stream_of_events_makes_a_policy_break_a_rule(name: str, stream: list[Deed]) -> None:
    live(Life.under(make(name), quotas={"x": 3}), stream)  # the loop checks each decision; so does `Life`


@every_policy
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=deeds)
def test_the_same_events_give_the_same_decisions(name: str, stream: list[Deed]) -> None:
    lives = [Life.under(make(name)), Life.under(make(name))]
    for life in lives:
        live(life, stream)
    assert lives[0].decisions == lives[1].decisions


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=deeds)
def test_a_decision_about_a_few_jobs_keeps_the_rules_for_all(stream: list[Deed]) -> None:
    """With `small` at 1 `easyscale` looks at few jobs nearly always; the whole is checked as if all were decided."""
    life = Life.under(make("easyscale", small=1, look=1))
    now = 0.0
    for number, deed in enumerate(stream):
        live_one(life, deed, now := now + deed[1], number)


def test_a_lowered_quota_is_kept_though_few_jobs_are_looked_at() -> None:
    life = Life.under(make("easyscale", small=1, look=1))
    for number in range(8):
        life.happen(JobSubmitted(
            time=0.0, job=f"j{number}", needs=Needs(ests=2, tenant="x" if number == 4 else ""), speed=LINEAR,
            work=100.0, requested=1, kind="a",
        ))  # fmt: skip
    life.decide(0.0)
    assert total(life.cluster.jobs["j4"].devices) > 0
    life.happen(JobFinished(time=1.0, job="j0"))  # somebody else's news
    life.happen(QuotaSet(time=1.0, tenant="x", quota=0, borrow=False))
    life.decide(1.0)
    assert total(life.cluster.jobs["j4"].devices) == 0


def live_one(life: Life, deed: Deed, now: float, number: int) -> None:
    event = event_of(life.cluster, deed, now, number)
    if event is not None:
        life.happen(event)
    life.cluster.now = max(life.cluster.now, now)
    check(life.cluster, whole(life.cluster, life.scheduler.policy.decide(life.cluster)))
    life.decide(now)


@every_policy
def test_every_job_that_can_run_ends(name: str) -> None:
    """A crowd comes at once; whenever decisions are due, whoever has done its work leaves. Nobody is left over."""
    life, now = Life.under(make(name)), 0.0
    for number in range(12):
        life.happen(JobSubmitted(
            time=0.0, job=f"j{number}", needs=Needs(ests=4, level="D2" if number % 2 else "D1"), speed=LINEAR,
            work=100.0 + number, requested=1 + number % 4, kind="a",
        ))  # fmt: skip
    for _ in range(3000):
        life.decide(now)
        now += 30.0
        for job in [job for job in life.cluster.jobs.values() if job.remaining(now) == 0.0]:
            life.happen(JobFinished(time=now, job=job.id))
        if not life.cluster.jobs:
            return
    pytest.fail(f"{len(life.cluster.jobs)} jobs never ended")


def test_easyscale_lets_nobody_starve_though_shorter_jobs_never_stop_coming() -> None:
    """One long job that needs all of a type against a stream of short ones that fill it."""
    life, now = Life.under(make("easyscale")), 0.0
    life.cluster.capacity.update({"b": 0, "c": 0})
    long = Needs(ests=4, gang=4)
    life.happen(JobSubmitted(time=0.0, job="long", needs=long, speed=LINEAR, work=4_000.0, kind="a"))
    for number in range(2000):
        life.happen(JobSubmitted(
            time=now, job=f"s{number}", needs=Needs(ests=4), speed=LINEAR, work=120.0, requested=4, kind="a",
        ))  # fmt: skip
        life.decide(now)
        if life.cluster.jobs["long"].attained_by(now) > 0.0:
            return
        now += 30.0
        for job in [job for job in life.cluster.jobs.values() if job.remaining(now) == 0.0]:
            life.happen(JobFinished(time=now, job=job.id))
            life.decide(now)
    pytest.fail("the long job never ran")


@every_policy
def test_a_gang_is_whole_or_waits(name: str) -> None:
    life = Life.under(make(name))
    for number in range(3):
        needs = Needs(ests=8, gang=3)
        life.happen(JobSubmitted(time=0.0, job=f"g{number}", needs=needs, speed=LINEAR, work=10.0, requested=3))
    life.decide(0.0)
    assert {total(job.devices) for job in life.cluster.jobs.values()} == {3, 0}


@every_policy
def test_a_higher_priority_gets_the_devices_of_a_lower(name: str) -> None:
    life = Life.under(make(name))
    life.cluster.capacity.update({"b": 0, "c": 0})
    low, high = Needs(ests=4, priority=0, gang=4), Needs(ests=4, priority=1, gang=4)
    life.happen(JobSubmitted(time=0.0, job="low", needs=low, speed=LINEAR, work=1e3, requested=4, kind="a"))
    life.decide(0.0)
    assert total(life.cluster.jobs["low"].devices) == 4
    life.happen(JobSubmitted(time=1.0, job="high", needs=high, speed=LINEAR, work=1e4, requested=4, kind="a"))
    life.decide(1.0)
    assert [total(life.cluster.jobs[name].devices) for name in ("low", "high")] == [0, 4]


@every_policy
def test_a_tenant_stays_within_its_quota(name: str) -> None:
    life = Life.under(make(name), quotas={"x": 2})
    for number in range(4):
        needs = Needs(ests=4, tenant="x")
        life.happen(JobSubmitted(time=0.0, job=f"j{number}", needs=needs, speed=LINEAR, work=1e3, requested=1))
    life.decide(0.0)
    assert 0 < life.cluster.by_tenant["x"] <= 2


def test_a_misspelt_policy_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="easyscale-heter") as caught:
        make("easyscale-hetero")
    assert "there is no policy" in caught.value.what


def test_an_option_that_a_policy_does_not_have_is_named() -> None:
    with pytest.raises(UsageError, match="colour"):
        make("fifo", colour="red")


@every_policy
@pytest.mark.parametrize("needs", [Needs(ests=4, gang=3), Needs(ests=4, min_workers=3)])
def test_a_job_starts_though_fewer_devices_than_its_least_would_be_as_fast(name: str, needs: Needs) -> None:
    """4 ESTs on 3 devices take two turns, as on 2."""
    life = Life.under(make(name))
    life.happen(JobSubmitted(time=0.0, job="j", needs=needs, speed=EstSpeed(4, {"a": 0.1, "b": 0.1}), work=100.0))
    life.decide(0.0)
    assert total(life.cluster.jobs["j"].devices) >= 3


@every_policy
def test_limits_that_a_user_changes_hold_from_the_next_decision_on(name: str) -> None:
    life = Life.under(make(name))
    life.happen(JobSubmitted(time=0.0, job="j", needs=Needs(ests=4), speed=LINEAR, work=1e6))
    life.happen(JobSubmitted(time=0.0, job="gang", needs=Needs(ests=4, gang=4, types=("b",)), speed=LINEAR, work=1e6))
    life.decide(0.0)
    assert life.cluster.jobs["gang"].devices == {"b": 4}
    life.happen(JobChanged(time=400.0, job="j", min_workers=1, max_workers=2))
    life.happen(JobChanged(time=400.0, job="gang", min_workers=1, max_workers=3))
    life.decide(400.0)
    assert 1 <= total(life.cluster.jobs["j"].devices) <= 2
    assert life.cluster.jobs["gang"].devices == {"b": 3}


def test_gavel_forgets_the_types_that_a_job_is_no_longer_allowed() -> None:
    """Its shares were found before the first start bound the job to a type."""
    life = Life.under(make("gavel"))
    life.cluster.capacity.update({"a": 2, "b": 2, "c": 0})
    for number, kinds in enumerate(({"a": 1.0, "b": 0.9, "c": 0.1}, {"a": 1.0, "b": 0.9, "c": 0.1})):
        life.happen(JobSubmitted(time=0.0, job=f"j{number}", needs=Needs(ests=2), speed=Power(kinds, 1.0), work=1e6))
    for round_ in range(6):  # by turns on the better type, if they might
        life.decide(360.0 * round_)
    assert {job: list(life.cluster.jobs[job].devices) for job in ("j0", "j1")} == {"j0": ["a"], "j1": ["b"]}


def test_homo_lets_a_job_start_on_what_jobs_of_lower_priority_hold() -> None:
    """Of its type there is not all that it asked for: then any type may have to do."""
    life = Life.under(make("easyscale-homo"))
    life.cluster.capacity.update({"a": 2, "b": 4, "c": 0})
    life.happen(JobSubmitted(time=0.0, job="low", needs=Needs(ests=4, types=("b",)), speed=LINEAR, work=1e6))
    life.happen(JobSubmitted(
        time=0.0, job="peer", needs=Needs(ests=2, min_workers=2, priority=1, types=("a",)), speed=LINEAR, work=1e6
    ))  # fmt: skip
    life.decide(0.0)
    life.happen(JobSubmitted(
        time=60.0, job="high", needs=Needs(ests=4, priority=1), speed=LINEAR, work=1e6, requested=4, kind="a"
    ))  # fmt: skip
    life.decide(60.0)
    assert life.cluster.jobs["high"].devices.get("b")
