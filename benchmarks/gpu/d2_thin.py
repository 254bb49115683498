"""Convolutions of few channels on a GPU, layer by layer: what takes the time, and which of two kernels is faster.

    python benchmarks/gpu/d2_thin.py [--models shufflenetv2,yolov3]
    python benchmarks/gpu/d2_thin.py --device cpu --tiny          # a try of the program without a GPU

Microseconds of forward and of each gradient, by stock and by D2, for the layers that are not by slices. `spans` and
`products` are the gradient of the weight by other settings, where they apply: whole spans as programs (`views.FEW` =
0), and depthwise layers by products of matrices instead of lanes (`direct_convolutions.MOST_PAIRS` = 0). All have the
same bits, which is checked.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "src")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products; read when cuBLAS starts

# ruff: noqa: E402  the lines above come first
import torch
from benchmarks.gpu.d2_layers import Convolution, layers
from benchmarks.gpu.d2_timing import Place, Row, level, show, stock_is_deterministic

from easyscale.numerics.kernels.gpu import direct_convolutions, views
from easyscale.numerics.kernels.sliced_convolutions import Correlation, slices_by_image

aten = torch.ops.aten


def is_thin(layer: Convolution) -> bool:
    """Whether its forward is by chains."""
    out, _, *kernel = layer.weight
    x, w = (torch.empty(shape, device="meta") for shape in (layer.pictures, layer.weight))
    size = tuple(layer.forward(x, w).shape[2:])
    over = Correlation(tuple(kernel), layer.padding, size, layer.stride, layer.dilation)
    return not slices_by_image(layer.pictures, out, over, layer.groups, torch.float32)


def measured(layer: Convolution, count: int, place: Place) -> Row:
    x, w, g = layer.inputs(place.device)
    window = layer._window()

    def forward() -> Any:
        return layer.forward(x, w)

    def of_input() -> Any:
        return aten.convolution_backward(g, x, w, None, *window, [True, False, False])[0]

    def of_weight() -> Any:
        return aten.convolution_backward(g, x, w, None, *window, [False, True, False])[1]

    row: Row = {"layer": str(layer), "count": count}
    parts: dict[str, Callable[[], Any]] = {"forward": forward, "input": of_input, "weight": of_weight}
    for name, job in parts.items():
        if name == "input" and not layer.slope:
            continue
        row[name] = place.seconds(job) * 1e6
        with level("d2"):
            row[f"d2 {name}"] = place.seconds(job) * 1e6
    with level("d2"):
        wanted = of_weight()
        for name, module, setting in (("spans", views, "FEW"), ("products", direct_convolutions, "MOST_PAIRS")):
            if name == "products" and layer.groups == 1:
                continue
            with patch.object(module, setting, 0):
                assert torch.equal(of_weight(), wanted), f"{layer}: other bits by {name}"
                row[name] = place.seconds(of_weight) * 1e6
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="shufflenetv2,yolov3", help="models, separated by commas")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program out")
    chosen = parser.parse_args()
    import torchvision_shim  # noqa: F401  torchvision beside a CPU build of torch

    warnings.simplefilter("ignore")  # of operators that have no deterministic form at stock
    stock_is_deterministic()
    place = Place(chosen.device, chosen.tiny, 1, 0.001 if chosen.tiny else 0.02)
    for name in chosen.models.split(","):
        found = [layer for layer in layers(name, "small" if chosen.tiny else "full").items()
                 if isinstance(layer[0], Convolution) and is_thin(layer[0])]  # fmt: skip
        rows = [measured(layer, count, place) for layer, count in found]
        keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in ("layer", "count")]
        total: Row = {"layer": "all", "count": sum(row["count"] for row in rows)}
        total |= {key: sum(row.get(key, 0.0) * row["count"] for row in rows) for key in keys}
        show(f"{name}: microseconds", [*rows, total])
    return 0


if __name__ == "__main__":
    sys.exit(main())
