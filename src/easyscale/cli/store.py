"""`easyscale store`: copy the service's store, bring a copy back, see whether it is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="store",
    help="The service's store: copy it, bring a copy back, see whether it is whole.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="The service's folder. Default: $EASYSCALE_DATA, $XDG_DATA_HOME/easyscale or ~/.local/share/easyscale.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy to write; FILE.sha256 is written beside it.")],
    *,
    data_dir: DataDir = None,
    json_output: Json = False,
) -> None:
    """Copy the store while the service runs."""
    from easyscale.service.paths import data_dir as default
    from easyscale.service.store import open_store
    from easyscale.service.store.backup import backup as copy

    with open_store(default(data_dir), existing=True) as store:
        digest = copy(store, file)
    size = file.stat().st_size
    if json_output:
        typer.echo(json.dumps({"file": str(file), "bytes": size, "sha256": digest}))
    else:
        typer.echo(f"Wrote {file} ({size / 1e6:.1f} MB, sha256 {digest[:12]}...).")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `easyscale store backup` wrote.")],
    *,
    data_dir: DataDir = None,
    without_checksum: Annotated[
        bool, typer.Option("--without-checksum", help="Take a copy whose FILE.sha256 is lost.")
    ] = False,
) -> None:
    """Make a store from a copy. Nothing is overwritten."""
    from easyscale.service.paths import data_dir as default
    from easyscale.service.store.backup import restore as bring_back

    made = bring_back(file, default(data_dir), trust=without_checksum)
    typer.echo(f"Restored {made}. Start the service with `easyscale up`.")


@app.command()
def check(
    *,
    data_dir: DataDir = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", envvar="EASYSCALE_STORE", help="A PostgreSQL store instead."),
    ] = None,
    json_output: Json = False,
) -> None:
    """See whether the store is whole, its version, and how much is in it. Exit code 1: it is damaged."""
    from easyscale.service.paths import data_dir as default
    from easyscale.service.store import open_store
    from easyscale.service.store.backup import check_file
    from easyscale.service.store.migrate import head

    with open_store(store or default(data_dir), existing=True) as opened:
        wrong = check_file(opened.place.file) if opened.place.file else []
        facts = {
            "store": opened.place.name, "whole": not wrong, "problems": wrong,
            "revision": opened.revision(), "newest_revision": head(), "counts": {} if wrong else opened.counts(),
        }  # fmt: skip
    if json_output:
        typer.echo(json.dumps(facts))
    else:
        _show(facts)
    raise typer.Exit(1 if wrong else 0)


def _show(facts: dict[str, object]) -> None:
    typer.echo(f"store     {facts['store']}")
    newest = facts["newest_revision"]
    later = "" if facts["revision"] == newest else f" (the next `easyscale up` upgrades it to {newest})"
    typer.echo(f"revision  {facts['revision']}{later}")
    counts, problems = facts["counts"], facts["problems"]
    assert isinstance(counts, dict)
    assert isinstance(problems, list)
    for name, count in counts.items():
        typer.echo(f"{name:9} {count}")
    for problem in problems:
        typer.echo(f"damaged   {problem}")
    typer.echo("The store is damaged: restore a backup." if problems else "The store is whole.")
