"""What must be assumed of a job of which a trace knows only its devices and its seconds.

It has as many ESTs as its user asked for devices (times `ests_per_device`), each local step takes `batch_seconds` on
the device type of the trace, and its work is what it did there: seconds x steps a second on the devices that it had. So
a replay with the devices of the trace takes the seconds of the trace, whatever is assumed; the assumptions decide what
other numbers and types of devices would have done.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from easyscale.core.cluster import Level, Needs
from easyscale.planner.model import EstSpeed
from easyscale.planner.priors import DATA_SHEET, against_v100
from easyscale.planner.reduction import Reduction
from easyscale.simulator.workload import Arrival, Past

# 100 MB of gradients at 10 GB/s within a machine and a third of that between machines: with local steps of a quarter
# of a second that is 8% on 8 devices of one machine and 24% on many, in the range of the profiles of Pollux (OSDI'21).
REDUCTION = Reduction(base=0.002, per_worker=0.0001, bytes=1e8, seconds_per_byte=1e-10, across_nodes=3.0)


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """`kind`: the devices of the trace. `relative`: speed of other types against it, where what is
    published of them is not right."""

    kind: str = "v100"
    relative: Mapping[str, float] | None = None
    batch_seconds: float = 0.25
    reduction: Reduction | None = REDUCTION
    ests_per_device: int = 1
    level: Level = "D1"
    elastic: bool = True  # False: exactly the devices that were asked for, or none
    any_type: bool = True  # False: only the type of the trace


@dataclass
class Maker:
    """Makes arrivals; jobs that need the same share the objects that say so, so that large traces are read fast."""

    assumptions: Assumptions
    _needs: dict[tuple[int, str, tuple[str, ...] | None, int], Needs] = field(default_factory=dict)
    _speeds: dict[tuple[int, tuple[str, ...]], tuple[EstSpeed, float]] = field(default_factory=dict)

    def make(
        self,
        *,
        name: str,
        time: float,
        devices: int,
        seconds: float,
        line: int,
        tenant: str = "",
        types: tuple[str, ...] | None = None,
        priority: int = 0,
        application: str = "",
        past: Past | None = None,
    ) -> Arrival:
        """`seconds`: that it ran on the devices that it asked for; `types`: that it may use, first those it ran on."""
        speed, rate = self._speed(devices, types or ())
        return Arrival(
            name=name,
            time=time,
            needs=self._need(devices, tenant, types, priority),
            speed=speed,
            work=seconds * rate,
            requested=devices,
            kind=types[0] if types else self.assumptions.kind,
            application=application,
            line=line,
            past=past,
        )

    def _need(self, devices: int, tenant: str, types: tuple[str, ...] | None, priority: int) -> Needs:
        key = devices, tenant, types, priority
        if key not in self._needs:
            of = self.assumptions
            self._needs[key] = Needs(
                ests=devices * of.ests_per_device,
                level=of.level,
                types=types if types or of.any_type else (of.kind,),
                gang=None if of.elastic else devices,
                priority=priority,
                tenant=tenant,
            )
        return self._needs[key]

    def _speed(self, devices: int, types: tuple[str, ...]) -> tuple[EstSpeed, float]:
        key = devices, types
        if key not in self._speeds:
            of = self.assumptions
            speed = EstSpeed(devices * of.ests_per_device, self.seconds(types), of.reduction, of.level)
            self._speeds[key] = speed, speed.rate({types[0] if types else of.kind: devices})
        return self._speeds[key]

    def seconds(self, types: tuple[str, ...] = ()) -> dict[str, float]:
        """Of a local step, by type: those that are known, and those that the job names."""
        of = self.assumptions
        one = self._against_v100(of.kind)
        found = {kind: of.batch_seconds * self._against_v100(kind) / one for kind in (*DATA_SHEET, *types)}
        found |= {kind: of.batch_seconds / speed for kind, speed in (of.relative or {}).items()}
        return {**found, of.kind: of.batch_seconds}

    def _against_v100(self, kind: str) -> float:
        """Alibaba writes `v100m32` for a V100 with 32 GB."""
        return against_v100(re.sub(r"m\d+$", "", kind), self.assumptions.level)[0]
