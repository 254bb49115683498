"""The Triton kernels of D2, as far as they can be tried without a GPU.

The text that is written for each formula; how kernels are launched; each kernel by Triton's interpreter against
`portable`; and the PTX that it is compiled to (`triton_probe`).
"""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.numerics.kernels.triton_probe import Checks, chain_lengths, compiled, interpreted

from easyscale.numerics.kernels import gpu
from easyscale.numerics.kernels.emit_triton import triton_source
from easyscale.numerics.kernels.formulas import FORMULAS
from easyscale.numerics.kernels.gpu.elementwise import kernel_source
from easyscale.numerics.kernels.gpu.products import TILES, Tile, tile_for
from easyscale.numerics.kernels.tracing import Node, bits_of

FOLDER = Path(gpu.__file__).parent
PROBE = Path(__file__).parent / "triton_probe.py"
FUSING = {"chain", "chain_over_view", "repair"}  # kernels that are made of fused multiply-adds


# ------------------------------------------------------------------------------------------------ the text of formulas

_OPERATORS = {
    ast.Add: ("add", "iadd", "sadd"), ast.Sub: ("sub", "isub", "ssub", "sguess"), ast.Mult: ("mul", "smul"),
    ast.Div: ("div",), ast.BitAnd: ("and", "iand", "abs", "ishr", "sabs"), ast.BitOr: ("or", "ior", "ssign"),
    ast.BitXor: ("ixor", "neg", "sneg"), ast.LShift: ("ishl", "spower"), ast.RShift: ("ishr",),
    ast.Lt: ("lt", "slt"), ast.LtE: ("le",), ast.Eq: ("eq", "not"),
}  # fmt: skip
_CALLS = {"where": {"where", "swhere"}, "sqrt": {"sqrt"}, "fma": {"sfma"}}


def _read(expression: ast.expr) -> tuple[set[str], list[str]]:
    """The operations that an expression may stand for, and the values it names, from left to right."""
    names = [node.id for node in ast.walk(expression) if isinstance(node, ast.Name) and node.id != "tl"]
    for node in ast.walk(expression):  # outermost first
        if isinstance(node, ast.BinOp):
            return set(_OPERATORS[type(node.op)]), names
        if isinstance(node, ast.Compare):
            return set(_OPERATORS[type(node.ops[0])]), names
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS:
            return _CALLS[node.func.attr], names
    if names:
        return {"tensor", "scalar", "bits", "from_bits"}, names
    return {"constant"}, names


def _named(node: Node) -> list[str]:
    if node.op in ("tensor", "scalar"):
        return [f"{node.op[0]}{node.value}"]
    return [f"v{arg}" for arg in node.args]


@pytest.mark.parametrize("name", FORMULAS)
def test_the_text_has_each_operation_of_the_formula_in_its_order(name: str) -> None:
    formula = FORMULAS[name]
    (function,) = ast.parse(triton_source(formula)).body
    assert isinstance(function, ast.FunctionDef)
    assert len(function.body) == len(formula.nodes) + 1
    for number, (node, line) in enumerate(zip(formula.nodes, function.body, strict=False)):
        assert isinstance(line, ast.Assign)
        assert ast.unparse(line.targets[0]) == f"v{number}"
        operations, values = _read(line.value)
        assert node.op in operations
        assert values == _named(node)
    assert ast.unparse(function.body[-1]) == f"return v{len(formula.nodes) - 1}"


@pytest.mark.parametrize("name", FORMULAS)
def test_constants_are_written_by_their_bits(name: str) -> None:
    literals = [
        node.value for node in ast.walk(ast.parse(kernel_source(FORMULAS[name])))
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
    ]  # fmt: skip
    assert not [value for value in literals if isinstance(value, float)]
    text = triton_source(FORMULAS[name])
    for node in FORMULAS[name].nodes:
        if node.op == "constant" and node.kind == "f":
            assert f"tl.full((), {bits_of(float(node.value))}, tl.int64).to(tl.float64, bitcast=True)" in text
        if node.op == "constant" and node.kind == "s":
            bits = torch.tensor(node.value, dtype=torch.float32).view(torch.int32).item()
            assert f"tl.full((), {bits}, tl.int32).to(tl.float32, bitcast=True)" in text


@functools.cache
def _digest(seed: str) -> str:
    """Of all texts, written by a fresh process with another order of sets."""
    code = (
        "import hashlib; from easyscale.numerics.kernels.formulas import FORMULAS;"
        "from easyscale.numerics.kernels.gpu.elementwise import kernel_source;"
        "print(hashlib.sha256(''.join(map(kernel_source, FORMULAS.values())).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def test_the_text_is_the_same_in_every_process() -> None:
    assert _digest("1") == _digest("2")


# ------------------------------------------------------------------------------------------------ launches


def _launches() -> Iterator[tuple[str, str, dict[str, str]]]:
    """File, kernel and options of each launch, `kernel[grid](...)` or by `launch` or `Launch`."""
    for file in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg}
            by_triton = isinstance(node.func, ast.Subscript) and "num_warps" in options
            by_us = (
                isinstance(node.func, ast.Name) and node.func.id in ("launch", "Launch") and file.name != "launch.py"
            )
            if by_triton or by_us:
                yield file.name, ast.unparse(node.func.value if by_triton else node.args[0]), options


def test_only_chains_are_launched_with_fusing_of_multiply_adds() -> None:
    launches = list(_launches())
    slices = {"cut_rows", "cut_tiles", "find_most", "begin_both", "finish_both", "multiply", "join"}
    slices |= {"find_plane_most", "convolve", "convolve_weights"}
    assert {kernel for _, kernel, _ in launches} >= {"kernel", "kernel(name)", "finish", *slices, *FUSING}
    for file, kernel, options in launches:
        fuses = options.get("enable_fp_fusion", "True") != "False"
        assert fuses == (kernel in FUSING), f"{file}: {kernel}"


def test_nothing_is_tuned_by_trying_out() -> None:
    for file in FOLDER.glob("*.py"):
        assert "autotune" not in file.read_text()


def test_importing_the_kernels_needs_neither_triton_nor_a_gpu() -> None:
    code = (
        "import sys; sys.modules['triton'] = None;"
        "from easyscale.numerics.kernels import gpu, primitives; import torch;"
        "assert primitives.implementation(torch.device('cpu')) is not gpu"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 5000, 5000), (64, 128, 64), (1, 3, 100_000), (12, 512, 512), (1, 17, 1000)]
)
def test_a_tile_is_found_for_every_shape(shape: tuple[int, int, int]) -> None:
    batch, m, n = shape
    for busy in (1, 132):
        tile = tile_for(batch, m, n, busy)
        assert tile in TILES
        assert tile.rows < 2 * max(m, 16)
        assert tile.columns < 2 * max(n, 16)


def test_tiles_are_of_sizes_that_a_block_of_k_is_a_multiple_of() -> None:
    for tile in TILES:
        assert isinstance(tile, Tile)
        assert 64 % tile.depth == 0  # `product` promises this for blocks that are multiples of 64


# ------------------------------------------------------------------------------------------------ by Triton

_CHAIN = """\
$L__BB0_1:
    fma.rn.f32 %r3, %r1, %r2, %r0;
    fma.rn.f32 %r4, %r1, %r2, %r3;
    fma.rn.f32 %r0, %r1, %r2, %r4;
"""


def test_the_reader_of_ptx_tells_one_chain_from_two() -> None:
    assert chain_lengths(_CHAIN) == [3]
    assert chain_lengths(_CHAIN.replace("%r4, %r1, %r2, %r3", "%r4, %r1, %r2, %r9")) == [1, 2]
    assert chain_lengths(_CHAIN.replace("fma.rn.f32 %r4, %r1, %r2, %r3", "mul.rn.f32 %r4, %r1, %r2")) == [1, 1]


def _complaints(kind: str) -> dict[str, str]:
    """What the probe found, check by check, all of them in one process: starting one takes longer than most."""
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if kind == "interpreted" else {})
    done = subprocess.run(
        [sys.executable, str(PROBE), kind], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "checks"), [("interpreted", interpreted()), ("compiled", compiled())])
def test_kernels_have_the_bits_of_torch_operators_and_compile_to_what_is_written(kind: str, checks: Checks) -> None:
    found = _complaints(kind)
    assert set(found) == set(checks)
    wrong = {check: complaint for check, complaint in found.items() if complaint}
    assert not wrong, "\n\n".join(f"{check}\n{complaint}" for check, complaint in wrong.items())
