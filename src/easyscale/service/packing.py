"""A working directory as one archive: the same files give the same bytes, so the sha256 names the contents.

Sorted, without owners and times; `.easyscaleignore` says what stays at home, in the form of a `.gitignore`.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from easyscale.core.errors import UsageError

MOST_BYTES = 256 * 1000 * 1000
MOST_FILES = 100_000
IGNORE_FILE = ".easyscaleignore"
ALWAYS = (
    ".git", ".hg", ".svn", "__pycache__", "*.pyc", ".venv", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache",
    ".ruff_cache",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file, folder or link of the directory. `target`: of a link."""

    name: str
    path: Path
    mode: int
    size: int = 0
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    sha256: str
    files: int
    size: int  # bytes of the files
    archive_size: int


def pack(folder: Path, archive: Path, most_bytes: int = MOST_BYTES) -> Packed:
    """Write `archive`, a tar.gz. What cannot go into it is refused before anything is written."""
    items = list(gather(folder))
    _check_size(folder, items, most_bytes)
    try:
        with archive.open("wb") as out:
            digest = _write(items, out)
            size = out.tell()
    except OSError as problem:
        if isinstance(problem.filename, str) or "end of data" not in str(problem):
            raise UsageError(
                f"{folder} cannot be packed.", f"{problem}.", "free some room, or see that the files can be read."
            ) from None
        raise UsageError(
            f"{folder} cannot be packed.", "a file in it grew shorter while it was read.", "try again when it is quiet."
        ) from None
    files = [item for item in items if stat.S_ISREG(item.mode)]
    return Packed(sha256=digest, files=len(files), size=sum(item.size for item in files), archive_size=size)


def _write(items: list[Item], out: IO[bytes]) -> str:
    hashing = _Hashing(out)
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=hashing, mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for item in items:
            entry = tarfile.TarInfo(item.name)
            entry.mode = 0o755 if stat.S_ISDIR(item.mode) or item.mode & 0o100 else 0o644
            if item.target is not None:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, item.target, 0o777
                tar.addfile(entry)
            elif stat.S_ISDIR(item.mode):
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            else:
                with item.path.open("rb") as file:
                    entry.size = os.fstat(file.fileno()).st_size
                    tar.addfile(entry, file)
    return hashing.digest.hexdigest()


class _Hashing:
    """Passes bytes on and hashes them."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self.digest = out, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._out.write(data)

    def flush(self) -> None:
        self._out.flush()


# ---------------------------------------------------------------------------------------- which files


def gather(folder: Path) -> Iterator[Item]:
    """All that belongs into the archive, sorted by name."""
    if not folder.is_dir():
        raise UsageError(
            f"There is no folder {folder}.", "the working directory of a job is a folder.", "name one with --workdir."
        )
    top = Path(os.path.realpath(folder))
    rules = _Rules(_own_rules(top))
    for found, item in enumerate(_walk(top, top, "", rules)):
        if found >= MOST_FILES:
            raise UsageError(
                f"{folder} holds more than {MOST_FILES:,} files.",
                "a copy of it would take too long to upload.",
                f"name a smaller folder with --workdir, list folders in {IGNORE_FILE}, or use --path.",
            )
        yield item


def _own_rules(top: Path) -> list[str]:
    try:
        return (top / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"{top / IGNORE_FILE} cannot be read.", f"{problem}.", "it is a text file; make it readable, or remove it."
        ) from None


def _walk(top: Path, folder: Path, prefix: str, rules: _Rules) -> Iterator[Item]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
    except OSError as problem:
        _unreadable(prefix or str(top), problem)
    for entry in entries:
        name = f"{prefix}{entry.name}"
        facts = entry.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(facts.st_mode)
        if rules.ignores(name, is_folder=is_folder):
            continue
        path = Path(entry.path)
        if stat.S_ISLNK(facts.st_mode):
            yield Item(name=name, path=path, mode=facts.st_mode, target=_target(top, path, name))
        elif is_folder:
            yield Item(name=name, path=path, mode=facts.st_mode)
            yield from _walk(top, path, f"{name}/", rules)
        elif stat.S_ISREG(facts.st_mode):
            if not os.access(path, os.R_OK):
                _unreadable(name, PermissionError(13, "Permission denied"))
            yield Item(name=name, path=path, mode=facts.st_mode, size=facts.st_size)
        # Sockets, pipes and devices mean nothing on another machine.


def _target(top: Path, link: Path, name: str) -> str:
    """Where a link leads, from its own folder. It must stay inside."""
    written, end = os.readlink(link), os.path.realpath(link)
    if end != str(top) and not end.startswith(f"{top}/"):
        raise UsageError(
            f"The link {name} leads out of the working directory, to {written}.",
            "a copy holds what is inside alone; on the service's machine the link would lead nowhere or astray.",
            f"copy what it leads to, list it in {IGNORE_FILE}, or use --path.",
        )
    return os.path.relpath(end, os.path.realpath(link.parent)) if os.path.isabs(written) else written


def _unreadable(name: str, problem: OSError) -> NoReturn:
    raise UsageError(
        f"{name} cannot be read.", f"{problem.strerror}.", f"make it readable, or list it in {IGNORE_FILE}."
    ) from None


def _check_size(folder: Path, items: list[Item], most_bytes: int) -> None:
    size = sum(item.size for item in items)
    if size <= most_bytes:
        return
    largest = sorted(items, key=lambda item: -item.size)[:5]
    raise UsageError(
        f"{folder} holds {megabytes(size)}, more than the {megabytes(most_bytes)} of a snapshot.",
        f"the largest files are {', '.join(f'{item.name} ({megabytes(item.size)})' for item in largest)}.",
        f"list data in {IGNORE_FILE} and let the script read it from where it lies, or use --path.",
    )


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


# ---------------------------------------------------------------------------------------- what stays at home


class _Rules:
    """The last rule that fits decides, as in a .gitignore. What lies in an ignored folder stays at home with it."""

    def __init__(self, own: list[str]) -> None:
        self._rules = [rule for line in (*ALWAYS, *own) if (rule := _rule(line)) is not None]

    def ignores(self, name: str, *, is_folder: bool) -> bool:
        ignored = False
        for pattern, keep, folders_only in self._rules:
            if (is_folder or not folders_only) and pattern.fullmatch(name):
                ignored = not keep
        return ignored


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool] | None:
    line = line.rstrip()
    if not line or line.startswith("#"):
        return None
    keep = line.startswith("!")
    line = line.removeprefix("!")
    folders_only = line.endswith("/")
    line = line.rstrip("/")
    anchored = "/" in line
    text = _regex(line.removeprefix("/"))
    return re.compile(text if anchored else f"(?:.*/)?{text}", re.DOTALL), keep, folders_only


def _regex(pattern: str) -> str:
    done, place = "", 0
    for found in re.finditer(r"\*\*/|/\*\*$|\*\*|\*|\?|\[!?\]?[^\]]*\]", pattern):
        done += re.escape(pattern[place : found.start()])
        word = found.group()
        if word.startswith("["):
            inner = word[1:-1].replace("\\", "\\\\")
            done += f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner.replace('^', chr(92) + '^')}]"
        else:
            done += {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}[word]
        place = found.end()
    return done + re.escape(pattern[place:])
