"""Speeds as plain JSON, for masters and schedulers that are not one process. Numbers come back to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from easyscale.core.cluster import Level
from easyscale.planner.learned import LearnedSpeed
from easyscale.planner.model import EstSpeed
from easyscale.planner.reduction import Reduction
from easyscale.planner.speed import Speed


def speed_to_plain(speed: Speed) -> dict[str, Any]:
    """Of the speeds that a master proposes; `TypeError` for any other."""
    if isinstance(speed, LearnedSpeed):
        measured = [[[list(pair) for pair in devices], rate] for devices, rate in speed.measured.items()]
        return {"kind": "learned", "model": speed_to_plain(speed.model), "measured": measured}
    if isinstance(speed, EstSpeed):
        return {
            "kind": "est",
            "ests": speed.ests,
            "batch_seconds": dict(speed.batch_seconds),
            "reduction": None if speed.reduction is None else _reduction_to_plain(speed.reduction),
            "level": speed.level,
            "batch_loss": speed.batch_loss,
        }
    raise TypeError(f"{type(speed).__name__} has no plain form")


def speed_of_plain(raw: Mapping[str, Any]) -> Speed:
    """`ValueError`: it does not describe a speed."""
    try:
        if raw["kind"] == "learned":
            return LearnedSpeed(_est(raw["model"]), {_key(devices): float(rate) for devices, rate in raw["measured"]})
        return _est(raw)
    except (KeyError, TypeError, AttributeError, AssertionError, ValueError) as problem:
        raise ValueError(f"this does not describe a speed: {problem!r}") from None


def _est(raw: Mapping[str, Any]) -> EstSpeed:
    if raw["kind"] != "est" or type(raw["ests"]) is not int or raw["ests"] < 1 or raw["level"] not in get_args(Level):
        raise ValueError(f"{raw!r} is not the speed of ESTs")
    seconds = {str(kind): float(of_one) for kind, of_one in raw["batch_seconds"].items()}
    if not all(of_one > 0 for of_one in seconds.values()):
        raise ValueError("a local step takes more than no time")
    reduction = None if raw["reduction"] is None else _reduction(raw["reduction"])
    return EstSpeed(raw["ests"], seconds, reduction, raw["level"], float(raw["batch_loss"]))


def _reduction_to_plain(reduction: Reduction) -> dict[str, Any]:
    return asdict(reduction) | {"known": [list(entry) for entry in reduction.known]}


def _reduction(raw: Mapping[str, Any]) -> Reduction:
    known = tuple((int(workers), bool(across), float(seconds)) for workers, across, seconds in raw["known"])
    numbers = {name: value for name, value in raw.items() if name != "known"}
    if not all(isinstance(value, int | float) and value >= 0 for value in numbers.values()):
        raise ValueError(f"{raw!r} is not the cost of a reduction")
    return Reduction(**numbers, known=known)


def _key(devices: Any) -> tuple[tuple[str, int], ...]:
    return tuple((str(kind), int(count)) for kind, count in devices)
