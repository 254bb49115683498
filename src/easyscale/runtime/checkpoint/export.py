"""Weights for others: the model of a checkpoint as one plain safetensors file.

A checkpoint's model file is such a file already, so exporting is a checked copy, whatever the size of the model.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from easyscale.core.errors import CheckpointError
from easyscale.runtime.checkpoint.folder import MANIFEST, WEIGHTS, facts_of, verify_folder
from easyscale.runtime.checkpoint.store import Report, newest_good
from easyscale.runtime.checkpoint.tensorfile import FileFacts, fsync_folder, reading, write_hashed


def _tell_stderr(what: str, sentence: str, step: int) -> None:
    print(f"{what} (step {step}): {sentence}", file=sys.stderr)


def export_weights(source: Path, target: Path, *, report: Report = _tell_stderr) -> None:
    """Write the state_dict of a checkpoint, or of the newest good one in a folder of checkpoints, to `target`."""
    path, facts = _find(Path(source), report)
    target = Path(target)
    if target.is_dir():
        raise CheckpointError(
            f"The weights cannot be written to {target}.",
            "it is a folder.",
            "name a file, such as weights.safetensors.",
        )
    writing = target.with_name(f".{target.name}.writing-{os.getpid()}")
    try:
        writing.unlink(missing_ok=True)
        with reading(path / WEIGHTS, facts) as reader:
            write_hashed(writing, reader.pieces())
        os.replace(writing, target)
        fsync_folder(target.parent)
    except (OSError, ValueError) as problem:
        raise CheckpointError(
            f"The weights of {path} could not be written to {target}.",
            f"{problem}.",
            "check that the target is a file name in a folder that exists, is writable and has space.",
        ) from problem
    finally:
        with contextlib.suppress(OSError):
            writing.unlink(missing_ok=True)


def _find(source: Path, report: Report) -> tuple[Path, FileFacts]:
    """The checkpoint to export and what its manifest says of its model file."""

    def read(path: Path) -> tuple[Path, dict[str, Any]]:
        return path, verify_folder(path)

    found = None if (source / MANIFEST).exists() else newest_good(source, read, report)
    path, manifest = found or read(source)
    if "extra" in manifest["structures"]:
        names = ", ".join(name for name, strides in manifest["model"] if strides is None)
        raise CheckpointError(
            f"The model of {path} cannot be exported as safetensors.",
            f"these entries of its state_dict are not tensors that safetensors knows: {names}.",
            "load the checkpoint with CheckpointStore.load() and save its .model in a format of your choice.",
        )
    return path, facts_of(manifest, WEIGHTS)
