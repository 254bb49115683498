"""Powers, exponentials and cosines of Python's floats come from the C library, and its way of them is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from easyscale.numerics import libm
from easyscale.numerics.record import differences

# glibc looks at the processor once, when a program starts: so it takes it for one without fused multiply-adds.
WITHOUT_FMA = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-AVX2,-FMA_Usable,-AVX2_Usable"}
PROGRAM = """
import json, math
from easyscale.numerics import libm
sample = [0.9**348, 0.999**3856, math.exp(-0.052), math.cos(math.pi * 4235 / 200000)]
print(json.dumps([libm.digest(), [x.hex() for x in sample]]))
"""


def elsewhere(environment: dict[str, str]) -> tuple[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    digest, sample = json.loads(done.stdout)
    return digest, sample


def test_the_digest_is_the_same_in_every_process() -> None:
    assert elsewhere({})[0] == libm.digest()


def test_a_processor_without_fused_multiply_adds_has_another_digest_where_its_results_differ() -> None:
    """Where there are none to begin with, or the C library has one way only, both are the same."""
    here, there = elsewhere({}), elsewhere(WITHOUT_FMA)
    assert (here[0] != there[0]) == (here[1] != there[1])


def test_the_digest_must_agree_at_every_level() -> None:
    for level in ("D0", "D1", "D2"):
        ours: dict[str, Any] = {"level": level, "libm": libm.digest()}
        (found,) = differences(ours, {**ours, "libm": "another"})
        assert "C library" in found
        assert differences(ours, ours) == []


def test_a_record_from_before_there_was_a_digest_agrees() -> None:
    assert differences({"level": "D2", "libm": libm.digest()}, {"level": "D2"}) == []
