"""D2's operators beside those of RepDL, the other public library whose bits are the same on CPU and GPU.

    python benchmarks/gpu/repdl.py --path FOLDER      # where `repdl` was built (`python setup.py build_ext --inplace`)

RepDL is not part of this project: get it from its makers, and build it for the torch that is here. Both take turns in
one process; `speed` is RepDL's time over D2's. Rows go under `repdl` of benchmarks/results/d2-gpu.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

# ruff: noqa: E402  the line above comes first
import torch
import torch.nn.functional as F
from benchmarks.gpu.d2_timing import Place, Row, show

from easyscale.numerics.kernels import install

RESULTS = ROOT / "benchmarks" / "results" / "d2-gpu.json"
Job = Callable[[], Any]
aten = torch.ops.aten


def jobs(ops: Any) -> dict[str, tuple[Job, Job]]:
    """Of each operator that RepDL has: its call, and ours."""
    found: dict[str, tuple[Job, Job]] = {}

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda")

    for m, k, n in ((1024, 1024, 1024), (3072, 768, 3072), (4096, 4096, 4096)):
        a, b = numbers(m, k), numbers(k, n)
        found[f"product {m} x {k} x {n}"] = (
            lambda a=a, b=b: ops.mm(a, b), lambda a=a, b=b: torch.mm(a, b),
        )  # fmt: skip
    for images, channels, size in ((64, 64, 56), (64, 256, 14), (32, 512, 28)):
        x, w = numbers(images, channels, size, size), numbers(channels, channels, 3, 3)
        steps = sides = (1, 1)
        window = [list(steps), list(sides), [1, 1], False, [0, 0], 1]
        g = numbers(*aten.convolution(x, w, None, *window).shape)
        name = f"{images} x {channels} x {size} x {size}, 3 x 3"
        found[f"convolution {name}"] = (
            lambda x=x, w=w, s=steps, p=sides: ops.conv2d(x, w, s, p, 1),
            lambda x=x, w=w, v=window: aten.convolution(x, w, None, *v),
        )
        found[f"gradient of the input {name}"] = (
            lambda x=x, w=w, g=g, s=steps, p=sides: ops.conv2d_grad_input(x.shape, w, g, s, p),
            lambda x=x, w=w, g=g, v=window: aten.convolution_backward(g, x, w, None, *v, [True, False, False]),
        )
        found[f"gradient of the weight {name}"] = (
            lambda x=x, w=w, g=g, s=steps, p=sides: ops.conv2d_grad_kernel(x, w.shape, g, s, p),
            lambda x=x, w=w, g=g, v=window: aten.convolution_backward(g, x, w, None, *v, [False, True, False]),
        )
    scores, classes = numbers(3072, 4608), torch.randint(4608, (3072,), device="cuda")
    found["softmax 3072 x 4608"] = lambda: ops.softmax(scores), lambda: F.softmax(scores, 1)
    found["cross entropy 3072 x 4608"] = (
        lambda: ops.cross_entropy(scores, classes), lambda: F.cross_entropy(scores, classes, reduction="none"),
    )  # fmt: skip
    found["sum of rows 3072 x 4608"] = lambda: ops.sum2d_dim1(scores), lambda: scores.sum(1)
    found["sum of columns 3072 x 4608"] = lambda: ops.sum2d_dim0(scores), lambda: scores.sum(0)
    flat = scores.flatten()
    found["sum of 14,155,776"] = lambda: ops.sum1d(flat), flat.sum
    return found


def measured(name: str, theirs: Job, ours: Job, place: Place) -> Row:
    times: dict[str, list[float]] = {"repdl": [], "d2": []}
    for _ in range(place.rounds):
        times["repdl"].append(place.seconds(theirs))
        with install.installed():
            times["d2"].append(place.seconds(ours))
    speed = median(a / b for a, b in zip(times["repdl"], times["d2"], strict=True))
    return {
        "operator": name, "repdl_ms": median(times["repdl"]) * 1e3, "d2_ms": median(times["d2"]) * 1e3, "speed": speed,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, required=True, help="the folder that holds the package repdl")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    sys.path.insert(0, str(chosen.path))
    try:
        from repdl import ops  # type: ignore[import-not-found]
    except ImportError as problem:
        parser.error(f"no package repdl that can be imported in {chosen.path}: {problem}")
    place = Place("cuda", False, 3, 0.02)
    rows = [measured(name, theirs, ours, place) for name, (theirs, ours) in jobs(ops).items()]
    show(f"beside RepDL, {torch.cuda.get_device_name()}", rows)
    everything = json.loads(chosen.results.read_text()) if chosen.results.exists() else {}
    chosen.results.write_text(json.dumps({**everything, "repdl": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
