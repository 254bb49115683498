"""Words of a cluster: devices by type, and what a job needs of them. Facts only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from easyscale.core.errors import UsageError

Devices = Mapping[str, int]  # how many of each type; types with none are left out
Level = Literal["D0", "D1", "D2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job asks of a cluster. It does not change while the job runs.

    `level` decides which devices it may hold at once: D1 (and D0) one type, D2 any mix. `gang`: exactly so many
    devices or none, and never another number (a job that is not elastic). `batch`: the job allows its global batch to
    be scaled by a factor in this range; its bits are then no longer those of a fixed batch, so nobody does it unasked.
    """

    ests: int
    min_workers: int = 1
    max_workers: int | None = None  # None: as many as it has ESTs
    level: Level = "D1"
    types: tuple[str, ...] | None = None  # None: any
    memory_gb: float = 0.0  # of one device
    gang: int | None = None
    priority: int = 0  # higher goes first
    tenant: str = ""
    batch: tuple[float, float] | None = None
    # by the above; each decision asks for them many times
    most: int = field(init=False, repr=False, compare=False)
    least: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        most = min(self.ests, self.max_workers or self.ests) if self.gang is None else self.gang
        object.__setattr__(self, "most", most)
        object.__setattr__(self, "least", self.min_workers if self.gang is None else self.gang)
        assert 1 <= self.min_workers <= self.most, self

    def allows(self, kind: str) -> bool:
        return self.types is None or kind in self.types


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """A type of device, and how they stand in machines: communication is dearer between two than within one."""

    name: str
    memory_gb: float = float("inf")
    per_node: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One device as a worker is told of it. `uuid`: of a GPU; None: a place on the CPU, whatever type it is called."""

    id: str
    kind: str
    node: str = ""
    uuid: str | None = None


def slot_of_plain(raw: object) -> Slot:
    """From JSON; unknown fields are left out. `ValueError`: it does not describe a device."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"{raw!r} does not describe a device")
    known = {name: raw[name] for name in ("id", "kind", "node", "uuid") if name in raw}
    words = all(isinstance(value, str) for name, value in known.items() if not (name == "uuid" and value is None))
    if not words or not known.get("id") or not known.get("kind"):
        raise ValueError(f"{raw!r} does not describe a device")
    return Slot(**known)


def slots_of_plain(raw: object) -> tuple[Slot, ...]:
    """At least one, each once."""
    if not isinstance(raw, list | tuple):
        raise ValueError(f"{raw!r} is no list of devices")
    slots = tuple(one if isinstance(one, Slot) else slot_of_plain(one) for one in raw)
    if not slots or len({slot.id for slot in slots}) < len(slots):
        raise ValueError("a list of devices has one or more, each once")
    return slots


def total(devices: Devices) -> int:
    return sum(devices.values())


def key(devices: Devices) -> tuple[tuple[str, int], ...]:
    """The same for the same devices, however they were written down."""
    return tuple(sorted((kind, count) for kind, count in devices.items() if count))


def same(one: Devices, other: Devices) -> bool:
    """Whether these are the same devices, however they were written down."""
    if one == other:
        return True
    return (0 in one.values() or 0 in other.values()) and key(one) == key(other)


def plus(one: Devices, other: Devices) -> dict[str, int]:
    return {k: n for k in (*one, *other) if (n := one.get(k, 0) + other.get(k, 0))}


def minus(one: Devices, other: Devices) -> dict[str, int]:
    """What is left of `one`. Negative numbers are kept: the caller looks for them."""
    return {k: n for k in (*one, *other) if (n := one.get(k, 0) - other.get(k, 0))}


def show(devices: Devices) -> str:
    """`v100:2,t4:1`"""
    return ",".join(f"{kind}:{count}" for kind, count in devices.items()) or "none"


def parse_devices(text: str) -> dict[str, int]:
    """`v100:32,p100:16` -> {"v100": 32, "p100": 16}"""
    found: dict[str, int] = {}
    for part in text.split(","):
        kind, _, count = part.strip().partition(":")
        if not kind or not count.isdigit() or int(count) < 1 or kind in found:
            raise UsageError(
                f"{text!r} does not describe devices: {part.strip()!r} is not TYPE:COUNT, or comes twice.",
                "a cluster is a list of device types, each once, with how many there are.",
                "write it like v100:32,p100:16,t4:16.",
            )
        found[kind] = int(count)
    return found
