"""Traces of others, and our own, as workloads. Each format is one file here; none of their data is.

Readers keep what a trace says and name what they assume. What cannot be is refused with file, line and cure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

from easyscale.core.errors import UsageError
from easyscale.simulator.readers.parts import part_of
from easyscale.simulator.readers.rows import open_text
from easyscale.simulator.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Format:
    """`assumes`: it knows devices and seconds only, so the options of `assumed.Assumptions` apply."""

    reader: str  # module:function, below this package
    what: str
    needs: frozenset[str] = frozenset()  # columns by which a CSV file of it is known
    assumes: bool = False

    @property
    def function(self) -> Callable[..., Workload]:
        module, _, name = self.reader.partition(":")
        found: Callable[..., Workload] = getattr(import_module(f"{__name__}.{module}"), name)
        return found


# In the order in which a file's columns are compared with them.
FORMATS: dict[str, Format] = {
    "pollux": Format(
        reader="pollux:read",
        what="Pollux workloads (OSDI'21 artifact) with its profiles",
        needs=frozenset({"name", "time", "application", "num_replicas", "batch_size"}),
    ),
    "easyscale": Format(
        reader="easyscale:read",
        what="EasyScale's workload (SC'23 artifact) with its step times",
        needs=frozenset({"name", "time", "application", "max_parallelism", "preferred_gpu"}),
    ),
    "alibaba-2023": Format(
        reader="alibaba:read_2023",
        what="Alibaba cluster-trace-gpu-v2023, list of pods",
        needs=frozenset({"num_gpu", "gpu_milli"}),
        assumes=True,
    ),
    "alibaba-2020": Format(
        reader="alibaba:read_2020",
        what="Alibaba cluster-trace-gpu-v2020, pai_task_table",
        needs=frozenset({"job_name", "task_name", "inst_num", "plan_gpu"}),
        assumes=True,
    ),
    "jobs": Format(
        reader="philly:read_csv",
        what="job_id, cluster, submit_s, duration_s, num_gpu: the short form of Philly, ITP and others",
        needs=frozenset({"job_id", "submit_s", "duration_s", "num_gpu"}),
        assumes=True,
    ),
    "csv": Format(reader="own:read_csv", what="our own, as CSV", needs=frozenset({"submit", "devices"}), assumes=True),
    "yaml": Format(reader="own:read_yaml", what="our own, as YAML or JSON", assumes=True),
    "philly": Format(reader="philly:read_json", what="Philly (ATC'19), the original cluster_job_log", assumes=True),
    "gavel": Format(reader="gavel:read", what="Gavel (OSDI'20), .trace files with its throughput table"),
}


def read(
    path: str | Path,
    *,
    format: str | None = None,
    tenants: str | Sequence[str] = (),
    since: float = 0.0,
    until: float = inf,
    **options: Any,
) -> Workload:
    """The workload in a file. `format`: one of FORMATS; None: told by what is in the file.

    `tenants`, `since`, `until`: only these tenants' jobs, only those of these seconds. `skip_bad`: leave out what
    cannot be, and count it. Other options are those of the format's reader and, where it assumes things, those of
    `assumed.Assumptions`; text is turned into what they are.
    """
    from easyscale.simulator.readers.settings import settings

    path = Path(path)
    name = guess(path) if format is None else format
    if name not in FORMATS:
        near = get_close_matches(name, FORMATS, n=2)
        raise UsageError(
            f"There is no trace format {name!r}.",
            f"known are {', '.join(FORMATS)}.",
            f"did you mean {' or '.join(near)}?" if near else "leave it out to have it told by the file.",
        )
    workload = FORMATS[name].function(path, **settings(name, FORMATS[name], options))
    if not workload.arrivals:
        told = "; ".join(f"{count} rows: {why}" for why, count in workload.left_out) or "it has no rows"
        raise UsageError(f"{path}: there is no job in it.", f"{told}.", "name a trace with jobs in it.")
    if not tenants and not since and until == inf:
        return workload
    names = tuple(part.strip() for part in tenants.split(",")) if isinstance(tenants, str) else tuple(tenants)
    return part_of(workload, tenants=tuple(filter(None, names)), since=float(since), until=float(until))


def guess(path: Path) -> str:
    """The format of a file, by its beginning."""
    with open_text(path) as file:
        start = file.read(65536)
    if not start.strip():
        raise UsageError(f"{path} is empty.", "a trace has at least one job.", "name a file with jobs in it.")
    first = start.partition("\n")[0].strip()
    if first.count("\t") >= 6:
        return "gavel"
    if path.name.startswith("pai_task_table"):
        return "alibaba-2020"  # its header is a file of its own
    if path.suffix in (".yaml", ".yml"):
        return "yaml"
    if first[:1] in "[{":
        return "philly" if '"attempts"' in start else "yaml"
    names = {name.strip().lower() for name in first.split(",")}
    for name, how in FORMATS.items():
        if how.needs and how.needs <= names:
            return name
    raise UsageError(
        f"{path}: its format is unknown.",
        f"its first line is {first[:80]!r}, which is the header of no format that is known here.",
        f"name one ({', '.join(FORMATS)}), or give it the columns of our own: name, submit, devices, duration.",
    )
