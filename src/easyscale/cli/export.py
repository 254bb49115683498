"""`easyscale export`: the weights of a checkpoint as a plain safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    source: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a folder of them (its newest good one).")
    ],
    target: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="The file to write, such as weights.safetensors.")],
) -> None:
    """Write the model of a checkpoint as a state_dict that anyone with safetensors can load."""
    from easyscale.runtime.checkpoint import export_weights

    export_weights(source, target)
    typer.echo(f"Wrote {target} ({target.stat().st_size / 1e6:.1f} MB).")
