"""Verdicts are found again for the same script and arguments, and for nothing else; the master takes them up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from easyscale.core.cluster import Slot
from easyscale.core.errors import UsageError
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.core.verdict import Verdict
from easyscale.master.brain import Brain
from easyscale.master.journal import Heading, Journal, read
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.situation import Terms
from easyscale.master.supervisor import Job
from easyscale.master.verdicts import find_verdict, keep_verdict, read_verdict

STAYS = Verdict(mixes=False, missing=("linalg_inv_ex",), device="cpu")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('training')")


def test_a_verdict_is_found_for_the_same_script_and_arguments() -> None:
    assert find_verdict(Target("train.py", ("--lr", "1"))) is None
    keep_verdict(Target("train.py", ("--lr", "1")), STAYS)
    assert find_verdict(Target("train.py", ("--lr", "1"))) == STAYS
    assert find_verdict(Target(str(Path("train.py").absolute()), ("--lr", "1"))) == STAYS


def test_no_verdict_is_found_for_other_arguments_or_after_the_script_has_changed() -> None:
    keep_verdict(Target("train.py"), STAYS)
    assert find_verdict(Target("train.py", ("--wide",))) is None
    Path("train.py").write_text("print('training differently')")
    assert find_verdict(Target("train.py")) is None


def test_a_newer_verdict_takes_the_place_of_the_older() -> None:
    keep_verdict(Target("train.py"), STAYS)
    keep_verdict(Target("train.py"), Verdict(mixes=True))
    assert find_verdict(Target("train.py")) == Verdict(mixes=True)


def test_a_module_is_known_by_its_name_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_verdict(Target("train", module=True), STAYS)
    assert find_verdict(Target("train", module=True)) == STAYS
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert find_verdict(Target("train", module=True)) is None


def test_a_damaged_verdict_or_a_script_that_is_gone_counts_as_none(tmp_path: Path) -> None:
    keep_verdict(Target("train.py"), STAYS)
    (kept,) = (tmp_path / "runtime").rglob("verdicts/*.json")
    kept.write_text('{"mixes": "perhaps"}')
    assert find_verdict(Target("train.py")) is None
    kept.write_text("{")
    assert find_verdict(Target("train.py")) is None
    assert find_verdict(Target("gone.py")) is None


def test_a_folder_that_cannot_be_written_to_does_not_fail_a_scan(tmp_path: Path) -> None:
    (tmp_path / "runtime" / "easyscale").mkdir(mode=0o700)
    (tmp_path / "runtime" / "easyscale" / "verdicts").write_text("a file is in its place")
    keep_verdict(Target("train.py"), STAYS)
    assert find_verdict(Target("train.py")) is None


def test_a_verdict_is_read_from_both_files_that_scan_writes(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(STAYS.plain()))
    assert read_verdict(path) == STAYS
    path.write_text(json.dumps({"verdict": STAYS.plain(), "families": []}))
    assert read_verdict(path) == STAYS


@pytest.mark.parametrize("text", ["", "[]", '{"verdict": 3}', '{"mixes": true, "slowdown": -1}'])
def test_a_file_without_a_verdict_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "verdict.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"holds no verdict[\s\S]*easyscale scan --write"):
        read_verdict(path)


def terms(verdict: Verdict | None) -> Terms:
    slots = (Slot(id="a", kind="v100"), Slot(id="b", kind="t4"))
    schedule = Schedule(((0, Plan((2, 2))),))
    return Terms(ests=4, schedule=schedule, rendezvous=str, level="D2", slots=slots, verdict=verdict)


def test_the_master_plans_a_d2_job_on_one_type_if_its_script_does_not_mix() -> None:
    assert Brain(terms(STAYS)).balance.mind.needs.level == "D1"
    assert Brain(terms(None)).balance.mind.needs.level == "D2"


def test_a_master_that_is_started_again_knows_the_verdict(tmp_path: Path) -> None:
    job = Job(target=Target("train.py"), schedule=Schedule(((0, Plan((1,))),)), template=WorkerSpec(ests=1))
    heading = Heading(job=job, limits=Limits(), outputs=Outputs(), title="train", first_step=0, verdict=STAYS)
    journal = Journal(tmp_path / "journal.jsonl")
    journal.head(heading)
    journal.close()
    assert read(tmp_path / "journal.jsonl")[0].verdict == STAYS
