"""The entry point: registers the commands and turns errors of ours into three readable lines."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from easyscale.cli import people
from easyscale.cli.demo import demo
from easyscale.cli.devices import app as devices
from easyscale.cli.devices import whatif
from easyscale.cli.errors import show
from easyscale.cli.export import export
from easyscale.cli.jobs import checkpoint, scale, stop, wait
from easyscale.cli.login import login, logout, whoami
from easyscale.cli.logs import logs
from easyscale.cli.ps import ps, top
from easyscale.cli.queue import cancel, describe, events, pause, queue, resume
from easyscale.cli.replay import replay
from easyscale.cli.run import attach, run
from easyscale.cli.scan import scan
from easyscale.cli.simulate import simulate
from easyscale.cli.store import app as store
from easyscale.cli.submit import submit
from easyscale.cli.trace import app as trace
from easyscale.cli.up import down, up
from easyscale.cli.verify import verify
from easyscale.core.errors import EasyScaleError

DISTRIBUTION = "easyscale-torch"

app = typer.Typer(
    name="easyscale",
    help="Elastic PyTorch training that ends with the same bits on any number of workers.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich would be loaded for every --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"easyscale {version(DISTRIBUTION)}")
        except PackageNotFoundError:
            print("easyscale (run from source, not installed)")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Elastic PyTorch training that ends with the same bits on any number of workers."""


# All that follows SCRIPT belongs to the script, options included.
app.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="--ests N [OPTIONS]",
)(run)
app.command(context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS]")(verify)
app.command(context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS]")(scan)
for command in (ps, top, scale, checkpoint, logs, stop, wait, attach):
    app.command()(command)
for verb in (up, down, submit, queue, describe, pause, resume, cancel, events, whatif, login, logout, whoami):
    app.command()(verb)
for group in (devices, people.team, people.user, people.token):
    app.add_typer(group)
app.command()(people.audit)
app.command()(demo)
app.command()(export)
app.command()(replay)
app.add_typer(trace)
app.add_typer(store)
app.command()(simulate)


def main() -> None:
    try:
        app()
    except EasyScaleError as error:
        sys.exit(show(error))
    except KeyboardInterrupt:
        sys.exit(130)
