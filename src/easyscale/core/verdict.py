"""What a scan found out about a script: whether its operators allow level D2, and what D2 costs on a device.

`easyscale scan` makes one and keeps it; the planner reads it. Facts only: what follows from them is said
by `planner.advice`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`mixes`: at level D2 the script runs, so its plans may mix device types. Without that it is held to one."""

    mixes: bool
    # Seconds of a step at D2 over those of the same step at D1, on `device`. None: it was not measured.
    slowdown: float | None = None
    device: str = ""
    # Why it does not mix: operators without a D2 form, by name, or what else was refused.
    missing: tuple[str, ...] = ()
    # Of those, the ones that are not reproducible on one device type either: level D1 refuses them as well.
    nondeterministic: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.slowdown is None or (isfinite(self.slowdown) and self.slowdown > 0), self
        assert self.mixes != bool(self.missing or self.nondeterministic), self

    @property
    def factor(self) -> float:
        """How many times as long a step is to be taken for at D2; as long, where nobody measured it."""
        return 1.0 if self.slowdown is None else self.slowdown

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_plain(cls, raw: object) -> Verdict:
        """From JSON; unknown fields are left out. `ValueError`: it does not describe a verdict."""
        if not isinstance(raw, Mapping) or not isinstance(raw.get("mixes"), bool):
            raise ValueError("it has no field `mixes`")
        known = {field.name: raw[field.name] for field in fields(cls) if field.name in raw}
        slowdown = known.get("slowdown")
        if slowdown is not None and (isinstance(slowdown, bool) or not isinstance(slowdown, int | float)):
            raise ValueError(f"slowdown is {slowdown!r}")
        for name in ("missing", "nondeterministic"):
            given = known.get(name, ())
            if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
                raise ValueError(f"{name} is no list of names")
            known[name] = tuple(given)
        try:
            return cls(**known)
        except AssertionError:
            raise ValueError("its fields contradict each other") from None
