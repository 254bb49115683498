"""HiGHS writes one line of its own debugging straight to the process's output, whatever it is told. Kept out here."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

NOISE = b"HighsMipSolverData::"  # how that line begins; everything else is passed on


@contextmanager
def quiet() -> Iterator[None]:
    """While this lasts, what is written to the standard output is held back, and then passed on without the noise."""
    try:
        _flush()
        out = os.dup(1)
    except (AttributeError, OSError, ValueError):  # there is no output to keep clean
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 1)
        try:
            yield
        finally:
            _flush()
            os.dup2(out, 1)
            os.close(out)
            held.seek(0)
            for line in held:
                if not line.startswith(NOISE):
                    os.write(1, line)


def _flush() -> None:
    """What Python and what the C library has in its buffers."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
