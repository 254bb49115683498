"""Where a job that resumes will begin, read from the checkpoint's manifest without torch.

Only the step is read here, to choose the plan in force; the workers check the checkpoint itself.
"""

from __future__ import annotations

import json
from pathlib import Path

from easyscale.core.errors import CheckpointError, UsageError

MANIFEST = "checkpoint.json"
LATEST = "latest"


def first_step(resume: str | None, checkpoint_dir: str | None) -> int:
    """The global step at which the job goes on. 0 where `latest` finds no checkpoint yet: a job that is
    always started with `--resume latest` has none the first time, and the workers decide about that."""
    if resume is None:
        return 0
    if resume != LATEST:
        return _step_in(Path(resume))
    if checkpoint_dir is None:
        raise UsageError(
            "--resume latest does not say where the checkpoints are.",
            "the latest one is looked for in the folder of --checkpoint-dir.",
            "add --checkpoint-dir FOLDER, or name one checkpoint with --resume FOLDER/step-0000000120.",
        )
    for folder in sorted(Path(checkpoint_dir).glob("step-*"), reverse=True):
        try:
            return _step_in(folder)
        except CheckpointError:  # damaged or half written: the workers will pass it by as well
            continue
    return 0


def _step_in(folder: Path) -> int:
    try:
        step = json.loads((folder / MANIFEST).read_text())["step"]
    except FileNotFoundError:
        inside = sorted(path.name for path in folder.glob("step-*"))
        raise CheckpointError(
            f"{folder} is not a checkpoint.",
            f"it has no {MANIFEST}" + (f", but checkpoints in it (the newest: {inside[-1]})." if inside else "."),
            f"use --resume latest --checkpoint-dir {folder}."
            if inside
            else "name a checkpoint's own folder, such as --resume checkpoints/step-0000000120.",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(
            f"The checkpoint {folder} cannot be read.",
            f"its {MANIFEST} is damaged ({problem}).",
            "resume from another checkpoint, or with --resume latest, which passes by what is damaged.",
        ) from None
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise CheckpointError(
            f"The checkpoint {folder} cannot be read.",
            f"its {MANIFEST} says step {step!r}.",
            "resume from another checkpoint.",
        )
    return step
