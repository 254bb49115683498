"""`easyscale devices`: what there is and who holds it; drain, lose, lend, call back. And `whatif`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from easyscale.cli.ps import age
from easyscale.cli.remote import Json, Server, the_service
from easyscale.cli.tables import table
from easyscale.core.cluster import parse_devices
from easyscale.core.errors import UsageError

if TYPE_CHECKING:
    from easyscale.service.models import ClusterView, Comparison, DeviceView

app = typer.Typer(
    name="devices",
    help="Show the devices of the service, who holds them, and change what may be used.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Device = Annotated[str, typer.Argument(metavar="ID", help="A device, as `easyscale devices` lists it.")]
Types = Annotated[str | None, typer.Option(metavar="TYPE:COUNT,...", help="So many of these types.")]
Named = Annotated[list[str] | None, typer.Option("--device", metavar="ID", help="This one. Repeat it.")]


@app.callback()
def devices(context: typer.Context, *, server: Server = None, json_output: Json = False) -> None:
    """Show the devices of the service and who holds them."""
    if context.invoked_subcommand is not None:
        if server is not None or json_output:
            raise UsageError(
                f"Flags stand before {context.invoked_subcommand}.", "they belong to it, not to the list.",
                f"write them after: `easyscale devices {context.invoked_subcommand} ... --json`.",
            )  # fmt: skip
        return
    with the_service(server) as client:
        _show(client.cluster(), json_output)


@app.command()
def drain(device: Device, *, server: Server = None, json_output: Json = False) -> None:
    """Give a device no new work; what runs there moves away."""
    with the_service(server) as client:
        _show(client.drain(device), json_output, [device])


@app.command()
def undrain(device: Device, *, server: Server = None, json_output: Json = False) -> None:
    """Use a drained device again."""
    with the_service(server) as client:
        _show(client.undrain(device), json_output, [device])


@app.command()
def lost(
    device: Device,
    *,
    why: Annotated[str | None, typer.Option(help="What happened, for the record.")] = None,
    server: Server = None,
    json_output: Json = False,
) -> None:
    """Say that a device is broken or gone. Jobs on it go on with what they have left."""
    with the_service(server) as client:
        _show(client.lost(device, why), json_output, [device])


@app.command()
def lend(*, types: Types = None, device: Named = None, server: Server = None, json_output: Json = False) -> None:
    """A serving system lends devices to training."""
    wanted = _wanted(types, device)
    with the_service(server) as client:
        _show(client.lend(wanted, device or ()), json_output)


@app.command("call-back")
def call_back(
    *,
    types: Types = None,
    device: Named = None,
    within: Annotated[float, typer.Option(min=0.001, max=3600, help="Seconds that training has to leave.")] = 5.0,
    server: Server = None,
    json_output: Json = False,
) -> None:
    """A serving system wants lent devices back; training leaves within the limit."""
    wanted = _wanted(types, device)
    with the_service(server) as client:
        _show(client.call_back(wanted, device or (), within), json_output)


def _wanted(types: str | None, device: list[str] | None) -> dict[str, int]:
    if types is None and not device:
        raise UsageError("No device is named.", "--types or --device says which.", "such as --types v100:1.")
    return parse_devices(types) if types is not None else {}


def _show(cluster: ClusterView, json_output: bool, only: list[str] | None = None) -> None:
    if json_output:
        from easyscale.cli.printing import print_json

        print_json(cluster)
        return
    now = time.time()
    if only is None:
        jobs = f"{cluster.running} running, {cluster.queued} waiting"
        print(f"policy {cluster.policy}, back end {cluster.backend}; jobs: {jobs}")
        print("\n".join(_types(cluster)) + "\n")
    rows = [_cells(one, now) for one in cluster.devices if only is None or one.id in only]
    print("\n".join(table(("DEVICE", "TYPE", "NODE", "MEMORY", "STATE", "JOB"), rows, {"MEMORY"})))


def _types(cluster: ClusterView) -> list[str]:
    headings = ("TYPE", "TOTAL", "HELD", "FREE", "LENT", "LOST", "DRAINED", "AWAY")
    rows = [
        (one.kind, *map(str, (one.total, one.held, one.free, one.lent, one.lost, one.drained, one.away)))
        for one in cluster.types
    ]
    return table(headings, rows, headings[1:])


def _cells(one: DeviceView, now: float) -> tuple[str, ...]:
    state = f"{one.state}{', lent' * one.lent}"
    if one.by is not None:
        state += f", back in {age(one.by - now)}" if one.by > now else ", overdue"
    return one.id, one.kind, one.node, "" if one.memory_gb is None else f"{one.memory_gb:g} GB", state, one.job or ""


# ---------------------------------------------------------------------------------------- what if


def whatif(
    *,
    policy: Annotated[str, typer.Option(metavar="NAME,...", help="Policies to compare, eight at most.")],
    server: Server = None,
    json_output: Json = False,
) -> None:
    """Simulate the jobs that wait and run now under other policies. Nothing changes."""
    from easyscale.scheduler.policies import POLICIES, make

    names = [name.strip() for name in policy.split(",") if name.strip()]
    for name in names:
        if name not in POLICIES:
            make(name)  # says which are near
    if not 1 <= len(set(names)) <= 8:
        raise UsageError(f"{len(set(names))} policies are named.", "one to eight are compared.", "name some of them.")
    with the_service(server) as client:
        comparison = client.what_if(list(dict.fromkeys(names)))
    if json_output:
        from easyscale.cli.printing import print_json

        print_json(comparison)
    else:
        print("\n".join(_figures(comparison)))


def _figures(comparison: Comparison) -> list[str]:
    headings = ("POLICY", "JCT", "MEDIAN", "MAKESPAN", "UTILIZATION", "SWITCHES")
    rows = [
        (
            one.policy, f"{one.jct:,.0f} s", f"{one.median_jct:,.0f} s", f"{one.makespan:,.0f} s",
            f"{one.utilization:.1%}", f"{one.switches:.1f}",
        )
        for one in sorted(comparison.figures, key=lambda one: one.jct)
    ]  # fmt: skip
    note = [comparison.note] if comparison.note else []
    return [f"{comparison.jobs} jobs", *table(headings, rows, headings[1:]), *note]
