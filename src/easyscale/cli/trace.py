"""`easyscale trace`: study traces of jobs, generate some, and fit the generator to one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from easyscale.simulator.describe import Replayed
    from easyscale.simulator.workload import Workload

app = typer.Typer(
    name="trace",
    help="Study traces of jobs, generate some, and fit the generator to one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A trace; gzip is read as it is.")]
FormatName = Annotated[str | None, typer.Option("--format", help="Its format. Default: told by the file.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be, and count them.")]
Tenants = Annotated[str | None, typer.Option("--tenants", metavar="A,B", help="Only jobs of these tenants.")]
Kind = Annotated[str | None, typer.Option("--kind", help="Device type of a trace that names none. Default: v100.")]
Reading = Annotated[
    list[str] | None, typer.Option("--read", metavar="NAME=VALUE", help="An option of the trace's reader. Repeat it.")
]


@app.command()
def describe(
    file: File,
    *,
    format: FormatName = None,
    skip_bad: SkipBad = False,
    tenants: Tenants = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="TYPE:COUNT,...", help="Replay the trace on these devices: queueing and its causes."),
    ] = None,
    per_node: Annotated[int, typer.Option(min=1, help="Devices of a machine, in the replay.")] = 8,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds for which a job waits for devices that are together.")
    ] = 600.0,
    quotas: Annotated[bool, typer.Option("--quotas", help="Tenants have shares of the cluster, by demand.")] = False,
    kind: Kind = None,
    reading: Reading = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plots: Annotated[Path | None, typer.Option(metavar="DIR", help="Write plots there (needs matplotlib).")] = None,
    form: Annotated[Literal["png", "svg"], typer.Option("--plot-format", help="Of the plots.")] = "png",
) -> None:
    """Study a trace: sizes, run times, load, queueing by size and cause, locality, failures."""
    from dataclasses import asdict

    from easyscale.core.cluster import parse_devices
    from easyscale.simulator.describe import describe as study_of
    from easyscale.simulator.describe_table import table

    devices = None if cluster is None else parse_devices(cluster)
    if kind is None and devices is not None:
        kind = next(iter(devices))
    workload = _read(file, format, skip_bad, tenants, kind, reading)
    waits = None if devices is None else _replayed(workload, devices, per_node, patience, quotas)
    study = study_of(workload, cluster=devices, replay=None if waits is None else lambda _: waits)
    if json_output:
        print(json.dumps(asdict(study)))
    else:
        print(table(study))
    if plots is not None:
        from easyscale.simulator.describe_plots import plot

        for path in plot(workload, plots, waits=waits, form=form):
            print(f"wrote {path}", file=sys.stderr)


@app.command()
def generate(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the trace goes, as CSV.")],
    *,
    jobs: Annotated[int, typer.Option(min=1, help="How many.")] = 1000,
    spec: Annotated[Path | None, typer.Option(help="What they look like, as `trace fit` writes it.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same jobs.")] = 0,
    load: Annotated[float, typer.Option(help="Factor on the rate at which they arrive.")] = 1.0,
    kind: Kind = None,
) -> None:
    """Write a trace of jobs that nobody ran."""
    from easyscale.simulator.generate import generate as generated
    from easyscale.simulator.generator_spec import GeneratorSpec, load_spec
    from easyscale.simulator.readers.assumed import Assumptions
    from easyscale.simulator.readers.own import write_csv

    wanted = GeneratorSpec() if spec is None else load_spec(spec)
    assumptions = Assumptions() if kind is None else Assumptions(kind=kind)
    workload = generated(wanted, jobs, seed=seed, load=load, assumptions=assumptions)
    write_csv(workload, output)
    print(f"{len(workload.arrivals):,} jobs in {workload.arrivals[-1].time / 3600:,.1f} hours: {output}")


@app.command()
def fit(
    file: File,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where it goes: .yaml or .json.")],
    *,
    format: FormatName = None,
    skip_bad: SkipBad = False,
    tenants: Tenants = None,
    kind: Kind = None,
    reading: Reading = None,
) -> None:
    """Fit the generator to a trace: arrivals by hour and day, bursts, sizes, durations."""
    from easyscale.simulator.generate import fit as fitted
    from easyscale.simulator.generator_spec import save_spec

    workload = _read(file, format, skip_bad, tenants, kind, reading)
    spec = fitted(workload)
    save_spec(spec, output)
    bursts = f", {spec.burst_share:.0%} of submissions are bursts of {spec.burst_jobs:.1f}" if spec.burst_share else ""
    print(f"{len(workload.arrivals):,} jobs: {spec.jobs_per_hour:.1f} an hour{bursts}: {output}")


def _read(
    file: Path,
    format: str | None,
    skip_bad: bool,
    tenants: str | None,
    kind: str | None,
    reading: list[str] | None,
) -> Workload:
    from easyscale.core.errors import UsageError
    from easyscale.simulator.readers import FORMATS, guess, read

    name = format if format is not None else guess(file)
    options: dict[str, Any] = {"skip_bad": skip_bad}
    if kind is not None and name in FORMATS and FORMATS[name].assumes:
        options["kind"] = kind
    for text in reading or ():
        option, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--read {text} has no value.", "it is NAME=VALUE.", "write it like --read level=D2.")
        options[option.replace("-", "_")] = value
    workload = read(file, format=name, tenants=tenants or (), **options)
    if skip_bad and workload.left_out:
        for why, count in workload.left_out:
            print(f"left out: {count:,} rows: {why}", file=sys.stderr)
    return workload


def _replayed(workload: Workload, cluster: dict[str, int], per_node: int, patience: float, quotas: bool) -> Replayed:
    from easyscale.core.cluster import show
    from easyscale.core.errors import UsageError
    from easyscale.simulator.queueing import quotas_by_demand, replay

    shares = quotas_by_demand(workload, cluster) if quotas else None
    waits = replay(workload, cluster, per_node=per_node, quotas=shares, patience=patience)
    never = sum(wait is None for wait in waits)
    if never == len(waits):
        raise UsageError(
            f"No job of {workload.name} can run on {show(cluster)}.",
            "each asks for more devices of one type than there are, or for other types.",
            "name a larger cluster, or the types of the trace.",
        )
    if never:
        print(f"{never:,} jobs ask for more than this cluster has; they are not replayed.", file=sys.stderr)
    return waits
