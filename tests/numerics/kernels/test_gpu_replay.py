"""Forms that a GPU does again by programs: they give what the form gives, and nothing else becomes a program."""

from __future__ import annotations

import importlib.util

import pytest
from tests.numerics.kernels.test_gpu_plans import said
from tests.numerics.kernels.triton_replay_probe import interpreted

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which is not here")


@pytest.mark.slow
@pytest.mark.parametrize("check", interpreted())
def test_a_program_does_what_its_form_does(check: str) -> None:
    assert not said("triton_replay_probe.py", "1")[check]
