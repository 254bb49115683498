"""Error of D2 products against fp64, beside the vendor's fp32: what BLOCK and SLICES of `products` were chosen by.

    python benchmarks/d2_accuracy.py [--small] [--only numbers,layers,operators]

`numbers`: each row is one kind of numbers and one depth k: the root-mean-square error of the vendor's product, relative
to that of the result, and the errors of D2's forms as multiples of it. `layers`: the layers of the eight published
models at full size. Of the three products of each (forward, input gradient, weight gradient) at the published batch, a
corner of the outputs is computed, by the form that the whole product has: an output's bits depend on its row and column
alone. In convolutions by slices they depend on the whole image, or channel, so of these some channels are computed, of
one image (for the weight gradient: of as many images as the batch has, up to 2^20 positions). `operators`: the same
layers by the operators themselves, one sample, beside oneDNN's and MKL's, the worst of several draws where a layer is
small. The rule is: never more than twice the vendor's error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from parts.d2_layers import MODELS, Layer, layers

from easyscale.numerics.kernels import convolutions, install, primitives, products, sliced_convolutions
from easyscale.numerics.kernels.convolutions import Window

HERE = Path(__file__).parent
SIDE = 64
CORNER = 16  # outputs of a layer that are looked at, in each direction
Row = dict[str, Any]


def normal(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(m, k), torch.randn(k, n)


def activations(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(m, k).relu(), 0.02 * torch.randn(k, n)


def positive(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    """Sums that only grow: weight gradients after ReLU, averages."""
    return torch.randn(m, k).relu(), torch.randn(k, n) + 0.5


def heavy_tails(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    student = torch.distributions.StudentT(3.0)
    return student.sample((m, k)), 0.02 * student.sample((k, n))


def outliers(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    """One value of a thousand is a thousand times larger."""
    a, b = normal(m, k, n)
    return torch.where(torch.rand(m, k) < 1e-3, a * 1000, a), b


def outlier_features(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    """A few features are a hundred times larger in every row, as in transformers."""
    a, b = normal(m, k, n)
    a[:, ::97] *= 100
    return a, b


def gradients(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    """Samples (k) of very different size, as in weight gradients."""
    a, b = normal(m, k, n)
    return a, b * torch.exp(2 * torch.randn(k, 1))


def lognormal(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    return torch.exp(2 * torch.randn(m, k)) * torch.sign(torch.randn(m, k)), torch.randn(k, n)


KINDS: tuple[Callable[[int, int, int], tuple[Tensor, Tensor]], ...] = (
    normal, activations, positive, heavy_tails, outliers, outlier_features, gradients, lognormal,
)  # fmt: skip


def forms(a: Tensor, b: Tensor) -> dict[str, Tensor]:
    found = {
        "one chain": primitives.product(a[None], b[None])[0],
        "blocks": products.chains(a[None], b[None])[0],
    }
    return found | {f"{count} slices": primitives.sliced_product(a, b, count) for count in (2, 3, 4)}


def error(out: Tensor, exact: Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


# ---------------------------------------------------------------------------------------------- by kinds of numbers


def numbers(small: bool) -> list[Row]:
    rows = []
    for kind in KINDS:
        for k in (256, 768) if small else (256, 768, 1024, 3072, 4096, 16384, 65536):
            vendors, ratios = [], dict[str, float]()
            for _ in range(DRAWS):  # numbers with heavy tails differ from draw to draw: the worst counts
                a, b = kind(SIDE, k, SIDE)
                exact = a.double() @ b.double()
                vendors.append(error(a @ b, exact))
                for name, out in forms(a, b).items():
                    ratios[name] = max(ratios.get(name, 0.0), error(out, exact) / vendors[-1])
            vendor = sum(vendors) / DRAWS
            if not rows:
                print(f"{'numbers':18} {'k':>6} {'vendor':>8}  " + " ".join(f"{name:>9}" for name in ratios))
            shown = " ".join(f"{ratio:9.2f}" for ratio in ratios.values())
            print(f"{kind.__name__:18} {k:6} {vendor:8.1e}  {shown}", flush=True)
            chosen = products.slices_of(2**20, 2**20, k, torch.float32)  # where a product is large enough for them
            row = {"numbers": kind.__name__.replace("_", " "), "k": k, "slices": chosen, "vendor": vendor}
            rows.append({**row, "ratios": ratios})
    return rows


# ---------------------------------------------------------------------------------------------- by layers

# What each product of a layer multiplies: usual numbers, and with outliers.
OF_LAYERS = {
    "forward": (activations, outlier_features),
    "input": (heavy_tails, outliers),
    "weight": (gradients, outliers),
}


@cache
def corner(kind: Callable[[int, int, int], tuple[Tensor, Tensor]], k: int, slices: int) -> float:
    """Our error as a multiple of the vendor's, for some outputs of a product of this depth and form."""
    side = CORNER if k < 2**18 else CORNER // 2
    a, b = kind(side, k, side)
    exact = a.double() @ b.double()
    ours = primitives.sliced_product(a, b, slices) if slices else products.chains(a[None], b[None])[0]
    return error(ours, exact) / error(a @ b, exact)


@cache
def channels(layer: Layer, product: str, batch: int, with_outliers: bool) -> float:
    """The same for some channels of a convolution by slices; the scale is that of the images, or channels, as drawn."""
    images = max(1, min(batch, 2**20 // layer.positions)) if product == "weight" else 1
    kept = {"forward": ["outputs"], "input": ["inputs"], "weight": ["outputs", "inputs"]}[product]
    few = replace(layer, **{end: min(CORNER, getattr(layer, end)) for end in kept})
    x, weight, grad = numbers_of(few, with_outliers, images)
    window = Window(layer.kernel, layer.stride, layer.padding, (1, 1))
    grad = grad.view(images, few.outputs, *window.positions(layer.size))
    how = {"stride": layer.stride, "padding": layer.padding}

    def stock(x: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
        if product == "forward":
            return F.conv2d(x, weight, **how)
        if product == "input":
            return torch.nn.grad.conv2d_input(x.shape, weight, grad, **how)
        return torch.nn.grad.conv2d_weight(x, weight.shape, grad, **how)

    with by_slices():
        if product == "forward":
            ours = convolutions.forward(x, weight, window, 1)
        elif product == "input":
            ours = convolutions.input_gradient(grad, weight, window, 1, layer.size)
        else:
            ours = convolutions.weight_gradient(grad, x, weight, window, 1)
    exact = stock(x.double(), weight.double(), grad.double())
    return error(ours, exact) / error(stock(x, weight, grad), exact)


@contextmanager
def by_slices() -> Iterator[None]:
    """Convolutions of any size."""
    with patch.object(products, "SLICED_FROM", 1), patch.object(sliced_convolutions, "SLICED_CHANNELS", 1):
        yield


def of_layers(small: bool) -> list[Row]:
    rows = []
    for name in list(PUBLISHED)[:2] if small else PUBLISHED:
        work, found = MODELS[name], layers(name)
        row: Row = {"model": work.title, "batch": work.batch, "layers": len(found)}
        for product, (usual, odd) in OF_LAYERS.items():
            forms = {layer: layer.forms(work.batch)[product] for layer in found}
            row[product] = {
                "deepest": max(k for k, _ in forms.values()), "sliced": sum(slices > 0 for _, slices in forms.values()),
            }  # fmt: skip
            for case, kind in (("usual", usual), ("outliers", odd)):
                ratios = [
                    corner(kind, *form) if layer.linear or not form[1]
                    else channels(layer, product, work.batch, case == "outliers")
                    for layer, form in forms.items()
                ]  # fmt: skip
                row[product][case] = max(ratios)
        print(row, flush=True)
        rows.append(row)
    return rows


# ---------------------------------------------------------------------------------------------- by operators


def numbers_of(layer: Layer, with_outliers: bool, images: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Input, weight and gradient of the output of one sample, or of so many images."""
    student = torch.distributions.StudentT(3.0)
    if layer.linear:
        few = 16 + 2**26 // (layer.inputs * layer.outputs)  # rows enough to speak of a mean error, in little time
        rows = max(layer.positions, min(few, 1024))
        x, weight = torch.randn(rows, layer.inputs).relu(), torch.randn(layer.outputs, layer.inputs)
        grad = student.sample((rows, layer.outputs))
    else:
        x = torch.randn(images, layer.inputs, *layer.size).relu()
        weight = torch.randn(layer.outputs, layer.inputs // layer.groups, *layer.kernel)
        grad = student.sample((images, layer.outputs, layer.positions))
    if with_outliers:
        x[:, ::97] *= 100
        grad = torch.where(torch.rand(grad.shape) < 1e-3, grad * 1000, grad)
    return x, 0.02 * weight, grad


def computed(layer: Layer, x: Tensor, weight: Tensor, grad: Tensor) -> list[Tensor]:
    """Output, and gradients of input and weight."""
    leaves = (x.detach().requires_grad_(), weight.detach().requires_grad_())
    window = (layer.stride, layer.padding, 1, layer.groups)
    out = F.linear(*leaves) if layer.linear else F.conv2d(*leaves, None, *window)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.view_as(out))]


def draws_of(layer: Layer) -> int:
    """Small layers have few outputs, so that their ratio differs from draw to draw: the worst of several counts."""
    work = layer.inputs // layer.groups * layer.outputs * torch.Size(layer.kernel).numel() * layer.positions
    return DRAWS if work < 2**25 else 1


def one_draw(layer: Layer, with_outliers: bool) -> dict[str, float]:
    """Our error as a multiple of the vendor's, for each product of the layer."""
    given = numbers_of(layer, with_outliers)
    exact = computed(layer, *(x.double() for x in given))
    vendor = computed(layer, *given)
    with install.installed():
        ours = computed(layer, *given)
    return {
        product: error(a, c) / max(error(b, c), LEAST)
        for product, a, b, c in zip(OF_LAYERS, ours, vendor, exact, strict=True)
    }  # fmt: skip


def of_operators(small: bool) -> list[Row]:
    rows = []
    for name in list(PUBLISHED)[:2] if small else PUBLISHED:
        row: Row = {"model": MODELS[name].title}
        for case in ("usual", "outliers"):
            worst: Row = {product: [0.0, None] for product in OF_LAYERS}
            for layer in layers(name):
                for ratios in (one_draw(layer, case == "outliers") for _ in range(draws_of(layer))):
                    for product, ratio in ratios.items():
                        if ratio > worst[product][0]:
                            worst[product] = [ratio, asdict(layer)]
            row[case] = worst
        print(row, flush=True)
        rows.append(row)
    return rows


PUBLISHED = [name for name in MODELS if name not in ("gpt", "mlp", "lstm")]
DRAWS = 5
LEAST = 2.0**-26  # an error below this is one of luck: fp32 cannot hold the result any better


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="short products and two models only; nothing is written")
    parser.add_argument("--only", default="numbers,layers,operators")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = HERE / "results" / "d2-accuracy.json"
    result: Row = json.loads(path.read_text()) if path.exists() else {}
    result["about"] = {
        "torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(), "block": products.BLOCK,
        "definition": install.DEFINITION,
    }  # fmt: skip
    for part in options.only.split(","):
        torch.manual_seed(0)
        result[part] = {"numbers": numbers, "layers": of_layers, "operators": of_operators}[part](options.small)
        if not options.small:
            path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
