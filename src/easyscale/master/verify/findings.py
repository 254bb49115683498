"""The first operator at which two traces part.

A trace is what one EST did in one global step, line by line (see runtime/observe/trace). Lines are walked in order, so
the first difference is the cause of those after it: inputs that differ, although no operator before gave a differing
output, came from outside.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

Line = dict[str, Any]
_SEARCHED = 400  # lines, for the place where two traces that part meet again
# batch, buffers: what the step began with. random: the state that an operator drew from. value: a Python number.
# input: a tensor from outside. operator: the same inputs, another output. order: another operator.
# reduction: the sum of the gradients. update: what the optimizer made of it.
Kind = Literal["batch", "buffers", "random", "value", "input", "operator", "order", "reduction", "update"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Where and how. `sides` are the two values, the reference's first."""

    kind: Kind
    step: int
    est: int
    tensor: str
    module: str = ""
    operator: str = ""
    line: str = ""
    backward: str = ""
    sides: tuple[str, str] = ("", "")
    operators_before: int = 0  # that were compared and are equal
    # 0: an EST's own forward and backward. 1: the sum over all ESTs. 2: the update that follows. 3: what it left.
    phase: int = 0

    @property
    def text(self) -> str:
        place = f" of module {self.module}" if self.module else ""
        at = f" ({self.line})" if self.line else ""
        back = f", in the backward ({self.backward})" if self.backward else ""
        operator = f"{self.operator}{place}{at}{back}"
        match self.kind:
            case "batch":
                return f"the mini-batch differs in {self.tensor}, before any operator ran"
            case "buffers":
                return f"the buffer {self.tensor} differs when the model's forward begins"
            case "random":
                return f"{operator} draws from a random state that differs"
            case "value":
                return f"{operator} was given the number {self.sides[0]} in one run and {self.sides[1]} in the other"
            case "input":
                return f"{operator} reads {self.tensor}, which differs although no operator before it gave it so"
            case "operator":
                return f"{operator} gave another {self.tensor} for the same inputs"
            case "order":
                return f"the runs part: next comes {self.sides[0]} in one, {self.sides[1]} in the other{at}"
            case "reduction":
                return f"the summed gradient of {self.tensor} differs although each EST's own part is equal"
            case "update":
                return f"{self.tensor} differs after the update although its gradient was equal"


def first_finding(reference: Path, other: Path, steps: Iterable[int], ests: int) -> tuple[Finding | None, list[int]]:
    """The first one, and all ESTs that part in the same step. Local steps come before the sums that follow them."""
    for step in steps:
        found = []
        for est in range(ests):
            name = f"step-{step}-est-{est}.jsonl"
            if (reference / name).exists() and (other / name).exists():
                finding = compare(_load(reference / name), _load(other / name), step, est)
                found += [finding] if finding is not None else []
        earliest = min((finding.phase for finding in found), default=None)
        if earliest is not None:
            first = [finding for finding in found if finding.phase == earliest]
            return first[0], [finding.est for finding in first]
    return None, []


def compare(left: Sequence[Line], right: Sequence[Line], step: int, est: int) -> Finding | None:
    """Two traces of one EST. Where only one of them clips and updates, what follows the backward is its own affair."""
    if _updates(left) != _updates(right):
        left, right = _without_update(left), _without_update(right)
    end, before = _end_of_backward(left), 0
    odd: Finding | None = None  # operators of one side alone
    joined = False  # after them, the operators are the same again
    for index, (a, b) in _pairs(left, right):
        if a is None or b is None or _key(a) != _key(b):
            odd = odd or replace(_other_order((a, b), step, est, before), phase=0 if index < end else 2)
            joined = False
            continue
        finding = _differing(a, b, step, est, before)
        if finding is not None:
            if index >= end and not finding.phase:
                finding = replace(finding, phase=2)
            if finding.phase == 2 and finding.kind == "input" and not _left_other_parameters(left, right):
                return None  # an average, a score: a worker makes them once, from what EST 0 has
            return odd if odd is not None and finding.kind in ("input", "value", "random") else finding
        joined = joined or a["what"] == "operator"
        before += a["what"] == "operator"
    # What one process made for all of its ESTs, the other one makes for each: harmless where all that follows is equal.
    harmless = _completes(left) and (joined or not _left_other_parameters(left, right))
    return None if harmless else odd


def _load(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _key(line: Line) -> tuple[Any, ...]:
    if line["what"] != "operator":
        return (line["what"],)
    return line["what"], line["name"], tuple(line["shapes"]), line["backward"]


def _updates(lines: Sequence[Line]) -> bool:
    return any(line["what"] == "reduced" for line in lines)


def _end_of_backward(lines: Sequence[Line]) -> int:
    backward = [i for i, line in enumerate(lines) if line.get("backward")]
    return backward[-1] + 1 if backward else len(lines)


def _without_update(lines: Sequence[Line]) -> list[Line]:
    """Up to the end of the last backward, and what the step left."""
    end = _end_of_backward(lines)
    return [*lines[:end], *(line for line in lines[end:] if line["what"] == "after")]


Odd = tuple[Line | None, Line | None]


def _pairs(left: Sequence[Line], right: Sequence[Line]) -> Iterator[tuple[int, Odd]]:
    """Lines that belong together, with the place in `left`; one pair that does not fit where the traces part.

    After that they go on where the lines fit again: what one process made and kept for the next EST, the other makes
    twice.
    """
    i = j = 0
    while i < len(left) or j < len(right):
        odd = (left[i] if i < len(left) else None, right[j] if j < len(right) else None)
        yield i, odd
        if odd[0] is not None and odd[1] is not None and _key(odd[0]) == _key(odd[1]):
            i, j = i + 1, j + 1
            continue
        ours, theirs = left[i : i + _SEARCHED], right[j : j + _SEARCHED]
        meet = _meeting([_key(line) for line in ours], [_key(line) for line in theirs])
        if meet is None:
            return
        i, j = i + meet[0], j + meet[1]


def _meeting(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> tuple[int, int] | None:
    """How many lines to leave out on each side, as few as can be, until two in a row fit."""
    for total in range(1, len(left) + len(right)):
        for skipped in range(min(total, len(left) - 1) + 1):
            ours, theirs = left[skipped : skipped + 2], right[total - skipped : total - skipped + 2]
            if theirs and ours == theirs:
                return skipped, total - skipped
    return None


def _completes(lines: Sequence[Line]) -> bool:
    return any(line["what"] == "after" for line in lines)


def _left_other_parameters(left: Sequence[Line], right: Sequence[Line]) -> bool:
    ours, theirs = ([line["digests"] for line in lines if line["what"] == "after"] for lines in (left, right))
    return ours != theirs


def _differing(a: Line, b: Line, step: int, est: int, before: int) -> Finding | None:
    if a["what"] == "operator":
        return _operator(a, b, step, est, before)
    if a["what"] == "cut":
        return None
    ours, theirs = a["digests"], b["digests"]
    name = next((n for n in ours if ours[n] != theirs.get(n)), None)
    if name is None:
        return None
    kinds: dict[str, tuple[Kind, int]] = {
        "batch": ("batch", 0), "buffers": ("buffers", 0), "reduced": ("reduction", 1), "after": ("update", 3),
    }  # fmt: skip
    kind, phase = kinds[a["what"]]
    return Finding(kind=kind, step=step, est=est, tensor=name, operators_before=before, phase=phase)


def _operator(a: Line, b: Line, step: int, est: int, before: int) -> Finding | None:
    where: dict[str, Any] = {
        "step": step, "est": est, "module": a["module"], "operator": a["name"], "line": a["line"],
        "backward": a["backward"] or "", "operators_before": before,
    }  # fmt: skip
    for ours, theirs in zip(a["values"], b["values"], strict=False):
        if ours != theirs:
            return Finding(kind="value", tensor="a Python number", sides=(ours, theirs), **where)
    for index, (ours, theirs) in enumerate(zip(a["in"], b["in"], strict=False)):
        if ours != theirs:
            name = a["tensors"][index] or f"input {index}, {a['shapes'][index]}"
            if name.startswith("gradient of ") and not a["backward"]:
                return Finding(kind="reduction", tensor=name.removeprefix("gradient of "), phase=1, **where)
            return Finding(kind="input", tensor=name, **where)
    if a.get("random") != b.get("random"):
        return Finding(kind="random", tensor="the random state", **where)
    for index, (ours, theirs) in enumerate(zip(a["out"], b["out"], strict=False)):
        if ours != theirs:
            return Finding(kind="operator", tensor=f"output {index}", **where)
    return None


def _other_order(odd: Odd, step: int, est: int, before: int) -> Finding:
    known = next((line for line in odd if line is not None and line["what"] == "operator"), {})
    return Finding(
        kind="order", step=step, est=est, tensor="the operators", module=known.get("module", ""),
        operator=known.get("name", ""), line=known.get("line", ""), sides=(_called(odd[0]), _called(odd[1])),
        operators_before=before,
    )  # fmt: skip


def _called(line: Line | None) -> str:
    marks = {"buffers": "the model's forward", "reduced": "the update", "after": "the end of the step"}
    return "nothing more" if line is None else str(line.get("name") or marks.get(line["what"], line["what"]))
