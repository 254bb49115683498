"""Plain tables and words for people. What others wrote cannot move the cursor."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Collection, Sequence

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_NOT_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,32}m)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LEAST = 10  # columns that the last cell of a row keeps on a narrow terminal


def clean(text: str) -> str:
    """One line without control characters: names and reasons come from other people."""
    return _CONTROL.sub(" ", text).strip()


def coloured(text: str) -> str:
    """What a job printed: colours and tabs stay, other control characters do not."""
    return _NOT_COLOUR.sub(lambda found: found.group(1) or "", text)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Columns, two blanks apart. The last one is cut off at the width of a terminal, and whole elsewhere."""
    rows = [tuple(headings), *(tuple(clean(cell) for cell in row) for row in rows)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(headings))]
    used = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if (room := width()) is not None:
        last = max(LEAST, room - used)
        rows = [(*row[:-1], row[-1] if len(row[-1]) <= last else f"{row[-1][: last - 1]}…") for row in rows]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(size) if heading in right else cell.ljust(size)
            for heading, cell, size in zip(headings, row, widths, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def width() -> int | None:
    """Of the terminal; None: the output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def facts(pairs: Sequence[tuple[str, str | None]], indent: str = "  ") -> list[str]:
    """`name  value` lines; those without a value are left out."""
    shown = [(name, clean(value)) for name, value in pairs if value]
    size = max((len(name) for name, _ in shown), default=0)
    return [f"{indent}{name.ljust(size)}  {value}" for name, value in shown]


def moment(seconds: float, now: float | None = None) -> str:
    """In this machine's time; the day only if it is another one."""
    here, there = time.localtime(time.time() if now is None else now), time.localtime(seconds)
    same = here[:3] == there[:3]
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S", there)


def several(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"
