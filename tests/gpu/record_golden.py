"""Records the golden fingerprints of D2, tests/golden/d2.json, with the recipe that they came from.

    python tests/gpu/record_golden.py                  # on a GPU: what every device is then held to
    python tests/gpu/record_golden.py --device cpu     # by the C kernels; says so in the recipe

The runs are those of tests/d2_runs.py. Where the file has other fingerprints already, nothing is written unless
`--replace` is given: a golden bit changes only with a definition (`install.DEFINITION`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

# ruff: noqa: E402  the line above comes first
import torch

from d2_runs import fingerprints
from easyscale.numerics.kernels import install

GOLDEN = ROOT / "tests" / "golden" / "d2.json"
NOTE = "recorded on a CPU; to be recorded again on an H200 by tests/gpu/record_golden.py"


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def recipe(device: str) -> dict[str, Any]:
    """Where the fingerprints come from. Read from this process, never given by hand."""
    flags = " ".join(["python tests/gpu/record_golden.py", *sys.argv[1:]])
    made: dict[str, Any] = {
        "torch": torch.__version__, "definition": install.DEFINITION, "command": flags,
        "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip
    if device == "cpu":
        return {"device": f"cpu ({platform.machine()})", "kernels": install.status()["cpu"], **made, "note": NOTE}
    import triton

    return {"device": torch.cuda.get_device_name(), "driver": driver(), "triton": triton.__version__, **made}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--replace", action="store_true", help="also where fingerprints change")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and (not torch.cuda.is_available() or importlib.util.find_spec("triton") is None):
        print(
            "Nothing was recorded: there is no CUDA device with Triton here.\n"
            "The golden fingerprints say that a GPU computed them, so that CPUs can be held to them.\n"
            "Run this on a GPU; --device cpu records what this CPU computes, and says so.",
            file=sys.stderr,
        )
        return 1
    with install.installed():
        runs = fingerprints(chosen.device)
    before = json.loads(GOLDEN.read_text())["runs"] if GOLDEN.exists() else {}
    changed = sorted(name for name in runs if before.get(name, runs[name]) != runs[name])
    print(f"{len(runs)} runs, {len(changed)} with other fingerprints than {GOLDEN.name} has")
    if changed and not chosen.replace:
        print(
            f"Nothing was recorded: {', '.join(changed)} would change.\n"
            "Golden bits change only with a definition; otherwise this device computes something else.\n"
            "Find out which operator differs (tests/gpu/test_d2.py), or give --replace.",
            file=sys.stderr,
        )
        return 1
    GOLDEN.write_text(json.dumps({"recipe": recipe(chosen.device), "runs": runs}, indent=1) + "\n")
    print(json.dumps(json.loads(GOLDEN.read_text())["recipe"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
