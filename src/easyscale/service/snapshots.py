"""Copies of working directories, as users sent them: unpacked once, named by their sha256, never changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from easyscale.core.errors import UsageError
from easyscale.service.errors import NotFoundError

MOST_FILES = 100_000
MOST_BYTES = 4 << 30  # unpacked


class Snapshots:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

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
        with tarfile.open(archive) as tar:
            files = size = 0
            for member in tar:
                files, size = files + 1, size + member.size
                if files > MOST_FILES or size > MOST_BYTES:
                    raise UsageError(
                        "The working directory is too large.",
                        f"unpacked it has more than {MOST_FILES} files or {MOST_BYTES >> 30} GB.",
                        "leave data out (.easyscaleignore), and name it by its path.",
                    )
                tar.extract(member, folder, filter="data")
    except tarfile.FilterError as problem:
        raise UsageError(
            "The archive of the working directory is refused.",
            f"{type(problem).__name__}: a member leads out of it, or is no plain file.",
            "send a tar of plain files, folders and links within it.",
        ) from None
    except (tarfile.TarError, EOFError, UnicodeError) as problem:
        raise UsageError(
            "The archive of the working directory cannot be read.",
            f"{type(problem).__name__}.",
            "send a tar, or a tar.gz.",
        ) from None
