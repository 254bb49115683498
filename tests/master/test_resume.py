import json
from pathlib import Path

import pytest

from easyscale.core.errors import CheckpointError, UsageError
from easyscale.master.resume import first_step


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"step-{step:010d}"
    path.mkdir()
    (path / "checkpoint.json").write_text(json.dumps({"step": step}))
    return path


def test_a_job_that_does_not_resume_begins_at_step_0() -> None:
    assert first_step(None, "/somewhere") == 0


def test_latest_is_the_highest_step_whose_manifest_can_be_read(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        checkpoint(tmp_path, step)
    (tmp_path / "step-0000000200").mkdir()
    (tmp_path / "step-0000000300").mkdir()
    (tmp_path / "step-0000000300" / "checkpoint.json").write_text("{")
    assert first_step("latest", str(tmp_path)) == 100


@pytest.mark.parametrize("name", [".", "not yet"])
def test_auto_begins_anew_where_latest_is_refused(tmp_path: Path, name: str) -> None:
    folder = str(tmp_path / name)
    assert first_step("auto", folder) == 0
    with pytest.raises(CheckpointError, match="no checkpoint") as caught:
        first_step("latest", folder)
    assert "--resume auto" in caught.value.now
    if name == ".":
        checkpoint(tmp_path, 30)
        assert first_step("auto", folder) == 30


@pytest.mark.parametrize("resume", ["latest", "auto"])
def test_latest_without_a_checkpoint_folder_is_refused(resume: str) -> None:
    with pytest.raises(UsageError, match="where the checkpoints are"):
        first_step(resume, None)


def test_a_checkpoint_can_be_named(tmp_path: Path) -> None:
    assert first_step(str(checkpoint(tmp_path, 12)), None) == 12


def test_naming_a_folder_of_checkpoints_means_its_newest(tmp_path: Path) -> None:
    checkpoint(tmp_path, 12)
    checkpoint(tmp_path, 13)
    assert first_step(str(tmp_path), None) == 13


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"step": -1}', '{"step": "x"}', '{"step": true}', "\xff"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "checkpoint.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError) as caught:
        first_step(str(tmp_path), None)
    assert caught.value.now
