"""What a generated workload looks like, in figures: given by hand, or fitted to a trace and kept in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from easyscale.core.errors import UsageError
from easyscale.simulator.readers.rows import yaml_module

HOUR = 3600.0
CLASSES = (1, 4, 8)  # largest number of devices of a class of jobs; beyond: the last class
FLAT_DAY = (1.0,) * 24
FLAT_WEEK = (1.0,) * 7


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """`median` seconds; `sigma` of the logarithm."""

    weight: float
    median: float
    sigma: float


@dataclass(frozen=True, kw_only=True)
class GeneratorSpec:
    """`sizes`: share of jobs by devices. `durations`: for jobs of up to 1, 4, 8 and more devices.

    `day` and `week`: load by hour and by day against the mean, from the start of the trace. `burst_share`: of the
    submissions that are bursts, of `burst_jobs` in the mean.
    """

    jobs_per_hour: float = 20.0
    day: tuple[float, ...] = FLAT_DAY
    week: tuple[float, ...] = FLAT_WEEK
    burst_share: float = 0.0
    burst_jobs: float = 5.0
    sizes: tuple[tuple[int, float], ...] = ((1, 0.7), (2, 0.1), (4, 0.1), (8, 0.08), (16, 0.02))
    durations: tuple[tuple[LogNormal, ...], ...] = (
        (LogNormal(weight=0.6, median=600.0, sigma=1.2), LogNormal(weight=0.4, median=3 * HOUR, sigma=1.3)),
    ) * 4
    tenants: tuple[tuple[str, float], ...] = ()  # share of jobs by tenant
    fitted_to: str = ""

    def __post_init__(self) -> None:
        refuse(self.jobs_per_hour <= 0, f"jobs_per_hour is {self.jobs_per_hour:g}", "jobs arrive at a positive rate")
        refuse(len(self.day) != 24 or len(self.week) != 7, "day or week has a wrong length", "24 hours, 7 days")
        shares = [share for _, share in (*self.sizes, *self.tenants)]
        shares += [*self.day, *self.week, *(part.weight for mixture in self.durations for part in mixture)]
        refuse(min(shares) < 0, "a share is negative", "shares and weights are 0 or more")
        refuse(not any(share for _, share in self.sizes), "there is no size", "jobs have sizes")
        refuse(any(size < 1 for size, _ in self.sizes), "a size is below 1", "a job needs at least one device")
        refuse(len(self.durations) != len(CLASSES) + 1, "durations are not four", "one mixture for each class of sizes")
        refuse(not 0 <= self.burst_share <= 1, f"burst_share is {self.burst_share:g}", "it is a share: 0 to 1")
        refuse(self.burst_jobs < 1, f"burst_jobs is {self.burst_jobs:g}", "a burst has at least one job")


def save_spec(spec: GeneratorSpec, path: Path) -> None:
    """As JSON, or as YAML by the name of the file."""
    plain = asdict(spec)
    if path.suffix in (".yaml", ".yml"):
        path.write_text(yaml_module().safe_dump(json.loads(json.dumps(plain)), sort_keys=False))
    else:
        path.write_text(json.dumps(plain, indent=1) + "\n")


def load_spec(path: Path) -> GeneratorSpec:
    try:
        text = path.read_text()
        plain = json.loads(text) if path.suffix == ".json" else yaml_module().safe_load(text)
    except UsageError:
        raise
    except Exception as error:  # of the file, of JSON or of YAML
        raise UsageError(
            f"{path} cannot be read.", f"{error}.", "name a file that `easyscale trace fit` wrote."
        ) from None
    names = {field.name for field in fields(GeneratorSpec)}
    if not isinstance(plain, Mapping) or not plain.keys() <= names:
        strange = ", ".join(map(str, plain.keys() - names)) if isinstance(plain, Mapping) else "it is no mapping"
        raise UsageError(f"{path} is no spec of a generator.", f"not known: {strange}.", f"it has {', '.join(names)}.")
    try:
        return GeneratorSpec(**_typed(plain))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} is no spec of a generator.", f"{error}.", "correct it.") from None


def _typed(plain: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(plain)
    for name in ("day", "week"):
        if name in found:
            found[name] = tuple(map(float, found[name]))
    for name in ("sizes", "tenants"):
        if name in found:
            found[name] = tuple((key, float(share)) for key, share in found[name])
    if "durations" in found:
        found["durations"] = tuple(tuple(LogNormal(**part) for part in mixture) for mixture in found["durations"])
    return found


def refuse(wrong: bool, what: str, why: str) -> None:
    if wrong:
        raise UsageError(f"No workload can be generated: {what}.", f"{why}.", "correct it.")
