"""Working directories as users send them: nothing gets out of its folder, nothing is without end."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from easyscale.core.errors import UsageError
from easyscale.service import snapshots
from easyscale.service.errors import NotFoundError
from easyscale.service.snapshots import Snapshots


@pytest.fixture
def store(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "snapshots")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, size, 0o755
    return info


def packed(tmp_path: Path, *members: tarfile.TarInfo) -> Path:
    path = tmp_path / "sent.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(b"x" * info.size))
    return path


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "snapshots").iterdir())


def test_the_same_bytes_are_the_same_snapshot(store: Snapshots, tmp_path: Path) -> None:
    sent = packed(tmp_path, member("train.py", size=3), member("sub", tarfile.DIRTYPE), member("sub/data", size=5))
    name = store.take(sent)
    assert store.take(sent) == name
    assert (store.folder(name) / "sub" / "data").read_bytes() == b"xxxxx"
    assert left(tmp_path) == [name]


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside.py"),
        member("a/../../outside.py"),
        member("link", tarfile.SYMTYPE, "../outside.py"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.LNKTYPE, "../outside.py"),
        member("null", tarfile.CHRTYPE),
        member("disk", tarfile.BLKTYPE),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name}-{info.linkname}",
)
def test_what_leads_out_or_is_no_plain_file_is_refused(store: Snapshots, tmp_path: Path, bad: tarfile.TarInfo) -> None:
    with pytest.raises(UsageError):
        store.take(packed(tmp_path, member("train.py"), bad))
    assert left(tmp_path) == []
    assert not (tmp_path / "outside.py").exists()


def test_an_absolute_name_stays_within_the_folder(store: Snapshots, tmp_path: Path) -> None:
    target = tmp_path / "outside.py"
    name = store.take(packed(tmp_path, member(str(target), size=1)))
    assert not target.exists()
    assert (store.folder(name) / str(target).lstrip("/")).is_file()


def test_more_than_the_most_is_refused(store: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_FILES", 3)
    with pytest.raises(UsageError, match="too large"):
        store.take(packed(tmp_path, *(member(f"file-{n}") for n in range(4))))
    monkeypatch.setattr(snapshots, "MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="too large"):
        store.take(packed(tmp_path, member("one", size=600), member("two", size=600)))
    assert left(tmp_path) == []


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("bomb")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def zeros(path: Path, first: bytes, count: int) -> Path:
    with gzip.open(path, "wb", 1) as out:
        out.write(first)
        block = bytes(1 << 20)
        for _ in range(count):
            out.write(block)
    return path


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_header_without_end_costs_no_memory(
    store: Snapshots, tmp_path: Path, kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kB that say: the name of this file has 64 MB."""
    asked: list[int] = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: asked.append(size) or read(self, size))
    with pytest.raises(UsageError):
        store.take(zeros(tmp_path / "bomb.tar.gz", header(kind, 64 << 20), 64))
    assert max(asked) <= 8 << 20
    assert min(asked) >= 0


def test_a_sparse_file_counts_by_what_it_would_be(
    store: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MOST_BYTES", 10 << 20)
    info = tarfile.TarInfo("hole")
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0",
                        "GNU.sparse.numblocks": "1", "GNU.sparse.size": str(1 << 40)}  # fmt: skip
    path = tmp_path / "sparse.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    with pytest.raises(UsageError, match="too large"):
        store.take(path)
    assert left(tmp_path) == []


def cut(path: Path) -> bytes:
    return path.read_bytes()[:-40]


def damaged(path: Path) -> bytes:
    raw = bytearray(path.read_bytes())
    for place in range(30, len(raw), 7):
        raw[place] ^= 0x5A
    return bytes(raw)


@pytest.mark.parametrize(
    "spoil",
    [lambda path: b"", lambda path: b"no tar at all" * 100, lambda path: b"\x1f\x8b" + b"x" * 600, cut, damaged],
    ids=["empty", "text", "no-gzip", "cut", "damaged"],
)  # fmt: skip
def test_what_is_no_tar_is_refused(store: Snapshots, tmp_path: Path, spoil: Callable[[Path], bytes]) -> None:
    sent = packed(tmp_path, member("train.py", size=90_000), member("other.py", size=90_000))
    sent.write_bytes(spoil(sent))
    with pytest.raises(UsageError):
        store.take(sent)
    assert left(tmp_path) == []


def test_a_snapshot_that_is_not_there_and_a_name_that_is_none(store: Snapshots) -> None:
    for name in ("0" * 64, "..", "../..", ".part-x", "/etc"):
        with pytest.raises(NotFoundError):
            store.folder(name)


def test_what_a_killed_service_left_half_unpacked_is_removed(store: Snapshots, tmp_path: Path) -> None:
    (tmp_path / "snapshots" / ".part-xyz").mkdir()
    Snapshots(tmp_path / "snapshots")
    assert left(tmp_path) == []
