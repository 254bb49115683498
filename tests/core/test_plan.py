import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.errors import PlanError
from easyscale.core.plan import Plan, Schedule, parse_schedule, parse_split

splits = st.lists(st.integers(1, 8), min_size=1, max_size=12).map(tuple)


@given(splits)
def test_the_ranges_of_a_plan_cut_all_ests_into_contiguous_pieces(split: tuple[int, ...]) -> None:
    plan = Plan(split)
    assert [est for ests in plan.ranges() for est in ests] == list(range(plan.ests))
    assert [len(ests) for ests in plan.ranges()] == list(split)


@given(splits)
def test_the_worker_of_an_est_is_the_one_whose_range_holds_it(split: tuple[int, ...]) -> None:
    plan = Plan(split)
    owners = [worker for worker, count in enumerate(split) for _ in range(count)]
    assert [plan.worker_of(est) for est in range(plan.ests)] == owners
    with pytest.raises(IndexError):
        plan.worker_of(plan.ests)


@given(st.integers(1, 64), st.data())
def test_an_even_plan_gives_each_worker_as_many_ests_as_any_other_or_one_more(ests: int, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, ests))
    plan = Plan.even(ests, workers)
    assert (plan.ests, plan.workers) == (ests, workers)
    assert max(plan.split) - min(plan.split) <= 1
    assert list(plan.split) == sorted(plan.split, reverse=True)


@pytest.mark.parametrize(("ests", "workers"), [(0, 1), (1, 0), (2, 3), (-1, -1)])
def test_a_plan_that_cannot_run_is_refused(ests: int, workers: int) -> None:
    with pytest.raises(PlanError):
        Plan.even(ests, workers)


@pytest.mark.parametrize("split", [(), (0,), (2, -1)])
def test_a_worker_without_an_est_is_refused(split: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="without an EST"):
        Plan(split)


@given(splits)
def test_a_split_reads_back_what_it_says(split: tuple[int, ...]) -> None:
    plan = Plan(split)
    assert parse_split(",".join(map(str, split)), plan.ests) == plan


@pytest.mark.parametrize(
    ("text", "ests", "workers", "what"),
    [
        ("2,x", 4, None, "not a list of numbers"),
        ("", 4, None, "not a list of numbers"),
        ("2,1", 4, None, "gives 3 ESTs"),
        ("2,2", 4, 3, "names 2 workers"),
        ("4,0", 4, None, "without an EST"),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_the_reason(
    text: str, ests: int, workers: int | None, what: str
) -> None:
    with pytest.raises(PlanError, match=what) as caught:
        parse_split(text, ests, workers)
    assert caught.value.why
    assert caught.value.now


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, Schedule]:
    ests = draw(st.integers(1, 8))
    steps = [0, *sorted(draw(st.sets(st.integers(1, 50), max_size=6)))]
    return ests, Schedule(tuple((step, Plan.even(ests, draw(st.integers(1, ests)))) for step in steps))


@given(schedules())
def test_a_schedule_reads_back_what_it_says(case: tuple[int, Schedule]) -> None:
    ests, schedule = case
    by_workers = ",".join(f"{step}:{plan.workers}" for step, plan in schedule.entries)
    assert parse_schedule(by_workers, ests) == schedule
    if all(plan.workers > 1 for _, plan in schedule.entries):  # a lone number means workers, not a split
        by_split = ",".join(f"{step}:{plan}" for step, plan in schedule.entries)
        assert parse_schedule(by_split, ests) == schedule


@given(schedules(), st.integers(0, 60))
def test_the_plan_in_force_is_the_last_one_that_has_begun(case: tuple[int, Schedule], step: int) -> None:
    _, schedule = case
    plan, following = schedule.at(step)
    begun = [(at, p) for at, p in schedule.entries if at <= step]
    later = [at for at, _ in schedule.entries if at > step]
    assert plan == begun[-1][1]
    assert following == (later[0] if later else None)


@pytest.mark.parametrize("text", ["", "4", "0:x", "x:4", "0:4;10:2", "1:4", "0:4,10:2,10:1", "0:4,20:2,10:1", "0:5"])
def test_a_schedule_that_cannot_be_followed_is_refused(text: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_schedule(text, 4)
    assert caught.value.why
    assert caught.value.now
