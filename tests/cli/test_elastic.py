"""From flags to a master: what it is given, what is left of the job, and which process it runs in."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from easyscale.cli import elastic
from easyscale.cli.main import app
from easyscale.core.cluster import Slot
from easyscale.core.errors import PlanError, UsageError
from easyscale.core.plan import Plan
from easyscale.master.files import process_start
from easyscale.master.registry import JobFolder, list_jobs


@dataclass
class FakeMasters:
    """Stands in for `easyscale.master.master`."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    problem: Exception | None = None
    listens: bool = False
    devices: dict[str, Any] = field(default_factory=dict)

    def run_elastic(self, *args: Any, **devices: Any) -> Any:
        self.calls.append(args)
        self.devices = devices
        return self._end(args[4])

    def attach(self, *args: Any) -> Any:
        self.calls.append(args)
        return self._end(args[0])

    def _end(self, folder: JobFolder) -> Any:
        if self.listens:
            folder.write_master(os.getpid(), process_start(os.getpid()) or "", "127.0.0.1", 1)
        if self.problem is not None:
            raise self.problem
        return SimpleNamespace(exit_code=3, error="it broke", state=SimpleNamespace(steps=12, fingerprint="abc"))


@pytest.fixture
def masters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMasters:
    masters = FakeMasters()
    monkeypatch.setitem(sys.modules, "easyscale.master.master", masters)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return masters


def easyscale_run(*flags: str, monkeypatch: pytest.MonkeyPatch | None = None) -> Result:
    args = ["run", "--ests", "4", *flags, "train.py", "--lr", "0.1"]
    if monkeypatch is not None:
        monkeypatch.setattr(sys, "argv", ["easyscale", *args])
    return CliRunner().invoke(app, args)


def test_the_master_is_given_the_job_its_folder_and_the_limits(masters: FakeMasters) -> None:
    done = easyscale_run(
        "--workers", "1:3", "--name", "my job", "--heartbeat", "2", "--start-limit", "3", "--grace", "4",
        "--orphan", "5", "--max-restarts", "6", "--listen", "10.0.0.1", "--timeout", "7", "--report", "r.json",
    )  # fmt: skip
    assert done.exit_code == 3, done.output
    ((job, _, _, outputs, folder, limits),) = masters.calls
    assert job.schedule.entries[0][1].split == (2, 1, 1)
    assert job.target.args == ("--lr", "0.1")
    assert outputs.report == Path("r.json")
    assert folder.id.startswith("my-job-")
    assert folder.record().ests == 4
    assert (limits.heartbeat, limits.start, limits.grace, limits.orphan) == (2.0, 3.0, 4.0, 5.0)
    assert (limits.max_restarts, limits.listen, limits.workers) == (6, "10.0.0.1", (1, 3))
    assert job.template.timeout == 7.0


def test_a_plain_number_of_workers_is_no_range(masters: FakeMasters) -> None:
    easyscale_run("--workers", "2")
    assert masters.calls[0][5].workers is None
    easyscale_run()
    assert masters.calls[1][5].workers is None
    assert masters.calls[1][4].id.startswith("train-")


def test_the_result_is_left_for_wait(masters: FakeMasters) -> None:
    easyscale_run()
    (folder,) = list_jobs()
    result = folder.result()
    assert result is not None
    assert (result.exit_code, result.steps, result.fingerprint, result.error) == (3, 12, "abc", "it broke")


def test_a_job_that_is_refused_before_it_has_a_master_leaves_nothing(masters: FakeMasters) -> None:
    masters.problem = UsageError("No.", "so.", "go.")
    assert easyscale_run().exception is masters.problem
    assert list_jobs() == []


def test_a_job_whose_master_fails_has_ended(masters: FakeMasters) -> None:
    masters.problem, masters.listens = RuntimeError("a bug"), True
    easyscale_run()
    (folder,) = list_jobs()
    result = folder.result()
    assert result is not None
    assert (result.exit_code, result.error) == (2, "a bug")


def test_what_is_wrong_is_refused_before_there_is_a_job(masters: FakeMasters) -> None:
    for flags in (("--workers", "5"), ("--heartbeat", "0"), ("--device", "cuda,cpu"), ("--checkpoint-every", "3")):
        assert isinstance(easyscale_run(*flags).exception, UsageError)
    assert list_jobs() == []
    assert masters.calls == []


def test_a_job_without_a_master_is_taken_over(masters: FakeMasters, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = JobFolder.create("train", ("easyscale",), 4)
    folder.journal.touch()
    monkeypatch.setattr(JobFolder, "state", lambda _: "masterless")
    done = CliRunner().invoke(app, ["attach", folder.id])
    assert done.exit_code == 3
    assert masters.calls[0][0] == folder


def test_a_takeover_that_is_refused_changes_nothing(masters: FakeMasters, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = JobFolder.create("train", ("easyscale",), 4)
    folder.write_master(os.getppid(), "1", "127.0.0.1", 1)
    folder.journal.touch()
    monkeypatch.setattr(JobFolder, "state", lambda _: "masterless")
    masters.problem = UsageError("The job has a master.", "so.", "go.")
    assert CliRunner().invoke(app, ["attach", folder.id]).exception is masters.problem
    assert folder.result() is None


# ---------------------------------------------------------------------------------------- which process


def test_a_detached_job_starts_this_command_again(masters: FakeMasters, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(elastic, "detach", lambda _, command: started.append(tuple(command)) or 0)
    assert easyscale_run("--detach", monkeypatch=monkeypatch).exit_code == 0
    (folder,) = list_jobs()
    assert started[0][-9:] == (
        "run", "--internal", f"master:{folder.id}", "--ests", "4", "--detach", "train.py", "--lr", "0.1",
    )  # fmt: skip
    easyscale_run("--detach", "--restart-master", monkeypatch=monkeypatch)
    assert started[1][started[1].index("--internal") + 1].startswith("front:")
    assert masters.calls == []


def test_a_front_runs_the_master_and_then_attaches(masters: FakeMasters, monkeypatch: pytest.MonkeyPatch) -> None:
    fronts: list[tuple[Any, ...]] = []

    class Front:
        def __init__(self, *args: Any) -> None:
            fronts.append(args)

        def run(self) -> int:
            return 7

    monkeypatch.setattr(elastic, "Front", Front)
    assert easyscale_run("--restart-master", monkeypatch=monkeypatch).exit_code == 7
    folder, first, again = fronts[0]
    asked = ("run", "--internal", f"master:{folder.id}", "--ests", "4", "--restart-master", "train.py", "--lr", "0.1")
    assert first[-9:] == asked
    assert again[-2:] == ("attach", folder.id)
    args = ["run", "--internal", f"front:{folder.id}", *asked[3:]]
    monkeypatch.setattr(sys, "argv", ["easyscale", *args])
    CliRunner().invoke(app, args)
    assert fronts[1] == fronts[0], "a front in the background runs the same master, which is no front"
    assert masters.calls == []


def test_the_process_that_is_the_master_is_it(masters: FakeMasters) -> None:
    folder = JobFolder.create("train", ("easyscale",), 4)
    assert easyscale_run("--internal", f"master:{folder.id}", "--detach", "--restart-master").exit_code == 3
    assert masters.calls[0][4] == folder
    assert list_jobs() == [folder]


# ---------------------------------------------------------------------------------------- devices with names

DEVICES = [{"id": "gpu-0", "kind": "v100", "node": "n", "uuid": "GPU-1"}, {"id": "cpu-1", "kind": "v100"}]


def test_the_first_plan_is_on_the_devices_that_the_folder_names(masters: FakeMasters) -> None:
    folder = JobFolder.create("train", ("x",), 4, {"slots": DEVICES, "kinds": ["v100", "t4"]}, id="job-7.1")
    assert easyscale_run("--internal", "master:job-7.1", "--workers", "1:4").exit_code == 3
    assert masters.calls[0][4] == folder
    assert masters.calls[0][0].schedule.entries == ((0, Plan((2, 2))),)
    assert masters.devices == {
        "slots": (Slot(id="gpu-0", kind="v100", node="n", uuid="GPU-1"), Slot(id="cpu-1", kind="v100")),
        "kinds": ("v100", "t4"),
    }


def test_a_split_for_as_many_workers_is_kept(masters: FakeMasters) -> None:
    JobFolder.create("train", ("x",), 4, {"slots": DEVICES}, id="job-1")
    easyscale_run("--internal", "master:job-1", "--split", "3,1")
    assert masters.calls[0][0].schedule.entries == ((0, Plan((3, 1))),)


def test_without_devices_a_job_runs_as_it_always_did(masters: FakeMasters) -> None:
    easyscale_run("--workers", "3")
    assert masters.devices == {"slots": None, "kinds": ()}
    assert masters.calls[0][0].schedule.entries[0][1].workers == 3


@pytest.mark.parametrize("slots", [[], "gpu-0", [{"id": "a"}], [{"id": 1, "kind": "x"}], [DEVICES[0], DEVICES[0]], [7]])
def test_devices_that_cannot_be_read_are_refused(slots: Any, masters: FakeMasters) -> None:
    JobFolder.create("train", ("x",), 4, {"slots": slots}, id="job-1")
    refused = easyscale_run("--internal", "master:job-1")
    assert isinstance(refused.exception, UsageError)
    assert refused.exception.what == "The devices of the job job-1 cannot be read."
    assert masters.calls == []


def test_a_job_with_named_devices_has_no_schedule(masters: FakeMasters) -> None:
    JobFolder.create("train", ("x",), 4, {"slots": DEVICES}, id="job-1")
    assert isinstance(easyscale_run("--internal", "master:job-1", "--schedule", "0:2,5:1").exception, PlanError)
    assert masters.calls == []


# ---------------------------------------------------------------------------------------- --rebalance


@pytest.mark.parametrize(
    ("flags", "moves"),
    [
        ((), False),
        (("--workers", "2"), False),
        (("--workers", "1:3"), True),
        (("--workers", "1:3", "--no-rebalance"), False),
        (("--workers", "2", "--rebalance"), True),
        (("--workers", "1:2", "--split", "2,2"), False),
        (("--split", "3,1"), False),
        (("--schedule", "0:2,5:1"), False),
        (("--workers", "1:3", "--determinism", "D0"), False),
    ],
)
def test_ests_move_by_themselves_only_where_a_range_or_the_flag_allows_it(
    flags: tuple[str, ...], moves: bool, masters: FakeMasters
) -> None:
    assert easyscale_run(*flags).exit_code == 3
    assert masters.calls[0][5].rebalance is moves


@pytest.mark.parametrize(
    "other", [("--split", "3,1"), ("--schedule", "0:2"), ("--engine", "ddp"), ("--determinism", "D0")]
)
def test_a_plan_that_is_asked_for_and_moved_at_once_is_refused(other: tuple[str, ...], masters: FakeMasters) -> None:
    problem = easyscale_run("--rebalance", *other).exception
    assert isinstance(problem, UsageError | PlanError)
    assert "--rebalance does not go with" in str(problem)
    assert masters.calls == []
