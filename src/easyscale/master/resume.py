"""Where a job that resumes will begin, read from the checkpoint's manifest without torch.

Only the step is read here, to choose the plan in force; the workers check the checkpoint itself.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from easyscale.core.errors import CheckpointError, UsageError

MANIFEST = "checkpoint.json"
LATEST, AUTO = "latest", "auto"


def first_step(resume: str | None, checkpoint_dir: str | None) -> int:
    """The global step at which the job goes on. `auto` is `latest` where there is a checkpoint, else a new start:
    for jobs that are always started with the same command."""
    if resume is None:
        return 0
    if resume not in (LATEST, AUTO):
        folder = Path(resume)
        newest = _newest(folder) if not (folder / MANIFEST).exists() else None
        return _step_in(folder) if newest is None else newest
    if checkpoint_dir is None:
        raise UsageError(
            f"--resume {resume} does not say where the checkpoints are.",
            "the latest one is looked for in the folder of --checkpoint-dir.",
            "add --checkpoint-dir FOLDER, or name one checkpoint with --resume FOLDER/step-0000000120.",
        )
    newest = _newest(Path(checkpoint_dir))
    if newest is None and resume == LATEST:
        raise CheckpointError(
            f"There is no checkpoint in {checkpoint_dir}.",
            "--resume latest needs one.",
            "check the folder, or use --resume auto, which starts anew where there is none.",
        )
    return newest or 0


def _newest(folder: Path) -> int | None:
    for path in sorted(folder.glob("step-*"), reverse=True):
        with contextlib.suppress(CheckpointError):  # damaged or half written: the workers pass it by as well
            return _step_in(path)
    return None


def _step_in(folder: Path) -> int:
    try:
        step = json.loads((folder / MANIFEST).read_text())["step"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} is not a checkpoint.",
            f"it has no {MANIFEST}." if folder.is_dir() else "there is no such folder.",
            "name a checkpoint's own folder, such as --resume checkpoints/step-0000000120, or a folder of them.",
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
