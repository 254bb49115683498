"""Small CSV files about devices: the demand of a service, and devices that come and go."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection
from pathlib import Path

from easyscale.core.cluster import Devices
from easyscale.core.errors import UsageError
from easyscale.simulator.serving import DAY, Steps


def read_demand(path: Path, owned: Devices) -> tuple[dict[str, Steps], float]:
    """A CSV of `time_s,type,devices`: from then on the service needs so many. Returns the curve and its period."""
    curve: dict[str, list[tuple[float, int]]] = {kind: [] for kind in owned}
    for line, row in table(path, ("time_s", "type", "devices")):
        time, kind, count = _number(path, line, row["time_s"]), row["type"], _number(path, line, row["devices"])
        if kind not in owned or time < 0 or not 0 <= count <= owned[kind] or count != int(count):
            raise UsageError(
                f"{path}:{line}: {row['devices']} devices of type {kind!r} from {row['time_s']} s on cannot be.",
                f"the service owns {', '.join(f'{n} {k}' for k, n in owned.items())}; times are not negative.",
                "correct the line, or give the service more with --serving.",
            )
        curve[kind].append((time, int(count)))
    last = max((moment for steps in curve.values() for moment, _ in steps), default=0.0)
    return {kind: tuple(sorted(steps)) for kind, steps in curve.items()}, DAY * max(1, math.ceil((last + 1) / DAY))


def table(path: Path, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    """The rows of a small CSV with their line numbers."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not set(columns) <= set(reader.fieldnames or ()):
                raise UsageError(
                    f"{path} has the columns {', '.join(reader.fieldnames or ('none',))}.",
                    f"needed are {', '.join(columns)}.",
                    "write them in its first line.",
                )
            return [(reader.line_num, {name: row[name] or "" for name in columns}) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UsageError(f"{path} could not be read.", str(problem), "name a CSV file that can be read.") from None


def _number(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{path}:{line}: {text!r} is not a number.", "a time or a count is one.", "correct the line.")
    return value


def read_comings(path: Path, kinds: Collection[str]) -> list[tuple[float, str, int]]:
    """A CSV of `time_s,type,change`: devices that come (5) or go (-5)."""
    found = []
    for line, row in table(path, ("time_s", "type", "change")):
        time, change = _number(path, line, row["time_s"]), _number(path, line, row["change"])
        if time < 0 or change != int(change) or row["type"] not in kinds:
            raise UsageError(
                f"{path}:{line}: {row['change']} of {row['type']!r} at {row['time_s']} s cannot be.",
                f"a time is not negative, a change is a whole number of devices of one of {', '.join(kinds)}.",
                "correct the line, or name the type in --cluster.",
            )
        found.append((time, row["type"], int(change)))
    return found
