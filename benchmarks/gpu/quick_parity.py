"""The bits of host staging on a GPU, for a few cases: a check between two measurements (all of it: tests/gpu)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "gpu"))
import test_parity as parity

CASES = ("several buckets", "accumulation", "autocast bf16")

if __name__ == "__main__":
    seen = [(name, staging, parity.agrees(name, (4,), staging)) for name in CASES for staging in ("host", "device")]
    for name, staging, same in seen:
        print(f"{name}, rows on the {staging}: {'same bits as stock DDP' if same else 'OTHER BITS'}")
    sys.exit(not all(same for _, _, same in seen))
