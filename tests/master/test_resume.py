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


def test_latest_of_no_checkpoint_at_all_begins_at_step_0(tmp_path: Path) -> None:
    assert first_step("latest", str(tmp_path)) == 0
    assert first_step("latest", str(tmp_path / "not yet")) == 0


def test_latest_without_a_checkpoint_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="where the checkpoints are"):
        first_step("latest", None)


def test_a_checkpoint_can_be_named(tmp_path: Path) -> None:
    assert first_step(str(checkpoint(tmp_path, 12)), None) == 12


def test_naming_the_folder_of_checkpoints_is_refused_with_the_flags_that_would_work(tmp_path: Path) -> None:
    checkpoint(tmp_path, 12)
    with pytest.raises(CheckpointError, match="step-0000000012") as caught:
        first_step(str(tmp_path), None)
    assert f"--resume latest --checkpoint-dir {tmp_path}" in caught.value.now


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"step": -1}', '{"step": "x"}', '{"step": true}', "\xff"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "checkpoint.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError) as caught:
        first_step(str(tmp_path), None)
    assert caught.value.now
