"""Error of D2 products against fp64, beside the vendor's fp32: what BLOCK and SLICES of `products` were chosen by.

    python benchmarks/d2_accuracy.py [--small] [--only numbers,layers,operators]

`numbers`: each row is one kind of numbers and one depth k: the root-mean-square error of the vendor's product, relative
to that of the result, and the errors of D2's forms as multiples of it. Errors are taken over several draws of the
numbers. In a single draw a large value may come early or late in a sum, and two orders of the vendor's own kernel may
differ as much: its product with k reversed is there as a control. `layers`: the layers of the eight published models at
full size. Of the three products of each (forward, input gradient, weight gradient) at the published batch, a corner of
the outputs is computed, by the form that the whole product has: an output's bits depend on its row and column alone. In
convolutions by slices they depend on the whole image, or channel, so of these some channels are computed, of one image
(for the weight gradient: of as many images as the batch has, up to 2^20 positions). `operators`: the same layers by the
operators themselves, one sample, beside oneDNN's and MKL's. The rule is: never more than twice the vendor's error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from math import sqrt
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


def summary(draws: Sequence[tuple[float, float, float]]) -> Row:
    """Of errors of D2, of the vendor, and of the vendor in another order: the root of their mean square as multiples of
    the vendor's, and the worst multiple of a single draw."""
    ours, vendor, other = (sqrt(sum(x * x for x in errors) / len(draws)) for errors in zip(*draws, strict=True))
    least = max(vendor, LEAST)
    found = {"vendor": vendor, "ours": ours / least, "other": other / least}
    found["worst"] = max(a / max(b, LEAST) for a, b, _ in draws)
    found["other_worst"] = max(c / max(b, LEAST) for _, b, c in draws)
    return found


# ---------------------------------------------------------------------------------------------- by kinds of numbers


def numbers(small: bool) -> list[Row]:
    rows = []
    for kind in KINDS:
        for k in (256, 768) if small else (256, 768, 1024, 3072, 4096, 16384, 65536):
            errors: dict[str, list[tuple[float, float, float]]] = {}
            for _ in range(DRAWS):
                a, b = kind(SIDE, k, SIDE)
                exact = a.double() @ b.double()
                vendor, other = error(a @ b, exact), error(a.flip(1) @ b.flip(0), exact)
                for name, out in forms(a, b).items():
                    errors.setdefault(name, []).append((error(out, exact), vendor, other))
            found = {name: summary(draws) for name, draws in errors.items()}
            any_of_them = found["blocks"]
            if not rows:
                print(f"{'numbers':18} {'k':>6} {'vendor':>8} {'reversed':>9} " + " ".join(f"{x:>9}" for x in found))
            shown = " ".join(f"{one['ours']:9.2f}" for one in found.values())
            print(
                f"{kind.__name__:18} {k:6} {any_of_them['vendor']:8.1e} {any_of_them['other']:9.2f} {shown}", flush=True
            )
            chosen = products.slices_of(2**20, 2**20, k, torch.float32)  # where a product is large enough for them
            rows.append({"numbers": kind.__name__.replace("_", " "), "k": k, "slices": chosen, "forms": found})
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
    draws = []
    for _ in range(DRAWS):
        a, b = kind(side, k, side)
        exact = a.double() @ b.double()
        ours = primitives.sliced_product(a, b, slices) if slices else products.chains(a[None], b[None])[0]
        draws.append((error(ours, exact), error(a @ b, exact), 0.0))
    return float(summary(draws)["ours"])


@cache
def channels(layer: Layer, product: str, batch: int, with_outliers: bool) -> float:
    """The same for some channels of a convolution by slices; the scale is that of the images, or channels, as drawn."""
    images = max(1, min(batch, 2**20 // layer.positions)) if product == "weight" else 1
    kept = {"forward": ["outputs"], "input": ["inputs"], "weight": ["outputs", "inputs"]}[product]
    few = replace(layer, **{end: min(CORNER, getattr(layer, end)) for end in kept})
    draws = [one_of_channels(few, product, with_outliers, images) for _ in range(1 if product == "weight" else 6)]
    return float(summary(draws)["ours"])


def one_of_channels(few: Layer, product: str, with_outliers: bool, images: int) -> tuple[float, float, float]:
    x, weight, grad = numbers_of(few, with_outliers, images)
    window = Window(few.kernel, few.stride, few.padding, (1, 1))
    grad = grad.view(images, few.outputs, *window.positions(few.size))
    how = {"stride": few.stride, "padding": few.padding}

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
            ours = convolutions.input_gradient(grad, weight, window, 1, few.size)
        else:
            ours = convolutions.weight_gradient(grad, x, weight, window, 1)
    exact = stock(x.double(), weight.double(), grad.double())
    return error(ours, exact), error(stock(x, weight, grad), exact), 0.0


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
                ratios = {
                    layer: corner(kind, *form) if layer.linear or not form[1]
                    else channels(layer, product, work.batch, case == "outliers")
                    for layer, form in forms.items()
                }  # fmt: skip
                worst = max(ratios, key=lambda layer: ratios[layer])
                row[product][case] = {"ours": ratios[worst], **asdict(worst)}
        shown = {
            product: [f"{row[product][case]['ours']:.2f}" for case in ("usual", "outliers")] for product in OF_LAYERS
        }
        print(row["model"], shown, flush=True)
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
    """Small layers have few outputs, so that their ratio differs from draw to draw."""
    work = layer.inputs // layer.groups * layer.outputs * torch.Size(layer.kernel).numel() * layer.positions
    return DRAWS if work < 2**26 else 2


def reversed_order(layer: Layer, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same layer with its channels, and its places if that is the same layer, from the other end."""
    x, weight, grad = given
    if layer.linear:
        return x.flip(0, 1), weight.flip(0, 1), grad.flip(0, 1)
    sides = zip(layer.size, layer.kernel, layer.stride, layer.padding, strict=True)
    even = all((size + 2 * pad - taps) % step == 0 for size, taps, step, pad in sides)
    if layer.groups > 1:
        return (x.flip(2, 3), weight.flip(2, 3), grad.flip(2)) if even else given
    if even:
        return x.flip(1, 2, 3), weight.flip(0, 1, 2, 3), grad.flip(1, 2)
    return x.flip(1), weight.flip(0, 1), grad.flip(1)


def one_draw(layer: Layer, with_outliers: bool) -> dict[str, tuple[float, float, float]]:
    """The errors of each product of the layer: ours, the vendor's, and the vendor's in another order."""
    given = numbers_of(layer, with_outliers)
    turned = reversed_order(layer, given)
    exact, exact_turned = ([*computed(layer, *(x.double() for x in some))] for some in (given, turned))
    vendor, other = computed(layer, *given), computed(layer, *turned)
    with install.installed():
        ours = computed(layer, *given)
    return {
        product: (error(a, d), error(b, d), error(c, e))
        for product, a, b, c, d, e in zip(OF_LAYERS, ours, vendor, other, exact, exact_turned, strict=True)
    }  # fmt: skip


def of_operators(small: bool) -> list[Row]:
    rows = []
    for name in list(PUBLISHED)[:2] if small else PUBLISHED:
        row: Row = {"model": MODELS[name].title}
        for case in ("usual", "outliers"):
            found = []
            for layer in layers(name):
                draws = [one_draw(layer, case == "outliers") for _ in range(draws_of(layer))]
                for product in OF_LAYERS:
                    found.append({"product": product, **summary([draw[product] for draw in draws]), **asdict(layer)})
            row[case] = {
                "worst": max(one["worst"] for one in found), "other_worst": max(one["other_worst"] for one in found),
                **{product: max((one for one in found if one["product"] == product), key=lambda one: one["ours"])
                   for product in OF_LAYERS},
            }  # fmt: skip
        shown = {
            case: [f"{row[case][product]['ours']:.2f}" for product in OF_LAYERS]
            + [f"worst {row[case]['worst']:.2f}, of the vendor reversed {row[case]['other_worst']:.2f}"]
            for case in ("usual", "outliers")
        }
        print(row["model"], shown, flush=True)
        rows.append(row)
    return rows


PUBLISHED = [name for name in MODELS if name not in ("gpt", "mlp", "lstm")]
DRAWS = 12
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
        "version": install.DEFINITION, "draws": DRAWS,
    }  # fmt: skip
    for part in options.only.split(","):
        torch.manual_seed(0)
        result[part] = {"numbers": numbers, "layers": of_layers, "operators": of_operators}[part](options.small)
        if not options.small:
            path.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
