"""Rows of a file with their line numbers, and what is said about those that cannot be.

A row that cannot be is an error with file, line and cure. With `skip` it is left out, counted, and told.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from easyscale.core.errors import UsageError

Line = tuple[int, Sequence[str]]
MOST = 1_000_000  # of anything that is counted; a slip of the pen must not fill the memory


class BadRow(Exception):
    """A row that cannot be: `what` of it, `why`, and the cure. Becomes a UsageError, or a count."""

    def __init__(self, what: str, why: str, now: str = "correct the row") -> None:
        self.what, self.why, self.now = what, why, now
        super().__init__(what)


class Bad:
    """Collects the rows of one file that cannot be."""

    def __init__(self, path: Path, *, skip: bool = False) -> None:
        self.path, self._skip = path, skip
        self._counts: Counter[str] = Counter()

    def row(self, line: int, bad: BadRow) -> None:
        if self._skip:
            self._counts[bad.why] += 1
            return
        raise UsageError(
            f"{self.path}, line {line}: {bad.what}",
            bad.why + ".",
            f"{bad.now}, or leave such rows out and have them counted (--skip-bad, or --read skip_bad=yes).",
        ) from None

    def left_out(self, why: str, count: int = 1) -> None:
        """A row that is as it should be, but no job of this workload."""
        self._counts[why] += count

    def file(self, what: str, why: str, now: str) -> NoReturn:
        """The file as a whole is of no use."""
        raise UsageError(f"{self.path}: {what}", why, now)

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        return tuple(self._counts.most_common())


class Names:
    """Keeps jobs of one name apart: the second `x` becomes `x#2`."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def unlike(self, name: str) -> str:
        if name not in self._seen:
            self._seen[name] = 1
            return name
        while True:
            self._seen[name] += 1
            other = f"{name}#{self._seen[name]}"
            if other not in self._seen:
                self._seen[other] = 1
                return other


class Columns:
    """Where the columns of a file are. Names are compared without case and blanks around them."""

    def __init__(self, header: Sequence[str], *, needed: Sequence[str], bad: Bad) -> None:
        self._place = {name.strip().lower(): place for place, name in enumerate(header) if name.strip()}
        missing = [name for name in needed if name not in self._place]
        if missing:
            bad.file(
                f"no column {', '.join(missing)}.",
                f"the first line names these: {', '.join(self._place) or 'none'}.",
                f"a file of this format needs {', '.join(needed)}; is it of another one (--format)?",
            )

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def text(self, row: Sequence[str], name: str, default: str = "") -> str:
        place = self._place.get(name, -1)
        return row[place].strip() if 0 <= place < len(row) else default

    def number(self, row: Sequence[str], name: str, *, least: float = -math.inf) -> float:
        return number(self.text(row, name), name, least=least)

    def whole(self, row: Sequence[str], name: str, *, least: int = 1) -> int:
        return whole(self.text(row, name), name, least=least)


def number(text: str, name: str, *, least: float = -math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRow(f"{name} is {text!r}.", f"{name} is a number" if text else f"{name} is missing")
    if value < least:
        why = "there is no time before the first" if least == 0 else f"{name} is at least {least:g}"
        raise BadRow(f"{name} is {text}.", f"{name} is negative: {why}" if value < 0 else why)
    return value


def positive(text: str, name: str) -> float:
    value = number(text, name, least=0)
    if value == 0:
        raise BadRow(f"{name} is {text}.", f"{name} is zero: a job takes some time")
    return value


def whole(text: str, name: str, *, least: int = 1) -> int:
    value = number(text, name)
    if value != int(value):
        raise BadRow(f"{name} is {text}.", f"{name} is a whole number")
    if value < least:
        raise BadRow(f"{name} is {text}.", f"{name} is at least {least}")
    if value > MOST:
        raise BadRow(f"{name} is {text}.", f"{name} is at most {MOST:,}")
    return int(value)


def open_text(path: Path) -> IO[str]:
    """Plain or gzip, by what is in it."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder.", "a trace is one file.", "name the file.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read.", f"{error.strerror}.", "name a file that is there.") from None
    if packed:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="")
    return path.open(encoding="utf-8", errors="replace", newline="")


def csv_rows(path: Path, bad: Bad, *, delimiter: str = ",") -> Iterator[Line]:
    """The lines of a CSV file with their numbers; the first is the header. Blank lines are passed over."""
    with open_text(path) as file:
        reader = csv.reader(file, delimiter=delimiter)
        empty = True
        try:
            for row in reader:
                if row:
                    empty = False
                    yield reader.line_num, row
        except (csv.Error, EOFError, gzip.BadGzipFile) as error:
            bad.file(f"cannot be read at line {reader.line_num}.", f"{error}.", "get the file anew.")
    if empty:
        bad.file("is empty.", "a trace has at least one job.", "name a file with jobs in it.")


def yaml_module() -> Any:
    """PyYAML, where it is needed; it is no part of a plain installation."""
    try:
        return import_module("yaml")
    except ImportError:
        raise UsageError(
            "YAML cannot be read.", "PyYAML is not installed.", "pip install 'easyscale-torch[cluster]', or use CSV."
        ) from None
