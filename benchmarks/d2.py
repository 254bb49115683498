"""What level D2 costs on a CPU, and how accurate it is: products beside MKL and oneDNN, operators, whole steps.

    python benchmarks/d2.py [--rounds 7] [--only products,operators,steps]

One thread. Stock and D2 take turns in one process, so both meet the same machine; a ratio is the median over the rounds
of D2's time against stock's, in processor time, because others may use the machine too. Stock is as in a D1 job:
deterministic algorithms, and new memory is not filled. Errors are against fp64, relative to the largest element of the
result: the root of the mean square, of the gradients the largest of those. Loss curves: benchmarks/d2_curves.py. Errors
by layers of the models and by kinds of numbers: benchmarks/d2_accuracy.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from easyscale.numerics.kernels import install

RESULTS = Path(__file__).parent / "results"
SHAPES = (
    (32, 32, 32), (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (64, 512, 2048),
    (512, 768, 3072), (512, 3072, 768), (3136, 576, 64), (784, 1152, 128), (64, 3136, 576), (16, 1024, 1000),
    (2048, 2048, 2048),
)  # fmt: skip
Row = dict[str, Any]
Job = Callable[[], Any]


def seconds(job: Job, least: float = 0.05) -> float:
    """Processor time of one call, over as many as take `least` seconds."""
    job()
    calls, began = 0, thread_time()
    while thread_time() - began < least:
        job()
        calls += 1
    return (thread_time() - began) / calls


def compared(job: Job, rounds: int, other: Job | None = None) -> Row:
    """Stock and D2 in turn, and another job of stock's between them."""
    stock, ours, third = [], [], []
    for _ in range(rounds):
        stock.append(seconds(job))
        with install.installed():
            ours.append(seconds(job))
        if other:
            third.append(seconds(other))
    ratios = sorted(b / a for a, b in zip(stock, ours, strict=True))
    row = {"stock_us": median(stock) * 1e6, "d2_us": median(ours) * 1e6, "ratio": median(ratios)}
    if other:
        row["other_ratio"] = median(b / a for a, b in zip(third, ours, strict=True))
    return {**row, "least": ratios[0], "most": ratios[-1]}


# ---------------------------------------------------------------------------------------------- errors


def results(job: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """The result, and the gradients of all inputs that have one, for an uneven gradient of the result."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    out = job(*leaves)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        grad = torch.randint(-8, 9, out.shape, generator=generator).to(out.dtype) / 4  # the same numbers in any dtype
    found = torch.autograd.grad(out, [x for x in leaves if x.requires_grad], grad, allow_unused=True)
    return out.detach(), [x for x in found if x is not None]


def off(found: Tensor, exact: Tensor) -> float:
    largest = exact.abs().max().item() or 1.0
    return ((found.double() - exact) / largest).square().mean().sqrt().item()


def errors(job: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Row:
    """Root-mean-square errors of stock and D2 against fp64, of the result and of the gradients."""
    exact, slopes = results(job, tuple(x.double() if x.is_floating_point() else x for x in inputs))
    row: Row = {}
    for name in ("stock", "d2"):
        if name == "d2":
            with install.installed():
                out, grads = results(job, inputs)
        else:
            out, grads = results(job, inputs)
        row[f"{name}_error"] = off(out, exact)
        row[f"{name}_slope_error"] = max(off(a, b) for a, b in zip(grads, slopes, strict=True))
    return row


# ---------------------------------------------------------------------------------------------- products


def products(rounds: int) -> list[Row]:
    """`torch.mm` is MKL's; oneDNN's product of the same matrices, its second factor laid out as it likes it."""
    rows = []
    for m, k, n in SHAPES:
        a, b = torch.randn(m, k), torch.randn(k, n)
        turned = b.t().contiguous()

        def onednn(a: Tensor = a, turned: Tensor = turned) -> Tensor:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(a, turned, None, "none", [], "")
            return out

        row = compared(lambda a=a, b=b: torch.mm(a, b), rounds, onednn)
        rows.append({"shape": f"{m} x {k} x {n}", **row, **errors(torch.mm, (a, b))})
    return rows


# ---------------------------------------------------------------------------------------------- operators


def operator_jobs() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    x, image = torch.randn(512, 768), torch.randn(16, 64, 28, 28)
    weight, ones = torch.randn(64, 64, 3, 3) / 24, torch.ones(768)
    thin, point = torch.randn(64, 1, 3, 3) / 3, torch.randn(128, 64, 1, 1) / 8
    targets, words = torch.randint(768, (512,)), torch.randint(1000, (64, 32))
    table, heads = torch.randn(1000, 128), torch.randn(4, 8, 128, 64)
    return {
        "exp": (torch.exp, (x,)), "log": (torch.log, (x.abs() + 0.1,)), "tanh": (torch.tanh, (x,)),
        "sigmoid": (torch.sigmoid, (x,)), "erf": (torch.erf, (x,)), "sin": (torch.sin, (x,)), "gelu": (F.gelu, (x,)),
        "silu": (F.silu, (x,)), "rsqrt": (torch.rsqrt, (x.abs() + 0.1,)), "relu": (F.relu, (x,)),
        "sum of all": (torch.sum, (x,)), "sum of rows": (lambda t: t.sum(1), (x,)),
        "sum of columns": (lambda t: t.sum(0), (x,)), "variance of rows": (lambda t: t.var(1), (x,)),
        "softmax": (lambda t: F.softmax(t, -1), (x,)), "log softmax": (lambda t: F.log_softmax(t, -1), (x,)),
        "cross entropy": (F.cross_entropy, (x, targets)),
        "BCE with logits": (lambda t: F.binary_cross_entropy_with_logits(t, torch.ones_like(t)), (x,)),
        "layer norm": (lambda t, w: F.layer_norm(t, (768,), w, w), (x, ones)),
        "RMS norm": (lambda t, w: F.rms_norm(t, (768,), w), (x, ones)),
        "group norm": (lambda t: F.group_norm(t, 8), (image,)),
        "batch norm": (lambda t: F.batch_norm(t, None, None, training=True), (image,)),
        "max pool 2x2": (lambda t: F.max_pool2d(t, 2), (image,)),
        "average pool 7x7": (lambda t: F.avg_pool2d(t, 7), (image,)),
        "convolution 3x3": (lambda t, w: F.conv2d(t, w, padding=1), (image, weight)),
        "convolution 3x3 / 2": (lambda t, w: F.conv2d(t, w, padding=1, stride=2), (image, weight)),
        "convolution 1x1": (F.conv2d, (image, point)),
        "depthwise 3x3": (lambda t, w: F.conv2d(t, w, padding=1, groups=64), (image, thin)),
        "linear 768 to 768": (F.linear, (x, torch.randn(768, 768) / 28)),
        "embedding": (lambda t: F.embedding(words, t), (table,)),
        "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (heads,)),
    }  # fmt: skip


def operators(rounds: int) -> list[Row]:
    rows = []
    for name, (job, inputs) in operator_jobs().items():
        leaves = tuple(x.detach().requires_grad_(x.is_floating_point()) for x in inputs)

        def whole(job: Callable[..., Tensor] = job, leaves: tuple[Tensor, ...] = leaves) -> None:
            out = job(*leaves)
            torch.autograd.grad(out, [x for x in leaves if x.requires_grad], torch.ones_like(out))

        forward = compared(lambda job=job, inputs=inputs: job(*inputs), rounds)
        both = compared(whole, rounds)
        rows.append({"operator": name, **forward, "both_ratio": both["ratio"], **errors(job, inputs)})
    return rows


# ---------------------------------------------------------------------------------------------- whole steps


def convnet() -> nn.Module:
    """The shapes of a small residual network without its shortcuts."""
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 16, 1), (16, 32, 2), (32, 64, 2), (64, 64, 1)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 10))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.1, "gelu", batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 64))


def steps(rounds: int) -> list[Row]:
    """Forward, loss, backward and AdamW."""
    cases: dict[str, tuple[nn.Module, Tensor]] = {
        "CNN, 32 pictures of 32 x 32": (convnet(), torch.randn(32, 3, 32, 32)),
        "transformer, 16 x 64 words, width 128": (encoder(), torch.randn(16, 64, 128)),
    }
    rows = []
    for name, (model, x) in cases.items():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step(model: nn.Module = model, x: Tensor = x, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            scores = model(x).flatten(0, -2)
            F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long)).backward()
            optimizer.step()

        rows.append({"step": name, **compared(step, 2 * rounds)})
    return rows


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="products,operators,steps")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # as in a job
    path = RESULTS / "d2-cpu.json"
    result: Row = json.loads(path.read_text()) if path.exists() else {}
    kernels = {**install.status(), "capability": torch.backends.cpu.get_cpu_capability()}
    load = result.get("about", {}).get("load", {})  # of parts that are not measured again
    result["about"] = {
        "device": cpu_name(), "cores": os.cpu_count(), "torch": torch.__version__, **kernels, "load": load
    }  # fmt: skip
    for part in options.only.split(","):
        before = os.getloadavg()[0]
        result[part] = globals()[part](options.rounds)
        load[part] = round(max(before, os.getloadavg()[0]), 1)
        for row in result[part]:
            print({key: f"{value:.3g}" if isinstance(value, float) else value for key, value in row.items()})
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
