"""A copy of the working directory: the same files give the same bytes; what must not travel does not."""

from __future__ import annotations

import hashlib
import os
import socket
import tarfile
from pathlib import Path

import pytest

from easyscale.core.errors import UsageError
from easyscale.service.packing import pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "lib" / "empty").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "lib" / "a.py").write_text("a = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return tar.getnames()


def put(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")


def test_the_same_files_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    first = pack(folder, tmp_path / "1.tar.gz")
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    (folder / "train.py").chmod(0o600)
    second = pack(folder, tmp_path / "2.tar.gz")
    assert first == second
    data = (tmp_path / "1.tar.gz").read_bytes()
    assert data == (tmp_path / "2.tar.gz").read_bytes()
    assert first.sha256 == hashlib.sha256(data).hexdigest()
    assert (first.files, first.size, first.archive_size) == (3, 9 + 6 + 10, len(data))
    (folder / "train.py").write_text("print(2)\n")
    assert pack(folder, tmp_path / "3.tar.gz").sha256 != first.sha256


def test_it_holds_files_folders_and_modes_and_nobodys_name(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        assert tar.getnames() == ["lib", "lib/a.py", "lib/empty", "run.sh", "train.py"]
        assert [oct(one.mode) for one in tar.getmembers()] == ["0o755", "0o644", "0o755", "0o755", "0o644"]
        assert {(one.uid, one.gid, one.uname, one.gname, one.mtime) for one in tar.getmembers()} == {(0, 0, "", "", 0)}
        tar.extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out" / "lib" / "a.py").read_text() == "a = 1\n"


def test_what_no_job_needs_stays_at_home(folder: Path, tmp_path: Path) -> None:
    put(folder, ".git/config", "lib/__pycache__/a.pyc", ".venv/bin/python", "b.pyc", ".pytest_cache/x", ".hidden")
    pack(folder, tmp_path / "a.tar.gz")
    assert names(tmp_path / "a.tar.gz") == [".hidden", "lib", "lib/a.py", "lib/empty", "run.sh", "train.py"]


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ("data/", {"data/a.bin", "data/b.txt", "sub/data/c.bin"}),
        ("/data/", {"data/a.bin", "data/b.txt"}),
        ("*.bin", {"data/a.bin", "sub/data/c.bin"}),
        ("data/*.bin", {"data/a.bin"}),
        ("**/data/*.bin", {"data/a.bin", "sub/data/c.bin"}),
        ("sub/**", {"sub/data/c.bin", "sub/x.txt"}),
        ("# comment\n\n*.txt\n!sub/x.txt", {"data/b.txt", "top.txt"}),
        ("?op.txt\ndata/[ab].*", {"top.txt", "data/a.bin", "data/b.txt"}),
        ("data/[!a].*", {"data/b.txt"}),
        ("top.txt/", set()),
    ],
)
def test_an_ignore_file_is_read_like_a_gitignore(folder: Path, tmp_path: Path, rules: str, left: set[str]) -> None:
    every = {"data/a.bin", "data/b.txt", "sub/data/c.bin", "sub/x.txt", "top.txt"}
    put(folder, *every)
    (folder / ".easyscaleignore").write_text(rules)
    pack(folder, tmp_path / "a.tar.gz")
    assert every - set(names(tmp_path / "a.tar.gz")) == left


def test_an_ignore_file_can_bring_back_what_is_left_out(folder: Path, tmp_path: Path) -> None:
    put(folder, "b.pyc")
    (folder / ".easyscaleignore").write_text("!b.pyc\n")
    pack(folder, tmp_path / "a.tar.gz")
    assert "b.pyc" in names(tmp_path / "a.tar.gz")
    (folder / ".easyscaleignore").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        pack(folder, tmp_path / "a.tar.gz")


def test_links_stay_inside_or_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "inside").symlink_to("lib/a.py")
    (folder / "whole").symlink_to(folder / "lib" / "a.py")
    (folder / "lib" / "up").symlink_to("../train.py")
    (folder / "folder").symlink_to("lib")
    (folder / "broken").symlink_to("nowhere.py")
    pack(folder, tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        links = {one.name: one.linkname for one in tar.getmembers() if one.issym()}
        assert not any(name.startswith("folder/") for name in tar.getnames())
    assert links == {
        "inside": "lib/a.py", "whole": "lib/a.py", "lib/up": "../train.py", "folder": "lib", "broken": "nowhere.py",
    }  # fmt: skip
    for number, target in enumerate(("../secret", "/etc/passwd", str(tmp_path))):
        link = folder / f"out{number}"
        link.symlink_to(target)
        with pytest.raises(UsageError, match=f"out{number} leads out") as error:
            pack(folder, tmp_path / "b.tar.gz")
        assert ".easyscaleignore" in error.value.now
        assert not (tmp_path / "b.tar.gz").exists()
        link.unlink()
    twice = folder / "twice"
    twice.symlink_to("hop/passwd")
    (folder / "hop").symlink_to("/etc")
    (folder / ".easyscaleignore").write_text("hop\n")
    with pytest.raises(UsageError, match="twice leads out"):
        pack(folder, tmp_path / "b.tar.gz")


def test_too_much_is_refused_with_the_largest_files(folder: Path, tmp_path: Path) -> None:
    (folder / "data.bin").write_bytes(b"x" * 300_000)
    (folder / "more.bin").write_bytes(b"x" * 200_000)
    with pytest.raises(UsageError, match=r"holds 0\.5 MB, more than the 0\.4 MB") as error:
        pack(folder, tmp_path / "a.tar.gz", most_bytes=400_000)
    assert "data.bin (0.3 MB), more.bin (0.2 MB)" in error.value.why
    assert ".easyscaleignore" in error.value.now
    assert not (tmp_path / "a.tar.gz").exists()


def test_too_many_files_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("easyscale.service.packing.MOST_FILES", 4)
    with pytest.raises(UsageError, match="more than 4 files"):
        pack(folder, tmp_path / "a.tar.gz")


def test_sockets_and_pipes_are_left_out(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        pack(folder, tmp_path / "a.tar.gz")
    assert not {"pipe", "socket"} & set(names(tmp_path / "a.tar.gz"))


def test_no_folder_and_no_room_are_told(folder: Path, tmp_path: Path) -> None:
    for wrong in (tmp_path / "none", folder / "train.py"):
        with pytest.raises(UsageError, match="There is no folder"):
            pack(wrong, tmp_path / "a.tar.gz")
    with pytest.raises(UsageError, match="cannot be packed"):
        pack(folder, Path("/dev/full"))


def test_odd_names_survive(folder: Path, tmp_path: Path) -> None:
    odd = ("ü.py", "a b.py", "new\nline.py", "x" * 200 + ".py", "-rf")
    put(folder, *odd)
    pack(folder, tmp_path / "a.tar.gz")
    assert set(odd) <= set(names(tmp_path / "a.tar.gz"))
