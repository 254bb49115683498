"""Copies of working directories, as users sent them: unpacked once, named by their sha256, never changed."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO

from easyscale.core.errors import UsageError
from easyscale.service.errors import NotFoundError

MOST_FILES = 100_000
MOST_BYTES = 4 << 30  # unpacked
MOST_HEADER = 4 << 20  # of what is said about one file


class Snapshots:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for half in folder.glob(".part-*"):  # of a service that was killed
            shutil.rmtree(half, ignore_errors=True)

    def take(self, archive: Path) -> str:
        """Unpack a tar; returns its name. The same bytes again are the same snapshot."""
        with archive.open("rb") as file:
            name = hashlib.file_digest(file, "sha256").hexdigest()
        target = self._folder / name
        if target.is_dir():
            return name
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=self._folder))
        try:
            _unpack(archive, part)
            os.sync()
            part.rename(target)
        except FileExistsError:
            pass
        except OSError:
            if not target.is_dir():
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return name

    def path(self, name: str) -> Path:
        """Where it is, if it is there."""
        return self._folder / name

    def folder(self, name: str) -> Path:
        found = self._folder / name
        if "/" in name or name.startswith(".") or not found.is_dir():
            raise NotFoundError(
                f"There is no snapshot {name[:16]}.",
                "it was never sent, or was removed.",
                "send the working directory again: `easyscale submit` does.",
            )
        return found


def _unpack(archive: Path, folder: Path) -> None:
    """Nothing outside of the folder, no links that lead out, no devices, no owner; and not without an end."""
    try:
        with _opened(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            files = size = 0
            for member in tar:
                files, size = files + 1, size + max(member.size, 0)
                if files > MOST_FILES or size > MOST_BYTES or member.size < 0:
                    raise _too_large()
                stream.allow(member.size)
                tar.extract(member, folder, filter="data")
                stream.allow(MOST_HEADER)
    except tarfile.FilterError as problem:
        raise UsageError(
            "The archive of the working directory is refused.",
            f"{type(problem).__name__}: a member leads out of it, or is no plain file.",
            "send a tar of plain files, folders and links within it.",
        ) from None
    except (tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error, gzip.BadGzipFile) as problem:
        raise UsageError(
            "The archive of the working directory cannot be read.",
            f"{type(problem).__name__}.",
            "send a tar, or a tar.gz.",
        ) from None
    except OSError as problem:
        if problem.errno not in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP):
            raise
        raise UsageError(
            "The archive of the working directory cannot be unpacked.",
            f"{problem.strerror}.",
            "send a tar whose names can be files and folders side by side.",
        ) from None


def _too_large() -> UsageError:
    return UsageError(
        "The working directory is too large.",
        f"unpacked it has more than {MOST_FILES} files or {MOST_BYTES >> 30} GB.",
        "leave data out (.easyscaleignore), and name it by its path.",
    )


class _Bounded(io.RawIOBase):
    """A stream of which so much may be read until it is allowed more: a header may claim to be of any length."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile) -> None:
        self._stream, self._left = stream, MOST_HEADER

    def allow(self, count: int) -> None:
        self._left = count + MOST_HEADER

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0 or size > self._left:
            raise _too_large()
        data = self._stream.read(size)
        self._left -= len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        self._stream.close()


def _opened(archive: Path) -> _Bounded:
    plain = archive.open("rb")
    zipped = plain.read(2) == b"\x1f\x8b"
    plain.seek(0)
    if not zipped:
        return _Bounded(plain)
    plain.close()
    return _Bounded(gzip.open(archive))
