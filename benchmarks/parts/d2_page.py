"""The D2 part of docs/benchmarks.md, from the JSON of benchmarks/d2*.py and benchmarks/gpu/d2.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parts.tables import table

Row = dict[str, Any]
ERRORS = ("error", "vendor's", "backward", "vendor's")
PRODUCTS_OF = ("forward", "input", "weight")
CASES = ("usual", "outliers")

ABOUT = """At D2 every operator is a fixed sequence of IEEE operations, the same on every device
([numerics](numerics.md)). This is what it costs beside the vendors' kernels, and how accurate it is. Definitions have
versions, which their bits depend on: each part says of which its figures are."""

RATIOS = """One thread, `python benchmarks/d2.py`. Stock is as in a D1 job. Both take turns in one process; a ratio is
the median over the rounds of D2's processor time against stock's: 2 is twice as long. The load was at most {load},
of which this run is 1: others slow wide vectors and whatever waits for memory more than the rest. Errors are against
fp64, relative to the largest element, the root of the mean square; `backward` is the largest of the
gradients' errors."""

PRODUCTS = """`torch.mm` is MKL's; beside it oneDNN's product of the same matrices. Bar: at least 0.5 of MKL's speed,
that is a ratio of at most 2. MKL takes less than oneDNN does out of some processors (AMD's): where it is the slower of
the two, oneDNN's column says more. The smallest product is the cost of a call from Python. The largest is by exact
slices: they are made for the integer units of GPUs, and the form may not depend on the device."""

STEPS = "Forward, loss, backward and AdamW of the test models. Bar: at most 2.5 times D1."

ACCURACY = """`python benchmarks/d2_accuracy.py`. The rule: an error of at most twice the vendor's. First by kinds of
numbers and depth k of the sum: the vendor's error (root of the mean square over {draws} draws, relative to the result),
and that of D2's two forms as multiples of it: FMA chains of {block} terms, then exact slices in the number that a large
product of this depth has (-: none)."""

LAYERS = """The convolution and linear layers of the published models at full size, the worst of each model: our error
as a multiple of the vendor's, with usual numbers / with outliers. The first three columns are outputs of the layers'
products at the published batch, in the form that a product of that size has (`sliced`: how many shapes by slices),
beside MKL's. `operator` are the layers themselves on one sample, beside oneDNN's and MKL's. Errors are over {draws}
draws (of convolutions by slices six, of gradients of their weights one, of large layers two)."""

DRAWS = """With outliers (one value of a thousand is a thousand times larger) a single draw says little: whether the
large value comes early or late in a sum decides. The largest ratio to the vendor's error in one draw, of D2 and of the
vendor's own kernels on the same layer with its channels and places in the opposite order:"""

CURVES = """`python benchmarks/d2_curves.py`: the models at their small size, {steps} steps at D1 and at D2 from the
same weights, data and random numbers. Means of 50 losses. Where batch norm sees few samples, or the loss is nearly
zero, a difference in the last bit grows within some steps, as it does between two vendors' kernels; else the curves are
the same to the digits shown."""

REPDL = """RepDL is the other public library of operators with the same bits on CPU and GPU. It is built from its
makers' sources beside a copy of this project, and runs in the same process:
`python benchmarks/gpu/repdl.py --path FOLDER`. `speed` is its time over D2's. The bar was ten times its speed: it is
reached by two rows. RepDL's products of today have 34 TFLOP/s on this GPU; ten times as much would be more than six
times what cuBLAS reaches in fp32, and five times the peak of the fp32 units."""

GPU = """`python benchmarks/gpu/d2.py` (`tests/gpu/d2_session.sh 3`). `speed` is stock's time over D2's: above 1, D2 is
faster. `time` of a whole step is D2's over D1's. Errors are against fp64, root of the mean square, relative. The
host's processor runs Python at a third of the speed of the machine of the CPU's figures above: many steps and operators
take as long as their launches do, at D1 too.

Bars: a step at most 1.0 times D1's for BERT, ELECTRA, Swin and GPT, 1.35 times for all; memory 1.1 times: all met.
Products at least 1.5 of cuBLAS at 4096^3, 1.0 over the layers of BERT and Swin; convolutions 0.7 of cuDNN over those of
ResNet50 and VGG19: met. Products and convolutions are of earlier runs, under versions 2 and 3 of the definitions, which
are the same for them."""

OPERATORS = """Each with its backward. `speed` is of calls one after the other, as Python issues them; `device speed` of
their kernels alone, which is what a job has while its host is ahead of its device. Bar: 0.8 for norms, softmax and
elementwise functions. {groups} The kernels alone meet it one by one. As issued, the small ones take as long as Python
needs for them, at D1 too: these differ from run to run by a fifth, and single ones are below the bar."""

GPU_CURVES = """`python benchmarks/gpu/d2.py --only curves`: the models at their small size, 300 steps at D1 and at D2
from the same weights on the same data, the mean of each 50 losses. Dropout draws other numbers at D2, so the curves of
models that have it are not alike in detail; ResNet50, ShuffleNetV2 and the MLP part within some steps, as above."""

GROUPS = {
    "norms": ("layer norm", "RMS norm", "batch norm", "group norm"), "softmax": ("softmax", "log softmax over words"),
    "elementwise functions": ("GELU", "SiLU", "tanh", "exp", "sigmoid", "ReLU", "x + 0.1 y"),
    "sums": ("sum of rows", "sum of columns"), "attention": ("attention", "causal attention", "masked attention"),
}  # fmt: skip

HOST = """`python benchmarks/d2_host.py --json benchmarks/results/d2-host.json`, on the meta device: milliseconds of a
processor of this machine for a whole step whose launches do nothing, the least of some rounds, without and with
programs ([0022](design/0022-programs-of-forms.md)); and what is done in it: launches, forms, calls of torch from
forms."""

NO_GPU = """Not measured yet on a GPU: `python benchmarks/gpu/d2.py` on a machine with one writes
`benchmarks/results/d2-gpu.json`, and this section then shows it."""


def page(read: Callable[[str], Any], images: Path) -> str:
    """The section of the results that `read` finds by their names, and its picture."""
    cpu, accuracy, curves, gpu, host = (read(f"d2-{part}") for part in ("cpu", "accuracy", "curves", "gpu", "host"))
    if curves:
        draw(curves["curves"], images / "bench-d2-curves.svg")
    return section(cpu, accuracy, curves, gpu) + (host_table(host) if host else "")


def section(cpu: Row, accuracy: Row, curves: Row, gpu: Any) -> str:
    """All tables; a part whose results are not there is left out, and the GPU's is said to be missing."""
    parts = ["## D2\n", f"{ABOUT}\n"]
    if cpu:
        parts += [cpu_tables(cpu)]
    if accuracy:
        parts += [accuracy_tables(accuracy)]
    if curves:
        parts += [curve_table(curves)]
    parts += [gpu_tables(gpu)]
    return "\n".join(parts)


# ---------------------------------------------------------------------------------------------- on the CPU


def of_version(about: Row) -> str:
    return f"Version {about['version']} of the definitions."


def cpu_tables(found: Row) -> str:
    about = found["about"]
    words = RATIOS.format(load=f"{max(about['load'].values()):.1f} on {about['cores']} cores")
    title = f"### D2 on a CPU: {about['device']}, {about['capability']}, torch {about['torch']}\n"
    parts = [title, f"{words} {of_version(about)}\n"]
    if rows := found.get("products"):
        head = ["product", "against MKL", "least to most", "against oneDNN", *ERRORS]
        lines = [
            [row["shape"], f"**{row['ratio']:.2f}**", spread(row), f"{row['other_ratio']:.2f}", *both_errors(row)]
            for row in rows
        ]
        parts += [f"**Products.** {PRODUCTS}\n", table(head, lines)]
    if rows := found.get("operators"):
        head = ["operator", "forward", "least to most", "with backward", *ERRORS]
        lines = [
            [row["operator"], f"**{row['ratio']:.2f}**", spread(row), f"{row['both_ratio']:.2f}", *both_errors(row)]
            for row in rows
        ]
        parts += ["**Operators.** `forward` and `with backward` are ratios of time.\n", table(head, lines)]
    if rows := found.get("steps"):
        lines = [[row["step"], f"**{row['ratio']:.2f}**", spread(row)] for row in rows]
        parts += [f"**Whole steps.** {STEPS}\n", table(["step", "D2 against D1", "least to most"], lines)]
    return "\n".join(parts)


def spread(row: Row) -> str:
    return f"{row['least']:.2f} to {row['most']:.2f}"


def both_errors(row: Row) -> list[str]:
    return [short(row[key]) for key in ("d2_error", "stock_error", "d2_slope_error", "stock_slope_error")]


def short(error: float) -> str:
    return f"{error:.1e}" if error else "0"


# ---------------------------------------------------------------------------------------------- accuracy


def accuracy_tables(found: Row) -> str:
    about = found["about"]
    parts = ["### Accuracy of D2\n", f"{ACCURACY.format(**about)} {of_version(about)}\n"]
    if rows := found.get("numbers"):
        depths = list(dict.fromkeys(row["k"] for row in rows))
        lines = []
        for kind in dict.fromkeys(row["numbers"] for row in rows):
            mine = {row["k"]: row for row in rows if row["numbers"] == kind}
            lines.append([kind, *(forms(mine[k]) for k in depths)])
        parts += [table(["numbers", *(f"k = {k:,}" for k in depths)], lines)]
    operators = {row["model"]: row for row in found.get("operators", [])}
    if rows := found.get("layers"):
        head = ["model", "kinds of layers", "sliced", "forward", "input gradient", "weight gradient",
                "operator: forward", "input gradient", "weight gradient"]  # fmt: skip
        lines = [
            [row["model"], row["layers"], sum(row[product]["sliced"] for product in PRODUCTS_OF),
             *(" / ".join(f"{row[product][case]['ours']:.2f}" for case in CASES) for product in PRODUCTS_OF),
             *operator_cells(operators.get(row["model"]))]
            for row in rows
        ]  # fmt: skip
        parts += [f"{LAYERS.format(**about)}\n", table(head, lines), beyond(rows, operators.values())]
    if operators:
        head = ["model", "usual: D2", "vendor, reversed", "outliers: D2", "vendor, reversed"]
        lines = [
            [name, *(f"{row[case][end]:.2f}" for case in CASES for end in ("worst", "other_worst"))]
            for name, row in operators.items()
        ]  # fmt: skip
        parts += [f"{DRAWS}\n", table(head, lines)]
    return "\n".join(parts)


def forms(row: Row) -> str:
    ratios = row["forms"]
    sliced = format(ratios[f"{row['slices']} slices"]["ours"], ".2f") if row["slices"] else "-"
    return f"{short(ratios['blocks']['vendor'])}: {ratios['blocks']['ours']:.2f}, {sliced}"


def operator_cells(row: Row | None) -> list[str]:
    if row is None:
        return ["", "", ""]
    return [" / ".join(f"{row[case][product]['ours']:.2f}" for case in CASES) for product in PRODUCTS_OF]


def beyond(products: Any, operators: Any) -> str:
    """Which layers break the rule, in words."""
    every = [
        (row["model"], product, case, row[product][case]) for row in products for product in PRODUCTS_OF
        for case in CASES
    ]  # fmt: skip
    every += [
        (row["model"], product, case, row[case][product]) for row in operators for product in PRODUCTS_OF
        for case in CASES
    ]  # fmt: skip
    said = [
        f"{model} ({product}, {case}): {found['ours']:.2f} in {layer(found)}"
        for model, product, case, found in every if found["ours"] > 2
    ]  # fmt: skip
    if not said:
        return "No layer is above twice the vendor's error.\n"
    return f"Above twice the vendor's error: {'; '.join(said)}.\n"


def layer(found: Row) -> str:
    if found["linear"]:
        return f"a linear layer {found['inputs']} to {found['outputs']} over {found['positions']} rows"
    taps, size = (" x ".join(map(str, found[key])) for key in ("kernel", "size"))
    groups = f", {found['groups']} groups" if found["groups"] > 1 else ""
    return f"a convolution {taps}, {found['inputs']} to {found['outputs']} channels over {size}{groups}"


# ---------------------------------------------------------------------------------------------- loss curves


def curve_table(found: Row) -> str:
    about, rows = found["about"], found["curves"]
    lines = []
    for row in rows:
        cells: list[Any] = [row["model"]]
        for begin in (0, about["steps"] // 2 - 25, about["steps"] - 50):
            cells.append(" / ".join(f"{mean(row[level][begin : begin + 50]):.4g}" for level in ("D1", "D2")))
        apart = next((i for i, (a, b) in enumerate(zip(row["D1"], row["D2"], strict=True)) if differ(a, b)), None)
        lines.append([*cells, "never" if apart is None else apart])
    half = about["steps"] // 2
    head = ["model", "first 50: D1 / D2", f"around {half}", "last 50", "first step apart by 0.1%"]
    words = f"{CURVES.format(**about)} {of_version(about)}"
    picture = "![Loss of each model at D1 and D2](img/bench-d2-curves.svg)"
    return f"### Loss curves at D1 and D2\n\n{words}\n\n{picture}\n\n{table(head, lines)}"


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def differ(a: float, b: float) -> bool:
    return abs(a - b) > 1e-3 * abs(a)


def draw(rows: Sequence[Row], path: Path) -> None:
    """A panel a model: D1 as a line, D2 as a thinner one on top."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "easyscale", "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 4, figsize=(12, 6.5), layout="constrained")
    for axis, row in zip(axes.flat, rows, strict=False):
        smooth = {level: [mean(row[level][i : i + 5]) for i in range(0, len(row[level]), 5)] for level in ("D1", "D2")}
        steps = [5 * i + 2 for i in range(len(smooth["D1"]))]
        axis.plot(steps, smooth["D1"], color="#4477aa", linewidth=2.4, label="D1")
        axis.plot(steps, smooth["D2"], color="#ee6677", linewidth=0.9, label="D2")
        axis.set_title(row["model"], fontsize=8)
    for axis in axes.flat[len(rows) :]:
        axis.set_visible(False)
    axes.flat[0].legend()
    figure.supxlabel("step (means of 5 losses)", fontsize=8)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


# ---------------------------------------------------------------------------------------------- on a GPU


def gpu_tables(found: Any) -> str:
    """Whatever tables are there: a list of rows under a name becomes a table with the rows' own names as columns."""
    if not found:
        return f"### D2 on a GPU\n\n{NO_GPU}\n"
    about = found.get("about", {}) if isinstance(found, dict) else {}
    named = found if isinstance(found, dict) else {"results": found}
    device = ", ".join(str(about[key]) for key in ("device", "torch") if key in about)
    words = f"{of_version(about)}\n\n{GPU}" if "version" in about else GPU
    parts = [f"### D2 on a GPU{f': {device}' if device else ''}\n", f"{words}\n"]
    for name, rows in named.items():
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            keys = list(dict.fromkeys(key for row in rows for key in row))
            lines = [[cell(row.get(key, "")) for key in keys] for row in rows]
            title = name.replace("_", " ")
            heads = [key.replace("_", " ") for key in keys]
            parts += [f"**{title[:1].upper()}{title[1:]}.**{said(name, rows)}\n", table(heads, lines)]
    return "\n".join(parts)


def host_table(found: Row) -> str:
    rows = found["steps"]
    heads = [key.replace("_", " ") for key in rows[0]]
    lines = [[cell(value) for value in row.values()] for row in rows]
    return f"\n### Python's part of a D2 step\n\n{HOST}\n\n{table(heads, lines)}"


def said(name: str, rows: Sequence[Row]) -> str:
    """What is to be known of a table."""
    if name == "repdl":
        return f" {REPDL}"
    if name == "curves":
        return f" {GPU_CURVES}"
    if name != "operators" or not all("device_speed" in row for row in rows):
        return ""
    groups = []
    for group, names in GROUPS.items():
        mine = [row for row in rows if row["operator"] in names]
        issued, alone = (
            sum(row[f"stock_{key}"] for row in mine) / sum(row[f"d2_{key}"] for row in mine)
            for key in ("ms", "device_ms")
        )
        groups.append(f"{group} {issued:.2f} ({alone:.2f})")
    together = f"All times of a group together, in brackets on the device: {', '.join(groups)}."
    return f" {OPERATORS.format(groups=together)}"


def cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "**no**", None: ""}[value]
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    return str(value)
