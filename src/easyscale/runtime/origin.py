"""Which script this process runs, with which arguments and from where: written into checkpoints, so that a checkpoint
alone says how to run its job again (`easyscale replay`).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_noted: dict[str, Any] | None = None


def note(target: str, args: Sequence[str], *, module: bool) -> None:
    """Before the script runs: it may change its arguments and its folder."""
    global _noted
    _noted = {
        "name": target, "args": list(args), "module": module, "cwd": os.getcwd(),
        "sha256": None if module else _sha256(Path(target)),
    }  # fmt: skip


def origin() -> dict[str, Any] | None:
    """As plain JSON values; None where nobody can say, as in a notebook."""
    if _noted is None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if not script or not Path(script).is_file():
            return None
        note(str(script), sys.argv[1:], module=False)
    return _noted


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
