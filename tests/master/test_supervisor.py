"""The supervisor with real processes that stand in for workers (`stub_worker.py`)."""

import io
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from easyscale.backends.local import LocalLauncher, Target
from easyscale.core.errors import CheckpointError
from easyscale.core.plan import Plan, Schedule, parse_schedule
from easyscale.core.spec import WorkerSpec
from easyscale.master.launch import Outputs, run_job
from easyscale.master.progress import Screen
from easyscale.master.supervisor import Job, Outcome

STUB = (sys.executable, str(Path(__file__).parents[1] / "stub_worker.py"))


@dataclass
class Trial:
    """One job of stub workers, and what its launcher printed."""

    ests: int = 3
    schedule: str | None = None
    template: dict[str, object] = field(default_factory=dict)
    grace: float = 5.0
    outputs: Outputs | None = None
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)

    def run(self, *target: str) -> Outcome:
        schedule = (
            parse_schedule(self.schedule, self.ests) if self.schedule else Schedule(((0, Plan((1,) * self.ests)),))
        )
        template = WorkerSpec(ests=self.ests, **self.template)  # type: ignore[arg-type]
        job = Job(target=Target(target[0], target[1:]), schedule=schedule, template=template, grace=self.grace)
        return run_job(job, LocalLauncher(os.environ, STUB), Screen(self.out, self.err), self.outputs)


def nobody_is_left(outcome: Outcome) -> bool:
    generation = outcome.state.generation
    assert generation is not None
    assert generation.ready
    for ready in generation.ready.values():
        with pytest.raises(ProcessLookupError):
            os.kill(ready.pid, 0)
    return True


def test_a_job_on_a_fixed_plan_runs_to_its_end() -> None:
    trial = Trial(ests=4, schedule="0:2", template={"fingerprint_every": 2})
    outcome = trial.run("train", "5")
    state = outcome.state
    assert (outcome.exit_code, outcome.error, state.steps) == (0, None, 5)
    assert state.fingerprint is not None
    assert set(state.step_fingerprints) == {2, 4}
    assert state.losses == {step: [est + step / 100 for est in range(4)] for step in range(5)}
    assert f"done: 5 global steps in {outcome.seconds:.1f} s · sha256 {state.fingerprint[:16]}" in trial.err.getvalue()


def test_a_schedule_hands_the_state_from_plan_to_plan() -> None:
    outcome = Trial(ests=4, schedule="0:4,2:2,3:1,6:2+1+1").run("train", "8")
    state = outcome.state
    assert outcome.exit_code == 0
    assert state.steps == 8
    assert [(step, plan.split) for step, plan in state.plans] == [(0, (1,) * 4), (2, (2, 2)), (3, (4,)), (6, (2, 1, 1))]
    assert sorted(state.losses) == list(range(8))
    assert [step for step, _ in state.switches] == [2, 3, 6]
    assert state.bytes_sent == 10 * (4 + 2 + 1) + 100 * 3


def test_a_script_that_ends_before_the_next_plan_ends_the_job() -> None:
    outcome = Trial(ests=2, schedule="0:2,50:1").run("train", "3")
    assert (outcome.exit_code, outcome.state.steps) == (0, 3)
    assert len(outcome.state.plans) == 1


def test_a_job_resumes_in_the_middle_of_its_schedule_with_the_plan_in_force(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text('{"step": 4}')
    trial = Trial(ests=4, schedule="0:4,3:2,6:1", template={"resume": str(tmp_path)})
    state = trial.run("train", "8").state
    assert [(step, plan.workers) for step, plan in state.plans] == [(4, 2), (6, 1)]
    assert sorted(state.losses) == [4, 5, 6, 7]


def test_a_checkpoint_that_is_none_is_refused_before_any_worker_starts(tmp_path: Path) -> None:
    trial = Trial(template={"resume": str(tmp_path)})
    with pytest.raises(CheckpointError):
        trial.run("train")
    assert trial.out.getvalue() == ""


def test_the_rendezvous_and_the_hand_over_are_fresh_for_each_plan_and_gone_in_the_end() -> None:
    trial = Trial(ests=2, schedule="0:2,1:1")
    trial.run("train", "2")
    trial.schedule = None
    outcome = trial.run("environment")
    specs = [json.loads(line.partition("] ")[2])["EASYSCALE_WORKER"] for line in trial.out.getvalue().splitlines()]
    rendezvous = {json.loads(spec)["rendezvous"] for spec in specs}
    assert outcome.exit_code == 0
    assert len(rendezvous) == 1
    assert not Path(rendezvous.pop()).parent.exists()


def test_workers_lines_wear_their_label_and_keep_their_stream() -> None:
    trial = Trial(ests=3, schedule="0:2+1")
    assert trial.run("talk").exit_code == 0
    for who in ("worker 0 · EST 0-1", "worker 1 · EST 2"):
        for line in ("hello", "bar 1", "bar 2no newline"):
            assert f"[{who}] {line}\n" in trial.out.getvalue()
        assert f"[{who}] trouble\n" in trial.err.getvalue()


def test_ranks_of_stock_ddp_are_called_ranks() -> None:
    trial = Trial(ests=2, template={"engine": "ddp"})
    trial.run("talk")
    assert "[rank 1] hello\n" in trial.out.getvalue()


def test_a_script_that_never_joins_the_job_is_told_so() -> None:
    trial = Trial(ests=1)
    trial.run("talk")
    assert "without es.init()" in trial.err.getvalue()


def test_arguments_reach_the_script_untouched() -> None:
    trial = Trial(ests=1)
    trial.run("arguments", "1", "--ests", "9", "--", "-m")
    assert trial.out.getvalue() == '[worker 0 · EST 0] ["arguments", "1", "--ests", "9", "--", "-m"]\n'


def test_a_users_error_is_shown_whole_and_once_and_stops_the_others() -> None:
    trial = Trial()
    outcome = trial.run("user-error")
    assert outcome.exit_code == 1
    assert trial.err.getvalue().count("ValueError: bad data") == 1
    assert "[worker 1 · EST 1] failed:\nTraceback (most recent call last):\n" in trial.err.getvalue()
    assert outcome.error == "Traceback (most recent call last):\nValueError: bad data"
    assert nobody_is_left(outcome)


def test_an_error_of_ours_is_shown_without_a_traceback_and_gives_its_exit_code() -> None:
    trial = Trial()
    assert trial.run("our-error").exit_code == 2
    assert "error: It broke.\n  why: it was old.\n  now: buy another.\n" in trial.err.getvalue()


def test_a_killed_worker_is_named_rather_than_the_peers_that_lost_it() -> None:
    trial = Trial()
    outcome = trial.run("killed")
    assert outcome.exit_code == 128 + signal.SIGKILL
    assert "worker 1 · EST 1 was ended by SIGKILL" in trial.err.getvalue()
    assert "A peer left." not in trial.err.getvalue()


def test_a_worker_that_exits_without_a_word_gives_its_exit_code() -> None:
    trial = Trial()
    assert trial.run("exits").exit_code == 7
    assert "ended with exit code 7" in trial.err.getvalue()


def test_a_worker_that_does_not_leave_after_a_failure_is_killed() -> None:
    outcome = Trial(grace=0.2).run("stubborn")
    assert outcome.exit_code == 1
    assert outcome.error == "ValueError: mine"


@pytest.mark.parametrize(("behaviour", "number"), [("sigterm", signal.SIGTERM), ("sigint", signal.SIGINT)])
def test_a_signal_reaches_each_worker_once_and_the_launcher_ends_with_its_code(behaviour: str, number: int) -> None:
    trial = Trial(ests=1)
    outcome = trial.run(behaviour)
    assert outcome.exit_code == 128 + number
    assert [event.what for event in outcome.state.events] == ["plan", "checkpoint-saved"]
    assert outcome.error is not None
    assert "Stopped by SIG" in outcome.error
    assert "failed" not in trial.err.getvalue()
    assert nobody_is_left(outcome)


def test_a_second_ctrl_c_kills_workers_that_do_not_listen() -> None:
    outcome = Trial(ests=1).run("deaf")
    assert outcome.exit_code == 128 + signal.SIGINT
    assert nobody_is_left(outcome)


def test_a_signal_during_a_hand_over_waits_until_the_next_workers_can_save_the_state(tmp_path: Path) -> None:
    trial = Trial(ests=1, schedule="0:1,5:1", template={"checkpoint_dir": str(tmp_path)})
    outcome = trial.run("interrupted-hand-over")
    assert outcome.exit_code == 128 + signal.SIGTERM
    assert outcome.state.events[-1].what == "checkpoint-saved"
    assert [step for step, _ in outcome.state.plans] == [0, 5]


def test_a_signal_during_a_hand_over_ends_a_job_that_keeps_no_checkpoints() -> None:
    outcome = Trial(ests=1, schedule="0:1,5:1").run("interrupted-hand-over")
    assert outcome.exit_code == 128 + signal.SIGTERM
    assert [step for step, _ in outcome.state.plans] == [0]


def test_handlers_of_signals_are_given_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    Trial(ests=1).run("talk")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_job_leaves_its_report_and_its_metrics(tmp_path: Path) -> None:
    outputs = Outputs(report=tmp_path / "report.json", metrics_dir=tmp_path / "metrics")
    outcome = Trial(ests=2, schedule="0:2,2:1", outputs=outputs).run("train", "3")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["fingerprint"] == outcome.state.fingerprint
    assert report["losses"]["2"] == [0.02, 1.02]
    assert report["plans"] == [{"step": 0, "split": [1, 1]}, {"step": 2, "split": [2]}]
    assert "error" not in report
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["plan"]) for line in lines] == [(0, "1+1"), (1, "1+1"), (2, "2")]


def test_a_failed_job_leaves_its_report_too(tmp_path: Path) -> None:
    Trial(outputs=Outputs(report=tmp_path / "report.json")).run("user-error")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["error"].endswith("ValueError: bad data")
    assert "worker 1 · EST 1: ValueError: bad data" in [event["text"] for event in report["events"]]


def test_metrics_that_cannot_be_written_do_not_cost_the_training(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    (tmp_path / "checkpoint.json").write_text('{"step": 1}')  # resumes, so it is opened and not moved aside
    trial = Trial(ests=1, outputs=Outputs(metrics_dir=tmp_path), template={"resume": str(tmp_path)})
    outcome = trial.run("train", "3")
    assert (outcome.exit_code, outcome.state.steps) == (0, 3)
    assert "metrics-failed" in [event.what for event in outcome.state.events]
    assert "Metrics are no longer written" in trial.err.getvalue()
