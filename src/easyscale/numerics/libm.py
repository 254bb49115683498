"""What the C library makes of Python's own floats: learning rates (`math.cos`, `**`) and Adam's `beta ** step`.

IEEE leaves open how pow, exp, log, cos and sin are rounded. glibc computes them one way where the processor has fused
multiply-adds and another way where it has not, and other C libraries have ways of their own: about one result of a
thousand differs in its last bit. No operator of torch is involved, so no level defines it: it is recorded and compared.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterator
from functools import cache

BETAS = (0.9, 0.95, 0.98, 0.99, 0.999, 0.9999)
STEPS = 2000


@cache
def digest() -> str:
    """Of some 34,000 results, in a few milliseconds."""
    return hashlib.sha256(array("d", _results()).tobytes()).hexdigest()[:16]


def _results() -> Iterator[float]:
    for beta in BETAS:
        for step in range(1, STEPS):
            power = beta**step
            yield power
            yield (1 - power) ** 0.5
    for step in range(1, STEPS):
        yield math.cos(math.pi * step / STEPS)
        yield math.sin(step / 1000)
        yield math.exp(-step / 1000)
        yield math.log(step / 1000)
        yield float(step) ** -0.5
