"""Writes the parts of docs/numerics.md that are made from the code: constants, formulas, check
values, lists of operators.

    python docs/numerics_tables.py

Each part stands between `<!-- made: NAME -->` and `<!-- end -->`; everything else on the page is written by hand. The
section of an operator is the one whose line "Operators: ..." names it, so an operator that no section names is an
error. tests/numerics/kernels/test_documented.py checks that the page is what this script writes.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import struct
import textwrap
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

from easyscale.numerics.kernels import (
    attention,
    autocast,
    formula_functions,
    formula_losses,
    formula_powers,
    formula_singles,
    formulas,
    install,
    products,
    recurrent,
    safe,
    sliced_convolutions,
    switches,
)
from easyscale.numerics.kernels.catalogue import FORMS
from easyscale.numerics.kernels.tracing import GUESS, bits_of, wrapped

PAGE = Path(__file__).with_name("numerics.md")
_PART = re.compile(r"(?P<begin><!-- made: (?P<name>\w+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
_NAMES = re.compile(r"`([^`]+)`")


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


# ------------------------------------------------------------------------------------------------ constants


def _remark(lines: list[str], node: ast.Assign) -> str:
    """The comment above a constant, or behind it."""
    above = lines[node.lineno - 2].strip()
    behind = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")[2]
    return above.removeprefix("# ") if above.startswith("# ") else behind if behind != "fmt: skip" else ""


def _constants(module: ModuleType) -> list[tuple[str, str, Any]]:
    """(name, remark, value) of the numbers that a module of formulas begins with."""
    source = inspect.getsource(module)
    lines, found = source.splitlines(), []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            known = [name.id for name in names if isinstance(name, ast.Name)]
            found += [(name, _remark(lines, node), getattr(module, name)) for name in known]
    return found


def constants() -> str:
    """Numbers, and polynomials with the lowest power first."""
    known = [each for part in (formula_functions, formula_singles, formulas) for each in _constants(part)]
    numbers = [(n, r, v) for n, r, v in known if isinstance(v, float) and math.isfinite(v)]
    rows = [[f"`{name}`", f"`{value.hex()}`", f"{value:.17g}", remark] for name, remark, value in numbers]
    parts = [table(["name", "value", "about", "remark"], rows)]
    for name, remark, values in known:
        if isinstance(values, tuple):
            lines = [f"{i:2} {value.hex()}" for i, value in enumerate(values)]
            parts.append("\n".join([f"`{name}`: {remark}", "", "```", *lines, "```"]))
    return "\n\n".join(parts)


# ------------------------------------------------------------------------------------------------ formulas

def _text(node: ast.FunctionDef, lines: list[str]) -> str:
    """A function as it is written, without types; what its docstring says stands above."""
    remark = " ".join((ast.get_docstring(node) or "").replace(" (docs/numerics.md)", "").split())
    for argument in node.args.args:
        argument.annotation = None
    body = node.body[1:] if remark else node.body
    kept = [f"# {line}" for line in textwrap.wrap(remark, 116)] + [f"def {node.name}({ast.unparse(node.args)}):"]
    for line in lines[(node.body[0].end_lineno if remark else body[0].lineno - 1) or 0 : node.end_lineno]:
        line = re.sub(r"\b(fn|singles|losses)\.", "", line)  # the modules of functions
        line = re.sub(r"\w+\.like\(([^()]*)\)", r"\1", line)  # a constant
        kept.append(re.sub(r"^( +\w+): [\w\[\]]+ = ", r"\1 = ", line))
    return "\n".join(kept)


def functions() -> str:
    """The text of all formulas, in the order of their definition."""
    parts = []
    for module in (formula_functions, formula_powers, formula_singles, formula_losses, formulas):
        source = inspect.getsource(module)
        nodes = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name != "formula"]
        parts.append("```python\n" + "\n\n".join(_text(node, source.splitlines()) for node in nodes) + "\n```")
    return "\n\n".join(parts)


# ------------------------------------------------------------------------------------------------ check values


def _divided(x: float, y: float) -> float:
    if y != 0:
        return x / y
    return math.nan if x == 0 or math.isnan(x) else math.copysign(math.inf, math.copysign(1, x) * math.copysign(1, y))


def single(x: float) -> float:
    """Rounded to fp32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def _fused(x: float, y: float, z: float) -> float:
    """x * y + z of fp32, rounded once. The product is exact; where the sum in fp64 is not, it is given an odd last bit
    on the side where the exact one lies, and cannot be a tie then."""
    product = x * y
    total = product + z
    if math.isfinite(total):
        lost = Fraction(product) + Fraction(z) - Fraction(total)
        if lost and not bits_of(total) & 1:
            total = math.nextafter(total, math.inf if lost > 0 else -math.inf)
    return single(total)


def _power_of_two(x: float) -> float:
    bits = int.from_bytes(struct.pack("<f", x), "little")
    return float(struct.unpack("<f", ((bits + 127) << 23 & 0xFFFFFFFF).to_bytes(4, "little"))[0])


def _guess(x: float) -> float:
    bits = int.from_bytes(struct.pack("<f", x), "little")
    return float(struct.unpack("<f", ((GUESS - bits) & 0xFFFFFFFF).to_bytes(4, "little"))[0])


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": _divided,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan, "neg": lambda x: -x, "abs": abs,
    "lt": lambda x, y: x < y, "le": lambda x, y: x <= y, "eq": lambda x, y: x == y, "and": lambda x, y: x and y,
    "or": lambda x, y: x or y, "not": lambda x: not x, "where": lambda c, x, y: x if c else y, "bits": bits_of,
    "from_bits": lambda i: struct.unpack("<d", struct.pack("<q", i))[0],
    "iadd": lambda x, y: wrapped(x + y), "isub": lambda x, y: wrapped(x - y), "iand": lambda x, y: x & y,
    "ior": lambda x, y: x | y, "ixor": lambda x, y: x ^ y, "ishl": lambda x, y: wrapped(x << y),
    "ishr": lambda x, y: (x % (1 << 64)) >> y,
    "sadd": lambda x, y: single(x + y), "ssub": lambda x, y: single(x - y), "smul": lambda x, y: single(x * y),
    "sneg": lambda x: -x, "sabs": abs, "sfma": _fused,
    "ssign": math.copysign, "spower": _power_of_two, "sguess": _guess, "slt": lambda x, y: x < y,
    "swhere": lambda c, x, y: x if c else y,
}  # fmt: skip
_TENSORS = ((0.7, 0.3, 1.9), (-2.6, 5.1, 0.4))
_SCALARS = ((0.3, 0.9, 1.5), (1.1, 20.0, 0.6))
_INSIDE = ((0.7,), (-0.999,))  # for functions of -1 .. 1
_OTHER = {
    "acosh": ((3.7,), (1.01,)), "erfinv": _INSIDE, "atanh": _INSIDE, "asin": _INSIDE, "acos": _INSIDE,
    "logit": ((0.7,), (0.2,)), "log1p": _INSIDE, "pow": ((0.7, 0.3), (-2.6, 5.0)),
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt"), ((0.7,), (260.0,))),
}  # fmt: skip


def check_values() -> list[tuple[str, tuple[float, ...], tuple[float, ...], float]]:
    """(formula, tensor elements, numbers, result), computed by Python's own floats."""
    found = []
    for formula in formulas.FORMULAS.values():
        for elements, numbers in zip(_OTHER.get(formula.name, _TENSORS), _SCALARS, strict=True):
            given, extra = elements[: formula.tensors], numbers[: formula.scalars]
            if formula.single:
                given = tuple(map(single, given))
            result = formula.evaluate(OPERATIONS, lambda value, _: value, given, extra)
            found.append((formula.name, given, extra, result))
    return found


def checks() -> str:
    rows = [
        [f"`{name}`", ", ".join(map(str, given)), ", ".join(map(str, extra)), f"`{result.hex()}`"]
        for name, given, extra, result in check_values()
        if not math.isnan(result)
    ]
    return table(["formula", "elements", "numbers", "result"], rows)


# ------------------------------------------------------------------------------------------------ settings and lists


def versions() -> str:
    return f"Version of the definitions (`install.DEFINITION`): **{install.DEFINITION}**."


def slicing() -> str:
    rows = [
        ["`BLOCK`", str(products.BLOCK)],
        ["`SPAN`", str(products.SPAN)],
        ["`SLICES`", str(products.SLICES)],
        ["`SLICES_HALF`", str(products.SLICES_HALF)],
        ["`SLICED_FROM`", str(products.SLICED_FROM)],
        ["`SLICED_SIDE`", str(products.SLICED_SIDE)],
        ["`SLICED_STEPS`", str(products.SLICED_STEPS)],
        ["`SLICED_MOST`", str(products.SLICED_MOST)],
        ["`SLICED_CHANNELS`", str(sliced_convolutions.SLICED_CHANNELS)],
        ["`SLICED_VALUES`", str(sliced_convolutions.SLICED_VALUES)],
    ]
    return table(["name", "value"], rows)


def settings() -> str:
    rows = [[f"`{s.name}`" if "." in s.name else s.name, str(s.wanted), s.why] for s in switches.SWITCHES]
    return table(["setting", "in a D2 job", "why"], rows)


def autocast_lists() -> str:
    lists: dict[str, Iterable[str]] = {
        "In the lower precision.": autocast.LOWER,
        "In fp32.": autocast.FP32,
        "As they are, with results of fp32 (`dtype`, where none was given and the first tensor is not fp64).":
            [*autocast.FP32_RESULT, *autocast.NORMS],
        "In the widest dtype of their tensors: fp32, or all in the lower precision.": autocast.WIDEST,
        "Refused.": autocast.BANNED,
    }  # fmt: skip
    return "\n\n".join(f"{title}\n\n{_listed(names)}" for title, names in lists.items())


def _listed(names: Iterable[str]) -> str:
    return "\n".join(textwrap.wrap(", ".join(f"`{name}`" for name in names), 128, break_on_hyphens=False))


_GROUPS = {
    "_VIEWS": "Views and questions: no element is computed.",
    "_COPIES": "Elements are moved.",
    "_MAKING": "New tensors of given numbers.",
    "_COMPARING": "Comparisons, and choices by them.",
    "_WHOLE_NUMBERS": "Whole numbers: no rounding.",
    "_CALLING": "Kernels that only call other operators.",
    "_ONE_ROUNDING": "One IEEE operation for each element, or the choice of an input.",
    "_BY_CPU": "**On CPUs only.** The stock CPU kernel is the definition; on CUDA a form has its bits.",
    "_BY_CUDA": "**On CUDA only.** The stock CUDA kernel is the definition; on CPUs a form has its bits.",
}


def safe_groups() -> dict[str, list[str]]:
    """The lists of `safe`, by the name they have there."""
    return {name: text.split() for name, text in vars(safe).items() if re.fullmatch(r"_[A-Z_]+", name)}


def stock() -> str:
    groups = safe_groups()
    assert set(groups) <= set(_GROUPS), f"lists of `safe` without a sentence here: {set(groups) - set(_GROUPS)}"
    parts = []
    for name, entries in groups.items():
        parts.append(f"{_GROUPS[name]}\n\n{_listed(entries)}")
    return "\n\n".join(parts)


def packet(name: str) -> str:
    """The operator of an overload, in-place variants with it: "add_.Tensor" -> "add"."""
    first = name.partition(".")[0]
    return first if first.endswith("__") else first.removesuffix("_")


def forms() -> dict[str, set[tuple[str, str]]]:
    """For each operator: (module, devices) of its forms and of those that are taken apart."""
    found: dict[str, set[tuple[str, str]]] = {}
    for form in FORMS.values():
        where = (form.function.__module__.rpartition(".")[2], " and ".join(form.devices))
        found.setdefault(packet(form.name), set()).add(where)
    for name in recurrent.COMPOSITES:
        found.setdefault(packet(name), set()).add(("recurrent", "cpu and cuda"))
    for name in attention.COMPOSITES:
        found.setdefault(packet(name), set()).add(("attention", "cuda"))
    return found


def anchor(title: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def sections(text: str) -> dict[str, str]:
    """Operator -> title of the section whose line "Operators: ..." names it."""
    found: dict[str, str] = {}
    title = ""
    for block in _PART.sub("", text).split("\n\n"):
        for line in block.splitlines():
            if line.startswith("#"):
                title = line.lstrip("# ")
        if block.startswith("Operators:"):
            for name in _NAMES.findall(block):
                assert name not in found, f"{name} is defined in two sections"
                found[name] = title
    return found


def operators(text: str) -> str:
    defined, known = sections(text), forms()
    missing = sorted(set(known) - set(defined))
    assert not missing, f"no section of {PAGE.name} defines {missing}"
    rows = []
    for name in sorted(known, key=lambda one: (one.lstrip("_"), one)):
        modules, devices = zip(*sorted(known[name]), strict=True)
        shown = "cpu and cuda" if len(set(devices)) > 1 or "and" in devices[0] else devices[0]
        link = f"[{defined[name]}](#{anchor(defined[name])})"
        rows.append([f"`{name}`", ", ".join(f"`{m}`" for m in dict.fromkeys(modules)), shown, link])
    return table(["operator", "module", "forms for", "defined in"], rows)


def made(text: str) -> str:
    """The page with all its made parts as the code says now."""
    parts: dict[str, Callable[[], str]] = {
        "versions": versions, "slicing": slicing, "constants": constants, "functions": functions, "checks": checks,
        "settings": settings, "autocast": autocast_lists, "stock": stock, "operators": lambda: operators(text),
    }  # fmt: skip
    named = [match["name"] for match in _PART.finditer(text)]
    assert sorted(named) == sorted(parts), f"parts of the page: {named}"
    return _PART.sub(lambda match: f"{match['begin']}\n{parts[match['name']]()}\n\n{match['end']}", text)


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text()))
