"""How an error of ours is shown: three readable lines, no traceback."""

from __future__ import annotations

import sys

from easyscale.core.errors import EasyScaleError


def show(error: EasyScaleError) -> int:
    """Print an error of ours, without a traceback. Returns the exit code for it."""
    word = "\x1b[1;31merror:\x1b[0m" if sys.stderr.isatty() else "error:"
    print(f"{word} {error}", file=sys.stderr)
    return 2
