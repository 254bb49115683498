"""What level D2 costs on a GPU, and how accurate it is, beside the vendor's deterministic fp32.

    python benchmarks/gpu/d2.py [--only products,convolutions,operators,steps,curves] [--models bert,gpt]
    python benchmarks/gpu/d2.py --device cpu --tiny        # a try of the program without a GPU; writes nothing

Stock kernels and D2 take turns in one process; `speed` is stock's time over D2's, the median over the rounds: above 1,
D2 is faster. `time` of a whole step is the other way round, D2's over D1's. Errors are against fp64 (root of the mean
square, relative). Tables go to the screen, numbers to benchmarks/results/d2-gpu.json, after each part.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "src")]
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products; read when cuBLAS starts

# ruff: noqa: E402  the lines above come first
import torch
import torch.nn.functional as F
from benchmarks.gpu.d2_layers import Convolution, Layer, Product, layers
from benchmarks.gpu.d2_models import ALL
from benchmarks.gpu.d2_steps import curve, step_of
from benchmarks.gpu.d2_timing import Place, Row, compared, errors, on_device, show, stock_is_deterministic, weighted
from benchmarks.zoo.record import Size
from torch import Tensor

from easyscale.numerics.kernels import install

RESULTS = ROOT / "benchmarks" / "results" / "d2-gpu.json"
PRODUCTS_OF = ("bert", "swin")
CONVOLUTIONS_OF = ("resnet50", "vgg19")
STEPS_OF = tuple(name for name in ALL if name not in ("mlp", "rnn"))


def size_of(place: Place) -> Size:
    return "small" if place.tiny else "full"


# ------------------------------------------------------------------------------------------------ layers of models


def measured(layer: Layer, count: int, place: Place) -> Row:
    inputs = layer.inputs(place.device)
    row = {"layer": str(layer), "count": count}
    row |= compared(lambda: layer.forward_and_backward(*inputs), place)
    return row | errors(layer.forward_and_backward, inputs)


def of_models(names: tuple[str, ...], kind: type[Layer], place: Place) -> list[Row]:
    rows = []
    for name in names:
        found = [(layer, count) for layer, count in layers(name, size_of(place)).items() if isinstance(layer, kind)]
        mine: list[Row] = []
        for layer, count in found[: 3 if place.tiny else None]:
            mine.append({"model": name, **measured(layer, count, place)})
            if place.device == "cuda":
                torch.cuda.empty_cache()
        worst = {end: max(row[end] for row in mine) for end in ("stock_error", "d2_error")} if mine else {}
        everything = sum(row["count"] for row in mine)
        rows += [*mine, {"model": name, "layer": "all, by time", "count": everything, **weighted(mine), **worst}]
    return rows


def products(place: Place, models: list[str]) -> list[Row]:
    """Forward and both gradients of linear layers; and the square product that vendors show."""
    side = 64 if place.tiny else 4096
    a, b = (torch.randn(side, side, device=place.device) for _ in range(2))
    square = {"model": "", "layer": f"{side}^3", "count": 1, **compared(lambda: torch.mm(a, b), place)}
    square["tflops"] = 2e-9 * side**3 / square["d2_ms"]
    square |= errors(torch.mm, (a, b))
    return [square, *of_models(tuple(name for name in PRODUCTS_OF if name in models), Product, place)]


def convolutions(place: Place, models: list[str]) -> list[Row]:
    return of_models(tuple(name for name in CONVOLUTIONS_OF if name in models), Convolution, place)


# ------------------------------------------------------------------------------------------------ other operators


def operators(place: Place, models: list[str]) -> list[Row]:
    """Forward and backward of norms, softmax and elementwise functions, at sizes of the models."""
    few, wide, images = (4, 24, 2) if place.tiny else (3072, 768, 64)
    x, image = torch.randn(few, wide), torch.randn(images, 64, *((5, 5) if place.tiny else (56, 56)))
    scores = torch.randn(few, wide if place.tiny else 384 * 12)
    words = torch.randn(few // 4 + 1, 40 if place.tiny else 30_522)
    ones, each = torch.rand(wide), torch.rand(64)
    heads = torch.randn(2, 3, 12, 8) if place.tiny else torch.randn(8, 12, 384, 64)
    seen = torch.arange(heads.shape[2]) < torch.linspace(heads.shape[2] // 2, heads.shape[2], len(heads))[:, None]
    mask = seen[:, None, None].to(place.device)
    kinds: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "layer norm": (lambda x, w, b: F.layer_norm(x, w.shape, w, b), (x, ones, ones)),
        "RMS norm": (lambda x, w: F.rms_norm(x, w.shape, w), (x, ones)),
        "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (image, each, each)),
        "group norm": (lambda x, w, b: F.group_norm(x, 8, w, b), (image, each, each)),
        "softmax": (lambda x: F.softmax(x, -1), (scores,)),
        "log softmax over words": (lambda x: F.log_softmax(x, -1), (words,)),
        "sum of rows": (lambda x: x.sum(1), (scores,)), "sum of columns": (lambda x: x.sum(0), (scores,)),
        "GELU": (F.gelu, (scores,)), "SiLU": (F.silu, (scores,)), "tanh": (torch.tanh, (scores,)),
        "exp": (torch.exp, (scores,)), "sigmoid": (torch.sigmoid, (scores,)),
        "attention": (F.scaled_dot_product_attention, (heads, heads + 1, heads - 1)),
        "causal attention": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (heads, heads + 1, heads - 1)
        ),
        "masked attention": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), (heads, heads + 1, heads - 1)
        ),
        "ReLU": (F.relu, (scores,)), "x + 0.1 y": (lambda x, y: x.add(y, alpha=0.1), (scores, scores + 1)),
    }  # fmt: skip
    rows = []
    for name, (function, inputs) in kinds.items():
        there = tuple(x.to(place.device) for x in inputs)
        rows.append(
            {"operator": name, "shape": "x".join(map(str, inputs[0].shape)), **with_backward(function, there, place)}
        )
    return rows


def with_backward(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], place: Place) -> Row:
    def job(*given: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in given]
        out = function(*leaves)
        g = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).reshape(out.shape).to(out)
        return out.detach(), *torch.autograd.grad(out, leaves, g)

    leaves = [x.detach().requires_grad_() for x in inputs]
    gradient = torch.randn_like(function(*inputs))

    def timed() -> None:
        torch.autograd.grad(function(*leaves), leaves, gradient)

    return {**compared(timed, place), **on_device(timed, place), **errors(job, inputs)}


# ------------------------------------------------------------------------------------------------ whole steps


def steps(place: Place, models: list[str]) -> list[Row]:
    return [step_of(name, size_of(place), place) for name in STEPS_OF if name in models]


def curves(place: Place, models: list[str]) -> list[Row]:
    return [curve(name, place, 4 if place.tiny else 300) for name in ALL if name in models]


PARTS: dict[str, Callable[[Place, list[str]], list[Row]]] = {
    "products": products, "convolutions": convolutions, "operators": operators, "steps": steps, "curves": curves,
}  # fmt: skip

ONE_BY_ONE = ("convolutions", "steps", "curves")  # written after each model: a run may be cut off


def about(place: Place) -> Row:
    known: Row = {"torch": torch.__version__, **install.status()}
    if place.device == "cuda":
        known |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--models", default=",".join(ALL), help="models, separated by commas")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program out; writes nothing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    wanted, models = chosen.only.split(","), chosen.models.split(",")
    unknown = [name for name in wanted if name not in PARTS] + [name for name in models if name not in ALL]
    if unknown:
        parser.error(f"no such parts or models: {', '.join(unknown)}")
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu --tiny tries the program out")
    place = Place(chosen.device, chosen.tiny, 1 if chosen.tiny else chosen.rounds, 0.001 if chosen.tiny else 0.1)
    return measure(place, wanted, models, chosen.results)


def measure(place: Place, wanted: list[str], models: list[str], results: Path) -> int:
    import torchvision_shim  # noqa: F401  torchvision beside a CPU build of torch

    warnings.simplefilter(
        "ignore"
    )  # of operators that have no deterministic form at stock: they are compared all the same
    stock_is_deterministic()
    torch.manual_seed(0)
    everything: Row = json.loads(results.read_text()) if results.exists() else {}
    everything["about"] = about(place)
    failed = 0
    for part in wanted:
        for some in [[name] for name in models] if part in ONE_BY_ONE else [models]:
            began = time.monotonic()
            try:
                rows = PARTS[part](place, some)
            except Exception:
                traceback.print_exc()
                failed += 1
                continue
            show(f"{part} ({time.monotonic() - began:.0f} s)", rows)
            everything[part] = merged(everything.get(part, []), rows)
            if not place.tiny:
                results.write_text(json.dumps(everything, indent=1) + "\n")
    return 1 if failed else 0


def merged(before: list[Row], rows: list[Row]) -> list[Row]:
    """Rows of models that were measured now take the place of their former ones."""
    now = {row.get("model") for row in rows}
    return [row for row in before if row.get("model") not in now] + rows


if __name__ == "__main__":
    sys.exit(main())
