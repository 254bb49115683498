import os
import subprocess
import sys
from pathlib import Path

import pytest

from easyscale.cli.checks import PlanWish, check_level, check_settings, default_workers, parse_workers, schedule_for
from easyscale.cli.elastic import Elastic, check_elastic
from easyscale.core.errors import PlanError, UnsupportedError, UsageError
from easyscale.core.plan import Plan, Schedule, parse_schedule
from easyscale.core.spec import Engine, WorkerSpec


def easyscale(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-m", "easyscale", *args), capture_output=True, text=True, cwd=cwd, check=False, timeout=60
    )


def test_a_fixed_plan_is_a_schedule_of_one_entry() -> None:
    assert schedule_for(PlanWish(ests=5, workers="2"), {}) == Schedule(((0, Plan((3, 2))),))
    assert schedule_for(PlanWish(ests=4, split="2,1,1"), {}) == Schedule(((0, Plan((2, 1, 1))),))
    assert schedule_for(PlanWish(ests=4, split="2,1,1", workers="3"), {}).entries[0][1].workers == 3


def test_a_range_starts_with_its_most_but_not_with_more_than_there_are_ests() -> None:
    assert parse_workers("2", 4) == (2, 2)
    assert parse_workers("1:3", 4) == (1, 3)
    assert parse_workers("2:8", 4) == (2, 4)
    assert schedule_for(PlanWish(ests=4, workers="1:3"), {}) == Schedule(((0, Plan((2, 1, 1))),))
    assert schedule_for(PlanWish(ests=4, workers="1:9"), {}) == Schedule(((0, Plan((1, 1, 1, 1))),))


def test_a_schedule_is_taken_as_written() -> None:
    assert schedule_for(PlanWish(ests=4, schedule="0:4,10:2+1+1"), {}) == parse_schedule("0:4,10:2+1+1", 4)


def test_stock_ddp_has_one_process_per_est() -> None:
    assert schedule_for(PlanWish(ests=3, engine="ddp"), {}) == Schedule(((0, Plan((1, 1, 1))),))


@pytest.mark.parametrize(
    "wish",
    [
        PlanWish(ests=4, engine="ddp", workers="4"),
        PlanWish(ests=4, engine="ddp", split="1,1,1,1"),
        PlanWish(ests=4, engine="ddp", schedule="0:4"),
        PlanWish(ests=4, schedule="0:4", workers="2"),
        PlanWish(ests=4, schedule="0:4", split="2,2"),
        PlanWish(ests=4, split="2,2", workers="3"),
        PlanWish(ests=4, workers="5"),
        PlanWish(ests=4, workers="5:6"),
        PlanWish(ests=4, workers="3:2"),
        PlanWish(ests=4, workers="0"),
        PlanWish(ests=4, workers="many"),
        PlanWish(ests=4, workers="1:"),
        PlanWish(ests=4, workers=":2"),
        PlanWish(ests=4, workers="1:2:3"),
        PlanWish(ests=4, workers="-1"),
        PlanWish(ests=4, workers="²"),
        PlanWish(ests=4, split="2,2", workers="1:3"),
        PlanWish(ests=4, schedule="0:4", workers="1:2"),
        PlanWish(ests=4, engine="ddp", workers="1:4"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(wish: PlanWish) -> None:
    with pytest.raises(PlanError) as caught:
        schedule_for(wish, {})
    assert caught.value.why
    assert caught.value.now


def test_by_default_there_is_a_worker_for_each_gpu_else_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("easyscale.backends.local.gpus", lambda _: 3)
    monkeypatch.setattr("easyscale.backends.local.cores", lambda: 2)
    assert default_workers(PlanWish(ests=8), {}) == 3
    assert default_workers(PlanWish(ests=2), {}) == 2
    assert default_workers(PlanWish(ests=8, device="cpu"), {}) == 2
    monkeypatch.setattr("easyscale.backends.local.gpus", lambda _: 0)
    assert default_workers(PlanWish(ests=8), {}) == 2
    assert schedule_for(PlanWish(ests=8), {}).entries[0][1].workers == 2


def test_devices_of_several_types_are_for_d2_alone() -> None:
    for level in ("D0", "D1"):
        with pytest.raises(UnsupportedError, match=f"does not go with --determinism {level}") as caught:
            check_settings(WorkerSpec(ests=2, device="cuda,cpu", determinism=level))
        assert "D2" in caught.value.now
    check_settings(WorkerSpec(ests=2, device="cuda,cpu", determinism="D2"))


@pytest.mark.parametrize(
    "template",
    [
        WorkerSpec(ests=1, engine="ddp", checkpoint_dir="/x"),
        WorkerSpec(ests=1, engine="ddp", resume="latest"),
        WorkerSpec(ests=1, checkpoint_every=5),
        WorkerSpec(ests=1, checkpoint_seconds=5.0),
        WorkerSpec(ests=1, timeout=0.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(template: WorkerSpec) -> None:
    with pytest.raises(UsageError) as caught:
        check_settings(template)
    assert caught.value.why
    assert caught.value.now


def test_a_schedule_at_level_d0_is_refused() -> None:
    template = WorkerSpec(ests=4, determinism="D0")
    with pytest.raises(PlanError, match="does not go with --determinism D0"):
        check_level(template, schedule_for(PlanWish(ests=4, schedule="0:4,2:1"), {}))
    check_level(template, schedule_for(PlanWish(ests=4, schedule="0:4"), {}))


@pytest.mark.parametrize(
    ("flags", "engine"),
    [
        (Elastic(name="j", heartbeat=0.0), "est"),
        (Elastic(name="j", start_limit=-1.0), "est"),
        (Elastic(name="j", grace=float("nan")), "est"),
        (Elastic(name="j", orphan=float("inf")), "est"),
        (Elastic(name="j", detach=True), "ddp"),
        (Elastic(name="j", restart_master=True), "ddp"),
        (Elastic(name="j", max_restarts=1), "ddp"),
    ],
)
def test_limits_that_make_no_sense_are_refused(flags: Elastic, engine: Engine) -> None:
    with pytest.raises(UsageError) as caught:
        check_elastic(flags, engine)
    assert caught.value.why
    assert caught.value.now


def test_an_error_of_ours_is_three_lines_on_stderr_and_exit_code_2(tmp_path: Path) -> None:
    done = easyscale("run", "--ests", "2", "missing.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: There is no script missing.py.",
        f"  why: no such file was found from {tmp_path}.",
        "  now: check the path; options of easyscale come before the script, and -m runs a module by name.",
    ]


@pytest.mark.parametrize(
    "flags",
    [
        ("--ests", "4", "--workers", "5"),
        ("--ests", "4", "--schedule", "nonsense"),
        ("--ests", "4", "--device", "cuda,cpu"),
        ("--ests", "4", "--device", "mps", "--determinism", "d2"),
        ("--ests", "4", "--resume", "latest"),
        ("--ests", "4", "--resume", "no-such-checkpoint"),
        ("--ests", "4", "--report", "no/such/folder.json"),
        ("--ests", "4", "--metrics-dir", "train.py"),
        ("--ests", "4", "--engine", "ddp", "--checkpoint-dir", "x"),
    ],
)
def test_what_a_user_gets_wrong_is_no_traceback(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text("raise AssertionError('it was started')")
    done = easyscale("run", *flags, "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "  why: " in done.stderr
    assert "  now: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "it was started" not in done.stderr


@pytest.mark.parametrize("flags", [("run", "train.py"), ("run", "--ests", "0", "train.py"), ("fly",), ("run", "--fly")])
def test_unknown_and_missing_flags_are_usage_errors(flags: tuple[str, ...]) -> None:
    done = easyscale(*flags)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Usage:" in done.stderr


def test_the_version_is_told() -> None:
    done = easyscale("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("easyscale ")


def test_a_pipe_that_closes_early_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(
            (sys.executable, "-m", "easyscale", "--help"), stdout=out, stderr=subprocess.PIPE, check=False
        )
    assert b"Traceback" not in done.stderr
