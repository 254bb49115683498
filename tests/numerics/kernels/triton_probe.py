"""Runs the Triton kernels of D2 where there is no GPU, and prints what went wrong as JSON: {check: complaint or ""}.

    TRITON_INTERPRET=1 python triton_probe.py interpreted    each kernel, by Triton's interpreter, against `portable`
    python triton_probe.py compiled                          each kernel compiled for sm_80 and sm_90, and its PTX read

The interpreter's products are not fused, so chains get whole numbers there, whose sums are exact in every order: that
shows which elements are multiplied. That multiply-adds are fused, and in one chain for each output, is read in the PTX.
A program of its own, since Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from d2_rows import assert_same, special
from easyscale.numerics.kernels import gpu, portable
from easyscale.numerics.kernels.formulas import FORMULAS
from easyscale.numerics.kernels.gpu import elementwise, launch, products

Checks = dict[str, Callable[[], None]]
CAPABILITIES = (80, 90)


# ------------------------------------------------------------------------------------------------ interpreted


def _formula(name: str) -> None:
    formula = FORMULAS[name]
    scalars = (0.3, 2.0, 1.0)[: formula.scalars]
    wide = [special(700, seed=seed).double() * (1 + 1e-9) for seed in range(formula.tensors)]
    for dtype, out in ((torch.float32, torch.float32), (torch.float64, torch.float64), (torch.bfloat16, torch.float16)):
        inputs = [x.to(dtype) for x in wide]
        if dtype is torch.bfloat16:  # the interpreter (not a GPU: see `_dtypes_compiled`) makes zeros of subnormal ones
            inputs = [torch.where(x.abs() < 2.0**-126, 0, x) for x in inputs]
        assert_same(
            elementwise.evaluate(name, inputs, scalars, dtype=out), portable.evaluate(name, inputs, scalars, dtype=out)
        )


def _layouts() -> None:
    image = special(2, 3, 4, 5).to(memory_format=torch.channels_last)
    row, number = torch.rand(5), torch.tensor(2.5, dtype=torch.float64)
    cases = [[image, image], [image[:, 1:, ::2], image[:, 1:, ::2]], [image, row], [number, image], [row[:, None], row]]
    cases += [[number, number], [torch.empty(3, 0), torch.empty(1, 0)], [image.transpose(1, 3), image.transpose(1, 3)]]
    cases += [[torch.arange(40), torch.arange(40) % 3 == 0], [torch.arange(40, dtype=torch.uint8), number]]
    for pair in cases:
        ours = elementwise.evaluate("atan2", pair, dtype=torch.float32)
        assert_same(ours, portable.evaluate("atan2", pair, dtype=torch.float32))
        if pair[0].shape == image.shape:
            assert ours.stride() == image.stride()


SUMS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((5,), (0,)), ((1000,), (0,)), ((7, 33), (1,)), ((7, 33), (0,)), ((3, 4, 5, 6), (0, 2, 3)), ((3, 4, 5, 6), (1,)),
    ((2, 3000), (1,)), ((3000, 3), (0,)), ((0, 3), (0,)), ((3, 0), (0,)), ((1, 1), (0, 1)), ((2, 1025), (1,)),
    ((40_000,), (0,)), ((2, 3, 4, 5, 6), (0, 2, 4)), ((), ()),
]  # fmt: skip


def _sums(dtype: torch.dtype) -> None:
    for shape, dims in SUMS:
        x = special(*shape).to(dtype)
        assert_same(gpu.tree_sum(x, dims), portable.tree_sum(x, dims))
    x = special(6, 8, 10)[::2, 1:, ::3].transpose(0, 2).to(dtype)
    assert_same(gpu.tree_sum(x, (0, 1)), portable.tree_sum(x, (0, 1)))
    zeros = torch.full((5, 16), -0.0, dtype=dtype)
    assert_same(gpu.tree_sum(zeros, (1,)), portable.tree_sum(zeros, (1,)))
    assert_same(gpu.tree_sum(zeros[:, :11], (1,)), portable.tree_sum(zeros[:, :11], (1,)))


def whole_numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).float()


def _chains(dtype: torch.dtype) -> None:
    for count, m, n, k in [(1, 1, 1, 1), (2, 5, 7, 3), (1, 17, 33, 40), (3, 20, 9, 65), (2, 3, 4, 0), (0, 3, 4, 5)]:
        a, b = whole_numbers(count, m, k).to(dtype), whole_numbers(count, k, n, seed=1).to(dtype)
        wanted = portable.product(a, b)
        assert_same(gpu.product(a, b), wanted)
        assert_same(gpu.product(a.mT.contiguous().mT, b.mT.contiguous().mT), wanted)


def _tiles() -> None:
    a, b = whole_numbers(2, 9, 150), whole_numbers(2, 150, 11, seed=1)
    a[0, 1, 5], b[1, 7, 2] = math.inf, math.nan
    wanted = portable.product(a, b)
    for tile in products.TILES:
        assert_same(products.product(a, b, tile=tile), wanted)
        assert_same(products.product(a, b, tile=tile, block=64), wanted)


def interpreted() -> Checks:
    checks: Checks = {f"formula {name}": lambda name=name: _formula(name) for name in FORMULAS}
    checks["layouts"] = _layouts
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        checks[f"sums of {dtype}"] = lambda dtype=dtype: _sums(dtype)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        checks[f"chains of {dtype}"] = lambda dtype=dtype: _chains(dtype)
    return checks | {"tiles": _tiles}


# ------------------------------------------------------------------------------------------------ compiled

_FLOATING = re.compile(
    r"\b((?:fma|mad|mul|add|sub|div|sqrt|rsqrt|rcp|ex2|lg2|mma|wgmma)\.[a-z0-9_.]*f(?:64|32|16)[a-z0-9.]*)"
)
_FUSED = re.compile(r"fma\.rn\.f32\s+(%\w+), (%\w+), (%\w+), (%\w+);")
_WRITTEN = {
    "mul": "mul.rn.f64", "div": "div.rn.f64", "sqrt": "sqrt.rn.f64", "smul": "mul.rn.f32",
    "sfma": "fma.rn.f32",
}  # fmt: skip
_SUMS = {False: {"add.rn.f64", "sub.rn.f64"}, True: {"add.rn.f32", "sub.rn.f32"}}


def build(
    kernel: Any, capability: int, pointers: dict[str, str], constants: dict[str, Any], aligned: tuple[str, ...] = (),
    **options: Any,
) -> Any:  # fmt: skip
    """A compiled kernel. Arguments that are neither pointers nor constants are whole numbers; those that are `aligned`
    are multiples of 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = {name: pointers.get(name, "constexpr" if name in constants else "i32") for name in kernel.arg_names}
    known = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, names, constants, known)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def ptx(kernel: Any, capability: int, pointers: dict[str, str], constants: dict[str, Any], **options: Any) -> str:
    """The PTX of a kernel."""
    return str(build(kernel, capability, pointers, constants, **options).asm["ptx"])


def formula_ptx(name: str, capability: int, dtype: str = "fp32", fuse: bool = False) -> str:
    formula = FORMULAS[name]
    pointers = {f"p{i}": f"*{dtype}" for i in range(formula.tensors)} | {"out": f"*{dtype}"}
    pointers |= {f"b{i}": "i64" for i in range(formula.scalars)}
    constants = {f"ONE{i}": False for i in range(formula.tensors)} | {"BLOCK": elementwise.BLOCK}
    return ptx(elementwise.kernel(name), capability, pointers, constants, num_warps=4, enable_fp_fusion=fuse)


def _formula_compiled(name: str) -> None:
    """Each operation is rounded by itself, and there are no more of them than the formula has."""
    each = elementwise.BLOCK // (32 * elementwise.WARPS)
    single = FORMULAS[name].single
    wanted = Counter(node.op for node in FORMULAS[name].nodes)
    for capability in CAPABILITIES:
        found = Counter(_FLOATING.findall(formula_ptx(name, capability)))
        allowed = _SUMS[single] | {text for text in _WRITTEN.values() if text.endswith("f32") is single}
        assert set(found) <= allowed, f"sm_{capability}: {set(found) - allowed}"
        for operation, text in _WRITTEN.items():
            assert found[text] <= each * wanted[operation], f"sm_{capability}: {found[text]} {text}"
        for operation in ("div", "sqrt", "sfma"):  # these cannot have been folded into anything
            assert found[_WRITTEN[operation]] or not wanted[operation]


def _dtypes_compiled() -> None:
    for capability in CAPABILITIES:
        for dtype, written in (("fp64", ""), ("bf16", "cvt.rn.bf16.f32"), ("fp16", "cvt.rn.f16.f32")):
            text = formula_ptx("lerp", capability, dtype)
            assert dtype != "bf16" or re.search(r"cvt\.f(32|64)\.bf16", text)  # exact, subnormal numbers too
            assert "fma" not in text
            assert "ftz" not in text
            assert written in text
            assert dtype == "fp64" or "cvt.rn.f32.f64" in text  # by way of fp32


def _fusion_is_seen() -> None:
    """A negative control: left to itself, the compiler does fuse."""
    assert "fma.rn.f64" in formula_ptx("addcmul", 90, fuse=True)


def chain_lengths(text: str) -> list[int]:
    """How many fused multiply-adds follow one another in each chain, in the straight pieces of a program.

    A chain goes on where the result of one is what the next one adds to; a result is used so once.
    """
    lengths: list[int] = []
    open_chains: dict[str, int] = {}  # register -> length of the chain that it ends
    for line in text.splitlines():
        match = _FUSED.search(line)
        if line.startswith("$"):  # a label: a new piece
            lengths += open_chains.values()
            open_chains = {}
        elif match:
            result, _, _, total = match.groups()
            length = open_chains.pop(total, 0) + 1
            assert result not in open_chains
            open_chains[result] = length
    return lengths + list(open_chains.values())


def _chains_compiled(tile: products.Tile) -> None:
    """For each output as many fused multiply-adds as there are steps, one feeding the next, and no product beside."""
    from easyscale.numerics.kernels.gpu.product_kernels import chain

    outputs = tile.rows * tile.columns // (32 * tile.warps)
    for capability in CAPABILITIES:
        for dtype, tail, block in (("fp32", True, 256), ("bf16", False, 0)):
            constants = {
                "ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth, "TAIL": tail, "BLOCK": block,
                "REST": bool(block),
            }  # fmt: skip
            text = ptx(
                chain, capability, {"a": f"*{dtype}", "b": f"*{dtype}", "out": "*fp32"}, constants,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
            found = Counter(_FLOATING.findall(text))
            steps = tile.depth * (2 if tail else 1)
            assert set(found) <= {"fma.rn.f32", "add.f32"}, set(found)
            assert found["fma.rn.f32"] == outputs * steps, found
            assert found["add.f32"] == (2 * outputs if block else 0), found
            assert chain_lengths(text) == [tile.depth] * (outputs * (2 if tail else 1))


def _sums_compiled() -> None:
    from easyscale.numerics.kernels.gpu.rows_kernels import fold, rows

    plain = {"SQUARE": False, "DIVIDE": False, "ROOT": False, "CHUNKS": 8, "VALID": 6, "LEVELS": 2, "FLAT": False}
    for capability in CAPABILITIES:
        tile = {"ROWS": 32, "COLUMNS": 32, "ACROSS": False, "PIECE": True, "WIDE": True}
        for kernel, shape in ((rows, {"OUTPUTS": 2, "LANES": 64}), (fold, tile), (fold, tile | {"ACROSS": True})):
            for dtype in ("fp32", "bf16", "fp64", "u8"):
                pointers = {"x": f"*{dtype}", "out": "*fp64", "size": "i64", "magic": "i64"}
                text = ptx(kernel, capability, pointers, plain | shape, num_warps=2, enable_fp_fusion=False)
                assert set(_FLOATING.findall(text)) == {"add.rn.f64"}
                finished = {"SQUARE": True, "DIVIDE": True, "ROOT": True}
                text = ptx(kernel, capability, pointers, plain | shape | finished, num_warps=2, enable_fp_fusion=False)
                found = set(_FLOATING.findall(text))
                assert found == {"add.rn.f64", "mul.rn.f64", "div.rn.f64", "sqrt.rn.f64"}


def compiled() -> Checks:
    checks: Checks = {f"formula {name}": lambda name=name: _formula_compiled(name) for name in FORMULAS}
    for tile in products.TILES:
        checks[f"chains by {tile.rows} x {tile.columns}"] = lambda tile=tile: _chains_compiled(tile)
    return checks | {
        "dtypes": _dtypes_compiled, "fusion is seen": _fusion_is_seen, "sums": _sums_compiled,
    }  # fmt: skip


def complaints_of(checks: Checks) -> dict[str, str]:
    """What went wrong in each; "" where nothing did."""
    warnings.simplefilter("ignore")  # of numpy, about NaN and infinities
    if os.environ.get("TRITON_INTERPRET") == "1":
        from quick_interpreter import install  # beside this program; it imports Triton

        install()
        launch._current = lambda: -1  # the CPU: a torch with CUDA would look for a driver
    complaints = {}
    for name, check in checks.items():
        try:
            check()
            complaints[name] = ""
        except Exception:
            complaints[name] = traceback.format_exc()[-1500:]
    return complaints


if __name__ == "__main__":
    print(json.dumps(complaints_of(interpreted() if sys.argv[1] == "interpreted" else compiled())))
