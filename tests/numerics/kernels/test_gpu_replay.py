"""Forms that a GPU does again by programs: they give what the form gives, and nothing else becomes a program."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.numerics.kernels.triton_replay_probe import interpreted

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which is not here")


@functools.cache
def _complaints() -> dict[str, str]:
    """By a program of its own: Triton decides when it is imported whether it interprets."""
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_replay_probe.py")], env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("check", interpreted())
def test_a_program_does_what_its_form_does(check: str) -> None:
    assert not _complaints()[check]
