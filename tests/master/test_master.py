"""The master of an elastic job with real processes that stand in for workers (`stub_elastic_worker.py`)."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from easyscale.backends.local import LocalLauncher
from easyscale.client import Address, JobClient, RefusedError
from easyscale.core.errors import EasyScaleError
from easyscale.core.plan import Plan, Schedule, parse_schedule
from easyscale.core.requests import JobStatus
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.master import attach, run_elastic
from easyscale.master.progress import Screen
from easyscale.master.registry import JobFolder
from easyscale.master.supervisor import Job, Outcome

TESTS = Path(__file__).parents[1]
STUB = (sys.executable, str(TESTS / "stub_elastic_worker.py"))


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@dataclass
class Trial:
    """One elastic job of stub workers. `during` acts on it from another thread while the master runs in this one."""

    ests: int = 4
    workers: int = 2
    schedule: str | None = None
    limits: Limits = field(default_factory=Limits)
    template: dict[str, object] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=Outputs)
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)
    problems: list[BaseException] = field(default_factory=list)
    folder: JobFolder = field(init=False)

    def job(self, *target: str) -> Job:
        plans = (
            parse_schedule(self.schedule, self.ests)
            if self.schedule
            else Schedule(((0, Plan.even(self.ests, self.workers)),))
        )
        template = WorkerSpec(ests=self.ests, **self.template)  # type: ignore[arg-type]
        return Job(target=Target(target[0], target[1:]), schedule=plans, template=template)

    def run(self, *target: str, during: Callable[[JobClient], None] | None = None) -> Outcome:
        self.folder = JobFolder.create("stub", target, self.ests)
        screen = Screen(self.out, self.err)
        launcher = LocalLauncher(os.environ, STUB)
        thread = threading.Thread(target=self._during, args=(during,), daemon=True)
        thread.start()
        outcome = run_elastic(self.job(*target), launcher, screen, self.outputs, self.folder, self.limits)
        thread.join(30)
        assert not self.problems, self.problems
        assert self.folder.live_workers() == []
        return outcome

    def _during(self, act: Callable[[JobClient], None] | None) -> None:
        try:
            if act is not None:
                act(self.client())
        except BaseException as problem:
            self.problems.append(problem)
            with contextlib.suppress(EasyScaleError):  # the job may be over already
                self.client().stop(now=True)

    def client(self) -> JobClient:
        def find() -> Address | None:
            master, record = self.folder.master(), self.folder.record()
            assert record is not None
            return None if master is None else Address(host=master.host, port=master.port, token=record.token)

        while self.folder.master() is None:
            time.sleep(0.01)
        return JobClient(self.folder.id, find)

    def pid(self, worker: int) -> int:
        return next(record.pid for record in self.folder.workers() if record.worker == worker)

    def texts(self, outcome: Outcome, what: str) -> list[str]:
        return [event.text for event in outcome.state.events if event.what == what]


def at_step(client: JobClient, step: int) -> JobStatus:
    return client.wait_until(lambda status: status.step >= step, 30.0)


def in_plan(client: JobClient, *workers: int) -> JobStatus:
    return client.wait_until(
        lambda status: status.state == "training" and tuple(seat.worker for seat in status.seats) == workers, 30.0
    )


def losses_of(outcome: Outcome, most_holes: int | None = None) -> bool:
    """Each step has the loss of each EST, whoever ran it; but who dies after a step takes its word along."""
    holes = 0
    for step, row in outcome.state.losses.items():
        assert all(loss in (None, est + step / 100) for est, loss in enumerate(row))
        holes += None in row
    lost = sum(len(recovery["workers"]) for recovery in outcome.state.recoveries)
    return holes <= (lost if most_holes is None else most_holes)


def test_a_job_runs_to_its_end_and_leaves_report_and_metrics(tmp_path: Path) -> None:
    outputs = Outputs(report=tmp_path / "report.json", metrics_dir=tmp_path / "metrics")
    trial = Trial(outputs=outputs)
    outcome = trial.run("train", "20")
    assert (outcome.exit_code, outcome.error, outcome.state.steps) == (0, None, 20)
    assert losses_of(outcome)
    assert outcome.state.fingerprint is not None
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["plans"] == [{"step": 0, "split": [2, 2]}]
    assert (report["recoveries"], report["lost_steps"], report["dropped"]) == ([], 0, {})
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(20))
    assert "done: 20 global steps" in trial.err.getvalue()


def test_workers_lines_wear_the_label_of_the_plan_in_force() -> None:
    trial = Trial()
    trial.run("talk", "10")
    assert "[worker 0 · EST 0-1] hello from 0\n" in trial.out.getvalue()
    assert "[worker 1 · EST 2-3] trouble\n" in trial.err.getvalue()


def test_growing_shrinking_and_leaving_while_it_trains(tmp_path: Path) -> None:
    trial = Trial(outputs=Outputs(report=tmp_path / "report.json"))

    def during(client: JobClient) -> None:
        at_step(client, 5)
        assert client.scale(workers=4).split == (1, 1, 1, 1)
        in_plan(client, 0, 1, 2, 3)
        client.scale(leave=0)
        in_plan(client, 1, 2, 3)
        client.scale(workers=1)
        in_plan(client, 1)
        client.scale(split=(1, 3))
        in_plan(client, 1, 4)
        with pytest.raises(RefusedError):
            client.scale(workers=5)
        client.stop()

    outcome = trial.run("train", "1000000", during=during)
    assert outcome.exit_code == 143
    assert losses_of(outcome)
    assert [plan.split for _, plan in outcome.state.plans] == [(2, 2), (1, 1, 1, 1), (2, 1, 1), (4,), (1, 3)]
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["timings"]["switches"]) == 4
    assert [step for step, _ in outcome.state.switches] == [step for step, _ in outcome.state.plans[1:]]
    assert report["error"].startswith("Stopped by SIGTERM")


def test_a_killed_worker_costs_no_step(tmp_path: Path) -> None:
    trial = Trial(ests=6, workers=3, outputs=Outputs(report=tmp_path / "r.json", metrics_dir=tmp_path / "m"))

    def during(client: JobClient) -> None:
        at_step(client, 10)
        os.kill(trial.pid(1), signal.SIGKILL)
        in_plan(client, 0, 2)
        os.kill(trial.pid(0), signal.SIGKILL)
        in_plan(client, 2)

    outcome = trial.run("train", "300", "0.01", during=during)
    assert (outcome.exit_code, outcome.state.steps, outcome.state.lost_steps) == (0, 300, 0)
    assert losses_of(outcome)
    first, second = trial.texts(outcome, "worker-lost")
    assert "was killed by signal 9 during step" in first
    assert "its ESTs 2-3 continue on workers 0 and 2; 0 steps lost" in first
    assert "its ESTs 0-2 continue on worker 2; 0 steps lost" in second
    lines = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(300))


def test_a_stopped_worker_is_found_and_fenced() -> None:
    trial = Trial(limits=Limits(heartbeat=1.0))

    def during(client: JobClient) -> None:
        at_step(client, 10)
        os.kill(trial.pid(1), signal.SIGSTOP)
        in_plan(client, 0)
        client.stop()

    outcome = trial.run("train", "1000000", "0.01", during=during)
    assert "did not answer for 1 s" in trial.texts(outcome, "worker-lost")[0]


def test_sigterm_to_a_worker_moves_its_ests_and_it_exits_well() -> None:
    trial = Trial()

    def during(client: JobClient) -> None:
        at_step(client, 10)
        os.kill(trial.pid(0), signal.SIGTERM)
        in_plan(client, 1)
        client.stop()

    outcome = trial.run("train", "1000000", during=during)
    assert trial.texts(outcome, "worker-lost") == []
    assert len(trial.texts(outcome, "worker-left")) == 1


def test_a_schedule_is_followed() -> None:
    outcome = Trial(schedule="0:2,30:4,60:1").run("train", "80", "0.01")
    assert outcome.exit_code == 0
    assert [(step, plan.workers) for step, plan in outcome.state.plans] == [(0, 2), (30, 4), (60, 1)]
    assert losses_of(outcome)


@pytest.mark.parametrize(
    ("behaviour", "reason"), [("slow-newcomer", "was not ready in 2 s"), ("bad-newcomer", "ValueError: no data")]
)
def test_a_newcomer_that_fails_cancels_the_switch_and_the_job_goes_on(behaviour: str, reason: str) -> None:
    trial = Trial(limits=Limits(start=2.0))

    def during(client: JobClient) -> None:
        at_step(client, 5)
        client.scale(workers=3)
        client.wait_until(lambda s: any(e.what == "switch-cancelled" for e in s.events), 30.0, events=5)
        step = client.status().step
        at_step(client, step + 5)
        client.stop()

    outcome = trial.run(behaviour, "1000000", during=during)
    (text,) = trial.texts(outcome, "switch-cancelled")
    assert reason in text
    assert [plan.split for _, plan in outcome.state.plans] == [(2, 2)]


def test_a_newcomer_that_dies_as_it_joins_does_not_cost_a_step() -> None:
    trial = Trial()

    def during(client: JobClient) -> None:
        at_step(client, 5)
        client.scale(workers=3)
        client.wait_until(lambda s: any(e.what == "switch-cancelled" for e in s.events), 30.0, events=5)
        step = client.status().step
        at_step(client, step + 5)
        client.stop()

    outcome = trial.run("dies-joining", "1000000", during=during)
    assert losses_of(outcome)
    assert outcome.state.lost_steps == 0


def test_a_users_error_is_shown_whole_and_once_with_est_step_and_worker() -> None:
    trial = Trial()
    outcome = trial.run("user-error", "100")
    assert outcome.exit_code == 1
    assert "[worker 1 · EST 2 · step 3] failed:\nTraceback\nValueError: bad data\n" in trial.err.getvalue()
    assert trial.err.getvalue().count("ValueError: bad data") == 1


def test_a_worker_without_memory_hands_its_share_to_another() -> None:
    trial = Trial()
    outcome = trial.run("out-of-memory", "50")
    assert (outcome.exit_code, outcome.state.steps) == (0, 50)
    assert "ran out of memory" in trial.texts(outcome, "worker-lost")[0]


def test_a_job_whose_workers_are_all_killed_starts_anew_from_its_checkpoint(tmp_path: Path) -> None:
    trial = Trial(limits=Limits(max_restarts=1), template={"checkpoint_dir": str(tmp_path)})

    def during(client: JobClient) -> None:
        at_step(client, 20)
        pids = [trial.pid(0), trial.pid(1)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    os.environ["STUB_CHECKPOINT"] = "7"
    try:
        outcome = trial.run("train", "60", "0.01", during=during)
    finally:
        del os.environ["STUB_CHECKPOINT"]
    assert (outcome.exit_code, outcome.state.steps) == (0, 60)
    assert outcome.state.lost_steps >= 13
    assert losses_of(outcome)


def test_all_workers_killed_without_restarts_fails_the_job() -> None:
    trial = Trial()

    def during(client: JobClient) -> None:
        at_step(client, 5)
        for pid in [trial.pid(0), trial.pid(1)]:
            os.kill(pid, signal.SIGKILL)

    outcome = trial.run("train", "1000000", during=during)
    assert outcome.exit_code == 137
    assert "--resume latest" in (outcome.error or "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_master_stops_the_job_with_a_checkpoint(
    number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    former = signal.signal(number, signal.default_int_handler)  # under `nohup` it would be ignored, as it should be
    request.addfinalizer(lambda: signal.signal(number, former))
    trial = Trial()

    def during(client: JobClient) -> None:
        at_step(client, 5)
        os.kill(os.getpid(), number)

    outcome = trial.run("train", "1000000", during=during)
    assert (outcome.exit_code, outcome.interrupted) == (128 + number, True)
    assert len(trial.texts(outcome, "checkpoint-saved")) == 2


def test_a_script_that_never_joins_the_job_is_told_so() -> None:
    trial = Trial()
    assert trial.run("plain", "1").exit_code == 0
    assert "without es.init()" in trial.err.getvalue()


def test_frames_that_are_not_ours_are_dropped_and_counted() -> None:
    trial = Trial()
    counts: dict[str, int] = {}

    def during(client: JobClient) -> None:
        at_step(client, 5)
        master = trial.folder.master()
        assert master is not None
        frame = {"v": 1, "token": "wrong", "from": 0, "seq": None}
        frame["body"] = {"kind": "hello", "worker": 0, "pid": 1, "ests": []}
        right = frame | {"token": trial.folder.record().token}  # type: ignore[union-attr]
        beat = right | {"body": {"kind": "beat", "worker": 0, "epoch": 0, "step": 0, "waiting": False}}
        stranger = right | {"from": 99, "body": {"kind": "hello", "worker": 99, "pid": 1, "ests": []}}
        for line in (b"not json", *(json.dumps(raw).encode() for raw in (frame, beat, stranger)), b"x" * (2 << 20)):
            with socket.create_connection((master.host, master.port), timeout=5) as link, contextlib.suppress(OSError):
                link.sendall(line + b"\n")
                link.settimeout(0.3)
                link.recv(100)
        step = client.status().step
        at_step(client, step + 5)
        counts.update(client.status().dropped)
        client.stop()

    trial.run("train", "1000000", during=during)
    assert counts == {"unreadable": 1, "wrong token": 1, "no hello": 1, "nobody": 1, "too long": 1}


# ---------------------------------------------------------------------------------------- another master

MASTER = """
import os, sys
from easyscale.backends.local import LocalLauncher
from easyscale.core.errors import EasyScaleError
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.master import run_elastic
from easyscale.master.progress import Screen
from easyscale.master.registry import JobFolder
from easyscale.master.supervisor import Job
from pathlib import Path
job = Job(target=Target(sys.argv[2], tuple(sys.argv[3:])), schedule=Schedule(((0, Plan((2, 2))),)),
          template=WorkerSpec(ests=4))
outputs = Outputs(report=Path(os.environ["REPORT"]), metrics_dir=Path(os.environ["METRICS"]))
run_elastic(job, LocalLauncher(os.environ, (sys.executable, os.environ["STUB"])), Screen(sys.stdout, sys.stderr),
            outputs, JobFolder.open(sys.argv[1]), Limits())
"""


@contextlib.contextmanager
def another_master(folder: JobFolder, tmp_path: Path, *target: str) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ, "STUB": STUB[1], "REPORT": str(tmp_path / "report.json"), "METRICS": str(tmp_path / "metrics"),
    }  # fmt: skip
    with subprocess.Popen(
        (sys.executable, "-c", MASTER, folder.id, *target), env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as master:  # fmt: skip
        try:
            yield master
        finally:
            master.kill()


def test_a_master_that_is_killed_is_replaced_and_the_workers_go_on_meanwhile(tmp_path: Path) -> None:
    trial = Trial()
    trial.folder = JobFolder.create("stub", ("train",), 4)
    with another_master(trial.folder, tmp_path, "train", "600", "0.01") as master:
        client = trial.client()
        at_step(client, 20)
        client.scale(workers=3)
        in_plan(client, 0, 1, 2)
        step = client.status().step
        master.kill()
        master.wait()
    assert trial.folder.state() == "masterless"
    pids = {record.worker: record.pid for record in trial.folder.workers()}
    time.sleep(0.5)  # they train without a master
    outcome = attach(trial.folder, LocalLauncher(os.environ, STUB), Screen(trial.out, trial.err))
    assert (outcome.exit_code, outcome.state.steps, outcome.state.lost_steps) == (0, 600, 0)
    assert sorted(pids) == [0, 1, 2]
    assert losses_of(outcome)
    assert len(outcome.state.losses) == 600
    assert [plan.split for _, plan in outcome.state.plans] == [(2, 2), (2, 1, 1)]
    (text,) = trial.texts(outcome, "master-restarted")
    assert "3 workers live" in text
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(600))
    assert json.loads((tmp_path / "report.json").read_text())["steps"] == 600
    assert step < 600


def test_a_worker_that_died_while_there_was_no_master_is_recovered_by_the_next(tmp_path: Path) -> None:
    trial = Trial()
    trial.folder = JobFolder.create("stub", ("train",), 4)
    with another_master(trial.folder, tmp_path, "train", "200", "0.01") as master:
        at_step(trial.client(), 20)
        master.kill()
        master.wait()
    os.kill(trial.pid(1), signal.SIGKILL)
    outcome = attach(trial.folder, LocalLauncher(os.environ, STUB), Screen(trial.out, trial.err))
    assert (outcome.exit_code, outcome.state.steps, outcome.state.lost_steps) == (0, 200, 0)
    (text,) = trial.texts(outcome, "worker-lost")
    assert "ended during step" in text
    assert losses_of(outcome, 100)  # what the dead one could tell nobody is lost with it
