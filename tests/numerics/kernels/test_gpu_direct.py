"""Triton kernels of convolutions of few channels, as far as they can be tried without a GPU (`triton_direct_probe`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).parent / "triton_direct_probe.py"


def complaints(kind: str) -> dict[str, str]:
    """A program of its own: Triton decides when it is imported whether it interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1" if kind == "interpreted" else "0"}
    done = subprocess.run(
        [sys.executable, str(PROBE), kind], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert found
    return {name: complaint for name, complaint in found.items() if complaint}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["interpreted", "compiled"])
def test_convolutions_of_few_channels_have_the_bits_of_products(kind: str) -> None:
    assert not complaints(kind)
