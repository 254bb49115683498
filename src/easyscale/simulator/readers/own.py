"""Our own traces, as CSV (one line a job) and as YAML or JSON (`jobs:` a list, `defaults:` for all of them).

| column | meaning |
|---|---|
| name | of the job; two of one name are kept apart |
| submit | seconds; needed |
| devices | that its user asks for; needed where `ests` is not given |
| duration, steps | seconds on those devices, or global steps; one of the two |
| ests | logical workers; default: `devices` |
| min, max | workers; default: 1 and `ests` |
| gang | yes: exactly `devices` or none |
| level | D0, D1, D2; default D1 |
| types | that it may use: `v100|t4`; default: any |
| kind | type on which `duration` was measured; default: the first of `types`, else the reference |
| seconds | of one mini-batch: a number for `kind`, or `v100:0.25|t4:0.41` |
| memory | GB of one device |
| priority, tenant, application | as they say |
| batch | range of factors by which its global batch may be scaled: `0.5:4`. Its bits change with it |
| batch_size | global batch, for an application of a table (option `tables`) |
| queued, status, attempts | what happened to it where it was recorded |
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from easyscale.core.errors import UsageError
from easyscale.simulator.readers.assumed import Assumptions, Maker
from easyscale.simulator.readers.own_job import NAMES, Fields, Smith, Tables
from easyscale.simulator.readers.philly import stem
from easyscale.simulator.readers.rows import Bad, BadRow, Columns, Names, csv_rows, open_text, yaml_module
from easyscale.simulator.workload import Workload

WRITTEN = ("name", "submit", "devices", "duration", "ests", "min", "max", "gang", "level", "types", "kind", "priority",
           "tenant", "application")  # fmt: skip


def read_csv(path: Path, *, assumptions: Assumptions, skip_bad: bool = False, tables: Tables | None = None) -> Workload:
    """`tables`: folders with one APPLICATION.csv (ElasticFlow's throughputs) for each device type."""
    bad = Bad(path, skip=skip_bad)
    rows = csv_rows(path, bad)
    header = [name.strip().lower() for name in next(rows)[1]]
    Columns(header, needed=("submit",), bad=bad)
    _known(header, bad)
    jobs = ((line, dict(zip(header, map(str.strip, row), strict=False))) for line, row in rows)
    return _workload(path, jobs, bad, assumptions, tables or {})


def read_yaml(
    path: Path, *, assumptions: Assumptions, skip_bad: bool = False, tables: Tables | None = None
) -> Workload:
    """The same in YAML; JSON is YAML too."""
    yaml = yaml_module()
    bad = Bad(path, skip=skip_bad)
    with open_text(path) as file:
        try:
            root = yaml.compose(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError as error:
            bad.file("is not YAML.", f"{error}.", "correct it.")
    top = {_cell(key): value for key, value in root.value} if isinstance(root, yaml.MappingNode) else {"jobs": root}
    listed = top.get("jobs")
    if not isinstance(listed, yaml.SequenceNode):
        bad.file("there is no list of jobs in it.", "a trace has `jobs:` with one entry a job.", "write one.")
    defaults = {}
    if "defaults" in top:
        if not isinstance(top["defaults"], yaml.MappingNode):
            bad.file("its defaults are no names with values.", "they stand for what jobs do not say.", "correct them.")
        defaults = _fields(top["defaults"])
        _known(defaults, bad, top["defaults"].start_mark.line + 1)

    def jobs() -> Iterable[tuple[int, Fields]]:
        for entry in listed.value:
            if not isinstance(entry, yaml.MappingNode):
                bad.row(entry.start_mark.line + 1, BadRow("it is no job.", "a job has names with values"))
                continue
            said = _fields(entry)
            _known(said, bad, entry.start_mark.line + 1)
            yield entry.start_mark.line + 1, {**defaults, **said}

    found = _workload(path, jobs(), bad, assumptions, tables or {})
    name, origin = (_cell(top[key]) if key in top else "" for key in ("name", "origin"))
    return replace(found, name=name or found.name, origin=origin)


def write_csv(workload: Workload, path: Path) -> None:
    """A trace that `read_csv` reads. Its jobs have durations, so they are as fast as its reader then assumes."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(WRITTEN)
        for of in workload.arrivals:
            needs = of.needs
            seconds = of.work / of.speed.rate({of.kind: of.requested})
            limits = ("", "", "yes") if needs.gang is not None else (needs.min_workers, needs.max_workers or "", "")
            types = "|".join(needs.types or ())
            size = of.name, f"{of.time:.10g}", of.requested, f"{seconds:.10g}", needs.ests
            rest = needs.level, types, of.kind, needs.priority or "", needs.tenant, of.application
            writer.writerow((*size, *limits, *rest))


def _workload(
    path: Path, jobs: Iterable[tuple[int, Fields]], bad: Bad, assumptions: Assumptions, tables: Tables
) -> Workload:
    names, smith = Names(), Smith(Maker(assumptions), {kind: Path(folder) for kind, folder in tables.items()})
    arrivals = []
    for line, said in jobs:
        try:
            arrival = smith.job(line, said)
        except BadRow as problem:
            bad.row(line, problem)
            continue
        arrivals.append(replace(arrival, name=names.unlike(arrival.name)))
    arrivals.sort(key=lambda arrival: arrival.time)
    return Workload(name=stem(path), arrivals=tuple(arrivals), left_out=bad.counts)


def _known(names: Iterable[str], bad: Bad, line: int | None = None) -> None:
    strange = [name for name in names if name and name not in NAMES]
    if strange:
        where = "" if line is None else f", line {line}"
        raise UsageError(
            f"{bad.path}{where}: {', '.join(strange)} is no name of our format.",
            f"there are {', '.join(NAMES)}.",
            "correct it, or leave it out.",
        )


def _fields(node: Any) -> dict[str, str]:
    """A YAML mapping as the text that the same cell of a CSV file would have."""
    return {_cell(key): _cell(value) for key, value in node.value}


def _cell(node: Any) -> str:
    if isinstance(node.value, str):
        return "" if node.tag.endswith(":null") else node.value.strip()
    parts = (f"{_cell(p[0])}:{_cell(p[1])}" if isinstance(p, tuple) else _cell(p) for p in node.value)
    return "|".join(parts)
