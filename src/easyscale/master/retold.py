"""A worker's error, told again by a command that ran the script for ends of its own (`scan`, `replay`)."""

from __future__ import annotations

import re

from easyscale.core.errors import EasyScaleError

_TAIL = 15  # lines of a failed script's output that are shown
_OURS = re.compile(r"^(error: )?\w*(Error|Refused): ")
_PART = re.compile(r"^\s*(why|now|at):\s+(.*)$")


def headline(lines: list[str]) -> str:
    """The sentence of an error: the first line of ours, the last line of a traceback."""
    if lines[0].startswith("Traceback"):
        return lines[-1]
    return _OURS.sub("", lines[0])


def retold(what: str, error: str | None, output: list[str], cure: str) -> EasyScaleError:
    """`what` could not be done. An error of ours keeps its own reason and cure; one of the script's is shown whole,
    behind the last lines that it printed."""
    lines = (error or "").strip().splitlines() or ["no reason was given"]
    parts = _parts(lines[1:])
    if _OURS.match(lines[0]) and "why" in parts and "now" in parts:
        return EasyScaleError(f"{what.rstrip('.')}: {headline(lines)}", parts["why"], parts["now"])
    shown = "\n".join(f"    {line}" for line in [*output[-_TAIL:], *lines])
    return EasyScaleError(what, f"{headline(lines)}\n{shown}", cure)


def _parts(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        begun = _PART.match(line)
        if begun is not None:
            name = begun[1]
            found[name] = begun[2]
        elif name:
            found[name] += f" {line.strip()}"
    return found
