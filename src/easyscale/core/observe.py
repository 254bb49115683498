"""What a worker notes down, or is made to do, so that a run can be compared with another one (`easyscale verify`) or
its operators be listed (`easyscale scan`).

Travels inside the `WorkerSpec`. A run without an `Observation` pays nothing for any of this.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

# operator: a bit of each element of one operator's output. random: one number drawn too many. batch: a bit of each
# element of the mini-batch's first tensor.
PlantKind = Literal["operator", "random", "batch"]

# Changes of a process's surroundings that a reproducible script must not notice (the first three), that take a cause
# of differences away (the next three), or that write down who asks for such things.
Treatment = Literal["reversed-folders", "shifted-clock", "sorted-folders", "counting-clock", "seeded-generators", "witnesses"]  # noqa: E501  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A difference put in on purpose, to see that it is found."""

    kind: PlantKind
    step: int
    est: int


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Digests of every local step; operator by operator for the global steps `first` to `last`, into a folder.
    `scan_to`: instead of all this, the operators with their levels and times, into a file."""

    trace_to: str | None = None
    first: int = 0
    last: int = -1
    plant: Plant | None = None
    treatments: tuple[Treatment, ...] = ()
    scan_to: str | None = None

    def traces(self, step: int) -> bool:
        return self.trace_to is not None and self.first <= step <= self.last

    @classmethod
    def from_plain(cls, raw: dict[str, Any]) -> Observation:
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in raw.items() if key in known}
        if values.get("plant") is not None:
            values["plant"] = Plant(**values["plant"])
        values["treatments"] = tuple(values.get("treatments", ()))
        return cls(**values)
