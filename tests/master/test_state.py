from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.control import Member
from easyscale.core.messages import (
    Done,
    Event,
    Failed,
    Fingerprint,
    HandedOver,
    Message,
    Ready,
    StepDone,
)
from easyscale.core.plan import Plan
from easyscale.master.state import Exit, JobState, find_failure, label


def begun(split: tuple[int, ...] = (2, 1, 1), engine: str = "est") -> JobState:
    state = JobState(sum(split), "ddp" if engine == "ddp" else "est")
    state.begin(Plan(split), 0, now=100.0)
    return state


def fold(state: JobState, *messages: Message, now: float = 101.0) -> JobState:
    for message in messages:
        state.apply(message, now)
    return state


def step_done(plan: Plan, worker: int, step: int, metrics: tuple[str, ...] = ("loss",)) -> StepDone:
    ests = list(plan.range_of(worker))
    return StepDone(
        worker=worker, step=step, epoch=step // 10, ests=ests, samples=4 * len(ests), time=200.0 + step + worker / 10,
        metrics={name: [float(est + 10 * index) for est in ests] for index, name in enumerate(metrics)},
    )  # fmt: skip


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple), st.integers(1, 4), st.data())
def test_losses_are_by_virtual_rank_in_whatever_order_workers_speak(
    split: tuple[int, ...], steps: int, data: st.DataObject
) -> None:
    plan = Plan(split)
    spoken = [step_done(plan, worker, step) for step in range(steps) for worker in range(plan.workers)]
    state = fold(begun(split), *data.draw(st.permutations(spoken)))
    records = sorted(state.take_steps(), key=lambda record: record.step)
    assert state.losses == {step: [float(est) for est in range(plan.ests)] for step in range(steps)}
    assert [record.step for record in records] == list(range(steps))
    assert all(record.metrics == {"loss": state.losses[record.step]} for record in records)
    assert all(record.samples == 4 * plan.ests for record in records)
    assert state.steps == steps


def test_a_step_is_passed_on_once_and_only_when_all_ests_were_heard() -> None:
    plan, state = Plan((2, 1, 1)), begun()
    fold(state, step_done(plan, 0, 0), step_done(plan, 2, 0))
    assert state.take_steps() == []
    assert (state.steps, state.losses[0]) == (0, [0.0, 1.0, None, 3.0])
    fold(state, step_done(plan, 1, 0))
    assert len(state.take_steps()) == 1
    assert state.take_steps() == []


def test_the_first_metric_stands_for_the_loss_where_none_is_called_so() -> None:
    plan, state = Plan((1, 1)), begun((1, 1))
    fold(state, step_done(plan, 0, 0, ("error", "accuracy")), step_done(plan, 1, 0, ("error", "accuracy")))
    fold(state, step_done(plan, 0, 1, ("accuracy", "loss")), step_done(plan, 1, 1, ("accuracy", "loss")))
    assert state.losses == {0: [0.0, 1.0], 1: [10.0, 11.0]}


def test_a_step_without_metrics_still_counts() -> None:
    state = fold(begun((1,)), step_done(Plan((1,)), 0, 0, ()))
    assert (state.steps, state.losses) == (1, {0: [None]})
    assert state.take_steps()[0].loss_name is None


def test_a_metric_that_only_one_est_logged_is_unknown_for_the_others() -> None:
    plan, state = Plan((1, 1)), begun((1, 1))
    fold(state, step_done(plan, 0, 0, ("loss", "only here")), step_done(plan, 1, 0))
    (record,) = state.take_steps()
    assert record.metrics == {"loss": [0.0, 1.0], "only here": [10.0, None]}
    assert (record.mean("loss"), record.mean("only here"), record.mean("nowhere")) == (0.5, 10.0, None)


def test_the_fingerprint_is_that_of_the_worker_that_has_one() -> None:
    state = fold(
        begun((1, 1)),
        Fingerprint(step=5, sha="five"),
        Done(worker=0, steps=7, fingerprint="last"),
        Done(worker=1, steps=7, fingerprint=None),
    )
    assert (state.fingerprint, state.steps, state.step_fingerprints) == ("last", 7, {5: "five"})
    assert state.generation is not None
    assert state.generation.all_done


def test_timings_are_the_slowest_workers_summed_over_plans_and_bytes_are_all_workers() -> None:
    state = begun((1, 1))
    fold(
        state,
        HandedOver(step=4, worker=0, timings={"reduce": 1.0}, bytes_sent=10),
        HandedOver(step=4, worker=1, timings={"reduce": 2.0}, bytes_sent=20),
    )
    state.begin(Plan((2,)), 4, now=110.0)
    fold(state, Done(worker=0, steps=8, fingerprint="x", timings={"reduce": 4.0, "data": 1.0}, bytes_sent=5))
    assert state.all_timings() == {"reduce": 6.0, "data": 1.0}
    assert state.all_timings() == {"reduce": 6.0, "data": 1.0}
    assert state.bytes_sent == 35


def test_a_change_of_plan_is_an_event_and_its_pause_is_from_the_last_step_to_all_being_ready() -> None:
    state = begun((1, 1))
    fold(state, *(Ready(worker=w, pid=1, step=0, seconds=1.0) for w in (0, 1)), now=102.5)
    fold(state, step_done(Plan((1, 1)), 0, 0), step_done(Plan((1, 1)), 1, 0))
    fold(state, HandedOver(step=1))
    state.begin(Plan((2,)), 1, now=201.0)
    fold(state, Ready(worker=0, pid=1, step=1, seconds=1.0), now=203.1)
    assert state.start_seconds == 2.5
    ((step, seconds),) = state.switches
    assert (step, round(seconds, 6)) == (1, 3.0)
    assert [(event.step, event.what) for event in state.events] == [(0, "plan"), (1, "plan")]
    assert state.events[1].text == "From step 1 on 1 worker (2) instead of 2 workers (1+1)."
    assert state.plans == [(0, Plan((1, 1))), (1, Plan((2,)))]


def test_the_history_of_plans_names_the_step_at_which_workers_really_began() -> None:
    state = JobState(2)
    state.begin(Plan((2,)), 20, now=0.0)  # as the newest manifest says; it turns out to be damaged
    fold(state, Ready(worker=0, pid=1, step=10, seconds=1.0))
    assert state.plans == [(10, Plan((2,)))]
    assert state.steps == 10


def test_what_workers_report_becomes_an_event_with_its_time() -> None:
    state = fold(begun(), Event(worker=1, step=3, what="nonfinite", text="loss is nan."), now=123.0)
    event = state.events[-1]
    assert (event.time, event.step, event.what, event.text) == (123.0, 3, "nonfinite", "loss is nan.")


def test_workers_are_called_by_their_ests_and_ranks_of_stock_ddp_by_their_number() -> None:
    state = begun((2, 1, 3))
    labels = [label(state, worker) for worker in range(3)]
    assert labels == ["worker 0 · EST 0-1", "worker 1 · EST 2", "worker 2 · EST 3-5"]
    assert label(begun((1, 1), "ddp"), 1) == "rank 1"


def failed(worker: int, *, lost_peer: bool = False, ours: bool = False) -> Failed:
    return Failed(worker=worker, step=2, ours=ours, text=f"of {worker}", lost_peer=lost_peer)


def ended(worker: int, code: int, *, asked: bool = False) -> Exit:
    return Exit(worker=worker, code=code, asked=asked)


def test_the_failure_is_that_of_the_worker_that_names_its_own_trouble() -> None:
    state = fold(begun((1, 1, 1)), failed(2, lost_peer=True), failed(1), failed(0, lost_peer=True))
    failure = find_failure(state, [ended(2, 3), ended(0, 3), ended(1, 4)])
    assert failure is not None
    assert (failure.worker, failure.exit_code, failure.text) == (1, 4, "of 1")


def test_the_failure_is_a_silent_death_rather_than_a_peer_that_noticed_it() -> None:
    state = fold(begun((1, 1, 1)), failed(0, lost_peer=True))
    failure = find_failure(state, [ended(0, 3), ended(1, -9), ended(2, -15, asked=True)])
    assert failure is not None
    assert (failure.worker, failure.exit_code, failure.ours) == (1, 137, True)
    assert "SIGKILL" in failure.text
    assert "memory" in failure.text


def test_the_failure_is_the_lost_peer_where_nobody_else_is_to_blame() -> None:
    state = fold(begun((1, 1)), failed(0, lost_peer=True, ours=True))
    failure = find_failure(state, [ended(0, 3), ended(1, -9, asked=True)])
    assert failure is not None
    assert (failure.worker, failure.exit_code, failure.text) == (0, 3, "of 0")


def test_a_worker_that_failed_never_ends_the_job_with_success() -> None:
    for end in (ended(0, 0), ended(0, -9, asked=True)):
        failure = find_failure(fold(begun((1,)), failed(0)), [end])
        assert failure is not None
        assert failure.exit_code == 1


def test_there_is_no_failure_where_all_went_well() -> None:
    assert find_failure(begun((1, 1)), [ended(0, 0), ended(1, 0)]) is None


def elastic(*members: tuple[int, int, int]) -> JobState:
    state = JobState(sum(count for _, _, count in members))
    state.expect(Plan(tuple(count for _, _, count in members)), 0, now=100.0)
    state.enter([Member(worker=w, first=first, count=count) for w, first, count in members], 0, now=103.0)
    return state


def told(worker: int, step: int, ests: list[int]) -> StepDone:
    metrics: dict[str, list[float | None]] = {"loss": [float(est) for est in ests]}
    return StepDone(worker=worker, step=step, epoch=0, ests=ests, metrics=metrics, samples=1, time=200.0 + step)


def test_a_step_that_is_told_again_after_a_loss_is_passed_on_once() -> None:
    state = fold(elastic((0, 0, 2), (1, 2, 2)), told(0, 0, [0, 1]), told(0, 0, [0, 1]), told(0, 0, [2, 3]))
    (record,) = state.take_steps()
    assert record.metrics == {"loss": [0.0, 1.0, 2.0, 3.0]}
    fold(state, told(0, 0, [0, 1]), told(0, 0, [2, 3]))
    assert state.take_steps() == []
    assert (state.start_seconds, state.steps) == (3.0, 1)


def test_a_step_that_nobody_can_complete_any_more_is_passed_on_as_it_is() -> None:
    state = fold(elastic((0, 0, 1), (5, 1, 1)), told(0, 0, [0]), told(0, 1, [0, 1]))
    assert [record.step for record in state.take_steps()] == [1]
    state.close_steps(1)
    (record,) = state.take_steps()
    assert (record.step, record.metrics) == (0, {"loss": [0.0, None]})


def test_a_step_belongs_to_the_plan_of_its_time_and_workers_are_called_by_the_plan_in_force() -> None:
    state = elastic((0, 0, 1), (1, 1, 1))
    state.enter([Member(worker=7, first=0, count=2)], 1, now=110.0)
    fold(state, told(0, 0, [0]), told(7, 1, [0, 1]), told(1, 0, [1]))
    assert [(record.step, str(record.plan)) for record in state.take_steps()] == [(1, "2"), (0, "1+1")]
    assert (label(state, 7), label(state, 0)) == ("worker 7 · EST 0-1", "worker 0")
