"""Runs the Triton kernels of attention where there is no GPU; prints {check: complaint or ""}.

    TRITON_INTERPRET=1 python triton_attention_probe.py interpreted    by Triton's interpreter against the composition
    python triton_attention_probe.py compiled                          compiled for sm_80 and sm_90, and the PTX read

A program of its own like `triton_probe`, and for the same reason. In the interpreter products are those of `portable`,
since its own are not fused; one check has all of it by Triton, of whole numbers.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_probe import build, complaints_of, whole_numbers  # noqa: E402  this file runs as a program of its own
from triton_rows_probe import FEW, PLAIN, POWER, REAL, operations, sizes  # noqa: E402

from d2_rows import assert_same, special  # noqa: E402
from easyscale.numerics.kernels import attention, gpu, primitives  # noqa: E402
from easyscale.numerics.kernels.gpu import attention as at_once  # noqa: E402
from easyscale.numerics.kernels.install import installed  # noqa: E402

Checks = dict[str, Callable[[], None]]
CAPABILITIES = (80, 90)
LENGTHS = ((1, 1), (5, 7), (3, 33), (9, 5))
SPILLED = 64
SHARED = 99 * 1024  # bytes that every GPU since sm_80 has for a program


REAL_ROWS = at_once.AT_ONCE, at_once.ROUND, at_once.WARP


# ------------------------------------------------------------------------------------------------ interpreted


@contextmanager
def few(longest: int, together: int, warp: int) -> Iterator[None]:
    """Rows are read in rounds from this length on."""
    with patch.multiple(at_once, AT_ONCE=longest, ROUND=together, WARP=warp):
        at_once.shape_of_rows.cache_clear()
        yield
    at_once.shape_of_rows.cache_clear()


def heads(length: int, seen: int, dtype: torch.dtype = torch.float32, width: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length + seen)
    return [torch.randn(2, 3, n, width, generator=generator).to(dtype) for n in (length, seen, seen)]


def same(inputs: list[Tensor], **options: Any) -> None:
    """Values, gradients and the generator: by the kernels as by the composition."""
    found = []
    with installed(), patch.object(attention, "kernels_for", lambda *_: at_once):
        for devices in ({"cpu"}, set()):
            torch.manual_seed(4)
            leaves = [x.detach().requires_grad_() for x in inputs]
            with patch.object(attention, "DEVICES", devices):
                out = F.scaled_dot_product_attention(*leaves, **options)
                g = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
                found.append((out, *torch.autograd.grad(out, leaves, g), torch.get_rng_state()))
    assert_same(found[0], found[1])


def _each(kind: Callable[[int, int], dict[str, Any]], lengths: tuple[tuple[int, int], ...] = LENGTHS) -> None:
    for length, seen in lengths:
        same(heads(length, seen), **kind(length, seen))


def truth(*shape: int) -> Tensor:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.4
    mask[..., -1, :] = False  # a query, or all of a sample, that may look at nothing
    return mask


KINDS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "plain": lambda length, seen: {},
    "causal": lambda length, seen: {"is_causal": True},
    "truth mask": lambda length, seen: {"attn_mask": truth(length, seen)},
    "mask of samples": lambda length, seen: {"attn_mask": truth(2, 1, 1, seen), "dropout_p": 0.2},
    "added mask": lambda length, seen: {"attn_mask": special(3, length, seen)},
    "transposed mask": lambda length, seen: {"attn_mask": torch.randn(seen, length).mT},
    "dropout": lambda length, seen: {"dropout_p": 0.4},
    "causal dropout": lambda length, seen: {"dropout_p": 0.1, "is_causal": True},
}


def _odd() -> None:
    for place in range(3):
        inputs = heads(5, 19)
        inputs[place] = special(*inputs[place].shape)
        same(inputs, dropout_p=0.3)
        same(inputs, is_causal=True)
    inputs = heads(4, 7)
    inputs[1][0, 0] = math.inf
    inputs[0][0, 1, 2] = math.nan
    same(inputs)
    same(inputs, attn_mask=truth(4, 7))


def _layouts() -> None:
    q, k, v = heads(5, 7)
    last = torch.randn(2, 7, 3, 6).transpose(1, 2)
    same([q.mT.contiguous().mT, last, last * 2], dropout_p=0.1)
    same([q[:1].expand_as(q), k[:, :1].expand_as(k), v[..., ::2]])
    same([x[0] for x in (q, k, v)], attn_mask=torch.randn(3, 1, 7))
    same(heads(5, 37, torch.float16), dropout_p=0.1)  # the interpreter rounds to bf16 in a way of its own


def _parts() -> None:
    """Some heads at a time, with numbers of dropout that begin in the middle of a block."""
    with patch.object(attention, "MOST", 70):
        _each(lambda length, seen: {"dropout_p": 0.4, "attn_mask": truth(2, 3, length, seen)}, ((5, 7), (3, 11)))


def _real_sizes() -> None:
    with sizes(REAL), few(*REAL_ROWS):
        _each(KINDS["causal dropout"], ((9, 300), (2, 1000), (1, 5000)))


def _all_by_triton() -> None:
    """Products too. Of whole numbers, so that scores are exact in every order, and few, so that what follows is."""
    q, k, v = (whole_numbers(2, 3, n, 4, seed=n).sign() for n in (6, 9, 9))
    out, drawn = attention.attention(v, k, q, None, 0.0, True, 1.0)
    scores, g = q @ k.mT, whole_numbers(*out.shape, seed=2)
    with patch.object(primitives, "implementation", lambda device: gpu):
        assert_same(at_once.flat(q.mT, 3.0), (q.mT * 3).flatten(0, 1))
        assert attention.kernels_for(q.device, 9) is at_once
        found = attention.attention(v, k, q, None, 0.0, True, 1.0)[0]
        gradients = attention.attention_backward(g, v, k, q, None, drawn, 0.0, True, 1.0, [True] * 3)
    assert torch.allclose(found, out, rtol=1e-5, atol=1e-6)
    allowed = torch.ones(6, 9).tril() > 0
    assert torch.allclose(found, scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v, rtol=1e-5, atol=1e-6)
    wanted = attention.attention_backward(g, v, k, q, None, drawn, 0.0, True, 1.0, [True] * 3)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(gradients, wanted, strict=True))


def _wrong_numbers_are_seen() -> None:
    """Negative controls: other numbers of dropout, a mask on another line, a softmax of one more key."""
    stock = at_once._arguments

    def shifted(place: int, by: int) -> Any:
        def arguments(*given: Any) -> Any:
            found = list(stock(*given))
            found[place] += by
            return tuple(found)

        return arguments

    for place, by, options in ((4, 1, {"dropout_p": 0.5}), (10, 1, {"dropout_p": 0.5}), (3, 1, {"is_causal": True})):
        with patch.object(at_once, "_arguments", shifted(place, by)):
            try:
                same(heads(5, 7), **options)
            except AssertionError:
                continue
        raise AssertionError(f"argument {place} may be wrong")


def interpreted() -> Checks:
    checks: Checks = {f"rows, {name}": lambda kind=kind: _each(kind) for name, kind in KINDS.items()}
    return checks | {
        "odd numbers": _odd, "layouts": _layouts, "parts": _parts, "real sizes": _real_sizes,
        "all by Triton": _all_by_triton, "wrong numbers are seen": _wrong_numbers_are_seen,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ compiled

SINGLE = {"add.rn.f32", "add.f32", "mul.rn.f32", "mul.f32"}
NUMBERS = dict.fromkeys(("key", "limit", "noise", "scale"), "i64")


def _compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], allowed: set[str]) -> None:
    warps = constants.pop("num_warps", 4)
    given = {name: value for name, value in constants.items() if name in kernel.arg_names}
    for capability in CAPABILITIES:
        made = build(kernel, capability, pointers | NUMBERS, given, num_warps=warps, enable_fp_fusion=False)
        text = str(made.asm["ptx"])
        assert operations(text) <= allowed, f"sm_{capability}: {operations(text) - allowed}"
        assert operations(text), "no arithmetic at all"
        assert "ftz" not in text
        assert made.metadata.shared <= SHARED
        assert spilled(text) <= SPILLED, f"sm_{capability}: {spilled(text)} bytes for {given}"


def spilled(text: str) -> int:
    """Bytes that a thread stores because registers do not suffice."""
    from triton import knobs

    target = re.findall(r"\.target (\w+)", text)[0]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={target}", file.name, "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(re.findall(r"(\d+) bytes spill stores", done.stderr)[0])


ALL = ((0, "fp32"), (1, "fp32"), (2, "u8"), (3, "fp32"), (3, "bf16"))


def shape_of(n: int) -> dict[str, int]:
    shape, block = at_once.shape_of_rows(n, 100_000)
    return shape | {"ROWS": block}


def _rows_compiled(n: int, masks: tuple[tuple[int, str], ...] = ALL[1:2]) -> None:
    from easyscale.numerics.kernels.gpu import attention_kernels as kernels

    for added, mask in masks:
        for drops in (False, True):
            pointers = {"s": "*fp32", "g": "*fp32", "mask": f"*{mask}"}
            kind = {"ADDED": added, "DROPS": drops}
            singles = ({"add.rn.f32", "add.f32"} if added else set()) | ({"mul.rn.f32", "mul.f32"} if drops else set())
            allowed = PLAIN | POWER | {"div.rn.f64"} | singles
            _compiled(kernels.probabilities, pointers, kind | shape_of(n), allowed)
            _compiled(kernels.slopes, pointers, kind | shape_of(n), allowed)


def _ones_compiled() -> None:
    """Triton makes constants of whole numbers that are 1: one key, one query, one head, dense masks."""
    from easyscale.numerics.kernels.gpu import attention_kernels as kernels

    names = ("rows", "n", "length", "heads", "m_outer", "m_inner", "m_row", "m_column")
    kind = dict.fromkeys(names, 1) | {"ADDED": 2, "DROPS": True} | shape_of(1)
    for kernel in (kernels.probabilities, kernels.slopes):
        _compiled(
            kernel, {"s": "*fp32", "g": "*fp32", "mask": "*u8"}, dict(kind), PLAIN | POWER | SINGLE | {"div.rn.f64"}
        )
    names = ("rows", "columns", "heads", "x_outer", "x_inner", "x_row", "x_column", "o_outer", "o_row", "o_column")
    kind = dict.fromkeys(names, 1) | {"SCALED": True, "SIDE": at_once.SIDE}
    _compiled(kernels.moved, {"x": "*fp32", "out": "*fp32"}, kind, SINGLE)


def _moves_compiled() -> None:
    from easyscale.numerics.kernels.gpu.attention_kernels import moved

    for dtype, out in (("fp32", "fp32"), ("bf16", "fp32"), ("fp32", "bf16"), ("fp32", "fp16")):
        pointers = {"x": f"*{dtype}", "out": f"*{out}"}
        _compiled(moved, pointers, {"SCALED": True, "SIDE": at_once.SIDE}, SINGLE)


def _fusion_is_seen() -> None:
    """A negative control: left to itself, the compiler does fuse."""
    from easyscale.numerics.kernels.gpu.attention_kernels import slopes

    constants = {"ADDED": 0, "DROPS": False, **shape_of(64)}
    warps = constants.pop("num_warps")
    made = build(slopes, 90, {"s": "*fp32", "g": "*fp32", "mask": "*fp32", **NUMBERS}, constants, num_warps=warps)
    assert "fma.rn.f64" in operations(str(made.asm["ptx"]))


def _spilling_is_seen() -> None:
    """A negative control: four times the values in one warp."""
    from easyscale.numerics.kernels.gpu.attention_kernels import slopes

    constants = {"ADDED": 0, "DROPS": True, "ROWS": 1, "LANES": 4 * at_once.WARP, "LEVELS": 0}
    made = build(
        slopes, 90, {"s": "*fp32", "g": "*fp32", "mask": "*fp32", **NUMBERS}, constants, num_warps=1,
        enable_fp_fusion=False,
    )  # fmt: skip
    assert spilled(str(made.asm["ptx"])) > SPILLED


def compiled() -> Checks:
    checks: Checks = {f"rows of {n}": lambda n=n: _rows_compiled(n) for n in (32, 1000, 50_257)}
    return checks | {
        "rows with each mask": lambda: _rows_compiled(384, ALL), "moves": _moves_compiled, "ones": _ones_compiled,
        "fusion is seen": _fusion_is_seen, "spilling is seen": _spilling_is_seen,
    }  # fmt: skip


def main(kind: str) -> dict[str, str]:
    torch.manual_seed(0)
    primitives.use_portable(True)
    if kind == "compiled":
        return complaints_of(compiled())
    with sizes(FEW), few(16, 8, 32):
        return complaints_of(interpreted())


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
