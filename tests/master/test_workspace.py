import os
import stat
from pathlib import Path

import pytest

from easyscale.master.workspace import LOCK, PREFIX, workspace


def test_the_folder_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    with workspace(tmp_path, room=0) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "handoff").mkdir()
    assert list(tmp_path.iterdir()) == []


def test_it_is_on_disk_where_memory_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()
    for memory, room in ((tmp_path, 1 << 62), (tmp_path / "not there", 0)):
        with workspace(memory, room=room) as folder:
            assert folder.parent == tmp_path / "disk"


def test_what_a_killed_launcher_left_is_removed_but_not_what_a_living_one_holds(tmp_path: Path) -> None:
    left = tmp_path / f"{PREFIX}left"
    another = tmp_path / f"{PREFIX}of-something-else"
    for folder in (left, another):
        folder.mkdir()
    (left / LOCK).touch()
    with workspace(tmp_path, room=0) as living:
        for folder in (left, another, living):
            os.utime(folder, (0, 0))
        with workspace(tmp_path, room=0):
            assert not left.exists()
            assert another.exists()
            assert living.exists()


def test_a_young_folder_without_its_lock_taken_is_left_alone(tmp_path: Path) -> None:
    young = tmp_path / f"{PREFIX}young"
    young.mkdir()
    (young / LOCK).touch()
    with workspace(tmp_path, room=0):
        assert young.exists()
