"""One job of our own format: from text by column to an arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from easyscale.core.cluster import Level, Needs
from easyscale.planner.model import EstSpeed
from easyscale.planner.reduction import Reduction
from easyscale.planner.speed import Speed
from easyscale.simulator.profiles import elasticflow_rates
from easyscale.simulator.readers.assumed import Assumptions, Maker
from easyscale.simulator.readers.rows import BadRow, number, positive, whole
from easyscale.simulator.tables import CountSpeed
from easyscale.simulator.workload import Arrival, Past

NAMES = (
    "name", "submit", "devices", "duration", "steps", "ests", "min", "max", "gang", "level", "types", "kind", "seconds",
    "memory", "priority", "tenant", "application", "batch", "batch_size", "batch_loss", "gradients_mb",
    "link_gb_s", "queued", "status", "attempts",
)  # fmt: skip
SPEEDS = ("seconds", "application", "batch_size", "batch_loss", "gradients_mb", "link_gb_s")  # what a speed follows
CONTRADICTION = "its limits contradict each other"
Fields = Mapping[str, str]  # what a job says; what it does not say is missing or empty
Tables = Mapping[str, str | Path]  # device type -> folder of ElasticFlow tables


@dataclass
class Smith:
    """Makes jobs. Equal speeds are one object."""

    maker: Maker
    tables: Mapping[str, Path]
    _speeds: dict[tuple[Any, ...], Speed] = field(default_factory=dict)

    def job(self, line: int, said: Fields) -> Arrival:
        of = self.maker.assumptions
        time = number(said.get("submit", ""), "submit", least=0)
        ests = whole(said["ests"], "ests") if said.get("ests") else None
        devices = whole(said.get("devices") or str(ests or ""), "devices")
        types = tuple(kind.strip() for kind in said["types"].split("|")) if said.get("types") else None
        kind = said.get("kind") or (types[0] if types else of.kind)
        needs = _needs(said, ests or devices * of.ests_per_device, devices, types, of)
        speed = self._speed(said, needs, kind)
        return Arrival(
            name=said.get("name") or f"job-{line}",
            time=time,
            needs=needs,
            speed=speed,
            work=_work(said, speed, kind, devices),
            requested=devices,
            kind=kind,
            application=said.get("application", ""),
            line=line,
            past=_past(said),
        )

    def _speed(self, said: Fields, needs: Needs, kind: str) -> Speed:
        key = needs.ests, needs.level, kind, needs.types, *map(said.get, SPEEDS)
        if key not in self._speeds:
            loss = number(said["batch_loss"], "batch_loss", least=0) if said.get("batch_loss") else 0.0
            self._speeds[key] = self._measured(said) or EstSpeed(
                needs.ests, self._seconds(said, needs, kind), self._reduction(said), needs.level, loss
            )
        return self._speeds[key]

    def _reduction(self, said: Fields) -> Reduction | None:
        """What it says of its gradients and links; of the rest what is assumed."""
        size, link = said.get("gradients_mb"), said.get("link_gb_s")
        assumed = self.maker.assumptions.reduction
        if not size and not link:
            return assumed
        found = assumed or Reduction()
        if size:
            found = replace(found, bytes=positive(size, "gradients_mb") * 1e6)
        return replace(found, seconds_per_byte=1e-9 / positive(link, "link_gb_s")) if link else found

    def _measured(self, said: Fields) -> Speed | None:
        """From the tables, where the application is in one."""
        application = said.get("application", "")
        found: dict[str, list[tuple[int, float]]] = {}
        for kind, folder in self.tables.items():
            path = folder / f"{application}.csv"
            if application and path.is_file():
                rates = elasticflow_rates(path)
                batch = whole(said["batch_size"], "batch_size") if said.get("batch_size") else next(iter(rates))
                if batch not in rates:
                    measured = ", ".join(map(str, rates))
                    raise BadRow(f"batch_size is {batch}.", f"{application} was measured at {measured}")
                found[kind] = rates[batch]
        return CountSpeed(found) if found else None

    def _seconds(self, said: Fields, needs: Needs, kind: str) -> dict[str, float]:
        assumed = self.maker.seconds((kind, *(needs.types or ())))
        text = said.get("seconds", "")
        if not text:
            return assumed
        if ":" not in text:
            factor = positive(text, "seconds") / assumed[kind]
            return {other: seconds * factor for other, seconds in assumed.items()}
        found = {}
        for part in text.split("|"):
            name, _, value = part.partition(":")
            found[name.strip()] = positive(value.strip(), f"seconds of {name.strip()}")
        return found


def _needs(said: Fields, ests: int, devices: int, types: tuple[str, ...] | None, of: Assumptions) -> Needs:
    least = whole(said["min"], "min") if said.get("min") else 1
    most = whole(said["max"], "max") if said.get("max") else None
    gang = _yes(said["gang"], "gang") if said.get("gang") else not of.elastic
    level = said.get("level") or of.level
    if level not in get_args(Level):
        raise BadRow(f"level is {level!r}.", "a level is D0, D1 or D2")
    if devices > ests:
        raise BadRow(f"devices is {devices} and ests {ests}.", "a worker runs one EST or more", "raise ests")
    if most is not None and most > ests:
        raise BadRow(f"max is {most} and ests {ests}.", "a worker runs one EST or more", "lower max or raise ests")
    if least > (most or ests):
        raise BadRow(f"min is {least} and max {most or ests}.", CONTRADICTION, "raise max or lower min")
    if gang and (least > devices or (most is not None and most < devices)):
        raise BadRow(f"it is a gang of {devices} with limits {least} to {most or ests}.", CONTRADICTION)
    return Needs(
        ests=ests,
        min_workers=least,
        max_workers=most,
        level=cast(Level, level),
        types=types,
        memory_gb=number(said["memory"], "memory", least=0) if said.get("memory") else 0.0,
        gang=devices if gang else None,
        priority=whole(said["priority"], "priority", least=-(10**6)) if said.get("priority") else 0,
        tenant=said.get("tenant", ""),
        batch=_range(said["batch"]) if said.get("batch") else None,
    )


def _work(said: Fields, speed: Speed, kind: str, devices: int) -> float:
    if bool(said.get("duration")) == bool(said.get("steps")):
        both = bool(said.get("steps"))
        raise BadRow(
            f"it has {'both a duration and steps' if both else 'neither a duration nor steps'}.",
            "one of the two says how long a job is",
        )
    if said.get("steps"):
        return positive(said["steps"], "steps")
    rate = speed.rate({kind: devices})
    if not rate:
        raise BadRow(f"nobody knows its speed on {kind}.", "its duration was measured there", "add it to `seconds`")
    return positive(said["duration"], "duration") * rate


def _past(said: Fields) -> Past | None:
    if not any(said.get(name) for name in ("queued", "status", "attempts")):
        return None
    status = said.get("status", "")
    return Past(
        queued=number(said["queued"], "queued", least=0) if said.get("queued") else None,
        status=status,
        failed="fail" in status.lower() if status else None,
        attempts=whole(said["attempts"], "attempts") if said.get("attempts") else None,
    )


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.replace("|", ":").partition(":")
    least, most = positive(low, "batch"), positive(high, "batch")
    if least > most:
        raise BadRow(f"batch is {text}.", CONTRADICTION, "write the smaller factor first")
    return least, most


def _yes(text: str, name: str) -> bool:
    if text.lower() not in ("yes", "no", "true", "false", "1", "0"):
        raise BadRow(f"{name} is {text!r}.", f"{name} is yes or no")
    return text.lower() in ("yes", "true", "1")
