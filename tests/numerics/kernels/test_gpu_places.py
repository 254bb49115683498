"""The Triton kernels of sums by place, windows and random numbers, as far as they can be tried without a GPU (see
`triton_places_probe`)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.numerics.kernels.triton_places_probe import Checks, compiled, interpreted

PROBE = Path(__file__).parent / "triton_places_probe.py"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton; the kernels ran elsewhere")
@pytest.mark.parametrize(("kind", "checks"), [("interpreted", interpreted()), ("compiled", compiled())])
def test_kernels_have_the_bits_of_torch_operators_and_compile_to_what_is_written(kind: str, checks: Checks) -> None:
    """In a process of its own: Triton decides when it is imported whether it interprets."""
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if kind == "interpreted" else {})
    done = subprocess.run(
        [sys.executable, str(PROBE), kind], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(checks)
    wrong = {check: complaint for check, complaint in found.items() if complaint}
    assert not wrong, "\n\n".join(f"{check}\n{complaint}" for check, complaint in wrong.items())
