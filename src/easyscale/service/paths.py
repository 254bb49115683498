"""Where the service keeps its data unless it is told otherwise."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from easyscale.service.errors import StoreError

VARIABLE = "EASYSCALE_DATA"


def data_dir(wish: Path | None = None) -> Path:
    """`wish`, or $EASYSCALE_DATA, or $XDG_DATA_HOME/easyscale, or ~/.local/share/easyscale."""
    if wish is not None:
        return wish.expanduser().absolute()
    if own := os.environ.get(VARIABLE):
        return Path(own).expanduser().absolute()
    shared = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not shared.is_absolute():  # the standard says to ignore a relative one
        shared = Path.home() / ".local" / "share"
    return shared / "easyscale"


def make_data_dir(folder: Path) -> Path:
    """Make it for its owner alone. One that is there stays as it is, but nobody else may be able to write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as problem:
        why = "it is a file." if isinstance(problem, FileExistsError) else f"{problem.strerror or problem}."
        raise StoreError(
            f"The data folder {folder} cannot be made.", why, f"give another with --data-dir, or set {VARIABLE}."
        ) from problem
    if mode & 0o022:
        raise StoreError(
            f"The data folder {folder} is not safe.",
            f"others may write to it (mode {stat.S_IMODE(mode):o}), and who can may act as an admin.",
            f"`chmod 700 {folder}`, or give another with --data-dir.",
        )
    return folder
