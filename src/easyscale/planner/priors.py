"""What is believed of a device type before it was measured: known ratios between types, and how far they vary.

Sources: the step times of eight models that EasyScale (SC'23) published for V100, P100 and T4, of which the median, the
smallest and the largest ratio to a V100 are kept here; for other types the vendors' data sheets, as the geometric mean
of arithmetic (fp32) and memory bandwidth. The latter is rough, and says so: a factor of two either way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import sqrt

from easyscale.core.cluster import Level
from easyscale.planner.samples import Estimate

# seconds of a local step against a V100: (median, smallest, largest) of the eight models
MEASURED: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "D1": {"v100": (1.0, 1.0, 1.0), "p100": (1.49, 1.24, 1.66), "t4": (1.66, 1.05, 2.45)},
    "D2": {"v100": (1.0, 1.0, 1.0), "p100": (1.59, 1.19, 1.98), "t4": (1.51, 1.10, 2.09)},
}
DATA_SHEET: Mapping[str, tuple[float, float]] = {  # fp32 TFLOP/s, GB/s
    "k80": (4.4, 240), "p100": (10.6, 732), "v100": (15.7, 900), "t4": (8.1, 320), "a10": (31.2, 600),
    "l4": (30.3, 300), "a100": (19.5, 1555), "h100": (67.0, 3350), "h200": (67.0, 4800),
}  # fmt: skip
ROUGH = 2.0
UNKNOWN = 4.0  # of a type that nobody has heard of
USUAL_SECONDS = 0.4  # a V100's local step: the middle of the published models, which lie between 0.01 and 0.46
USUAL_SPREAD = 40.0


def known_name(kind: str) -> str:
    """`Tesla V100-SXM2-16GB` -> `v100`; what is not known stays as it is."""
    words = re.split(r"[^a-z0-9]+", kind.lower())
    return next((word for word in words if word in DATA_SHEET), kind.lower())


def against_v100(kind: str, level: Level) -> tuple[float, float]:
    """How many times as long as on a V100, and the factor to which that is known."""
    name = known_name(kind)
    found = MEASURED["D2" if level == "D2" else "D1"].get(name)
    if found is not None:
        middle, low, high = found
        return middle, max(middle / low, high / middle)
    if name in DATA_SHEET:
        (flops, bandwidth), (of_flops, of_bandwidth) = DATA_SHEET[name], DATA_SHEET["v100"]
        return sqrt(of_flops / flops * of_bandwidth / bandwidth), ROUGH
    return 1.0, UNKNOWN


def expected(kind: str, level: Level, known: Mapping[str, Estimate]) -> Estimate:
    """The seconds of a local step on a type that was not measured, from the type whose figures carry over best."""
    ratio, spread = against_v100(kind, level)
    best = Estimate(USUAL_SECONDS * ratio, USUAL_SPREAD * spread)
    for other, estimate in known.items():
        of_other, of_spread = against_v100(other, level)
        factor = 1.0 if known_name(kind) == known_name(other) else spread * of_spread
        if estimate.spread * factor < best.spread:
            best = Estimate(estimate.seconds * ratio / of_other, estimate.spread * factor)
    return best
