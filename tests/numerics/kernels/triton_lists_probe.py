"""Runs the Triton kernels for lists of tensors where there is no GPU; prints {check: complaint or ""} as JSON.

    TRITON_INTERPRET=1 python triton_lists_probe.py interpreted    by Triton's interpreter against torch.optim's loops
    python triton_lists_probe.py compiled                          compiled for sm_80 and sm_90, and the PTX read

The interpreter does not fuse multiply-adds and rounds to bf16 in a way of its own. So factors of fused sums are powers
of two here, whose products are exact, and fp16 stands in for bf16; both are read in the PTX.
A program of its own, like `triton_probe`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
from triton_probe import _FLOATING, complaints_of, ptx  # noqa: E402  this file runs as a program of its own

from d2_rows import assert_same  # noqa: E402
from easyscale.numerics.kernels import portable, updates  # noqa: E402
from easyscale.numerics.kernels.gpu import lists  # noqa: E402
from easyscale.numerics.kernels.install import installed  # noqa: E402

Checks = dict[str, Callable[[], None]]
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
CAPABILITIES = (80, 90)

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.125),
    "SGD with decay": lambda p: torch.optim.SGD(p, 0.125, weight_decay=0.25),
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.125, momentum=0.9, weight_decay=0.25, dampening=0.5),
    "SGD with Nesterov's momentum": lambda p: torch.optim.SGD(p, 0.125, momentum=0.5, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "Adam with decay": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.25),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "AdamW without decay": lambda p: torch.optim.AdamW(p, 3e-3, betas=(0.4, 0.95), eps=1e-6, weight_decay=0.0),
}


# ------------------------------------------------------------------------------------------------ interpreted


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """Several chunks, one element, none, another layout, an address that is not aligned, one that has no gradient at
    first, and one of another dtype."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(23, 31), (13,), (1,), (0, 4), (5, 3, 2, 2), (3, 1, 5), (40,), (7,)]
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    drawn[4] = drawn[4].to(memory_format=torch.channels_last)
    drawn[6] = drawn[6][1:]
    drawn[7] = drawn[7].double()
    return [nn.Parameter(x) for x in drawn]


def gradients(found: list[nn.Parameter], step: int, late: int = 5) -> None:
    generator = torch.Generator().manual_seed(step + 1)
    for i, one in enumerate(found):
        drawn = torch.randn(one.shape, generator=generator) * [1e-2, 1.0, 8.0, 0.5][step]
        if drawn.numel() > 20:
            drawn.view(-1)[3] = 0.0
        if step or i != late:
            one.grad = drawn.to(one.dtype)
            if i == 4 and step != 2:  # in step 2 another layout than its parameter's
                one.grad = one.grad.to(memory_format=torch.channels_last)


def updated(make: Make, dtype: torch.dtype, late: int = 5, **way: bool) -> tuple[list[Tensor], dict[str, Any]]:
    with installed():
        found = parameters(dtype)
        optimizer = make(found)
        for group in optimizer.param_groups:
            group.update({"foreach": False, "fused": False} | way)
        for step in range(4):
            gradients(found, step, late)
            optimizer.step()
    return [one.detach() for one in found], optimizer.state_dict()


def _same_updates(name: str, dtype: torch.dtype) -> None:
    launches = []

    def noted(kernel: Any, *args: Any, **named: Any) -> None:
        launches.append(kernel)
        stock(kernel, *args, **named)

    stock = lists.launch
    wanted, state = updated(OPTIMIZERS[name], dtype)
    with patch.object(updates, "joint", lambda like: lists), patch.multiple(lists, CHUNK=256, BLOCK=128, launch=noted):
        found, ours = updated(OPTIMIZERS[name], dtype)
        assert len(launches) <= 4 * 2, "one for a step, and one for the parameter that came later"
        assert len(launches) >= 3
        fused, _ = updated(
            OPTIMIZERS[name], dtype, late=-1, fused=True
        )  # torch's fused SGD wants them all from the start
    assert_same(found, wanted)
    assert_same(fused, updated(OPTIMIZERS[name], dtype, late=-1)[0])
    assert state.keys() == ours.keys()
    for i, kept in state["state"].items():
        for key, value in kept.items():
            assert_same(ours["state"][i][key], value)


def _versions() -> None:
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    before = p._version
    with installed(), patch.object(updates, "joint", lambda like: lists):
        torch.optim.AdamW([p], foreach=False).step()
    assert p._version > before


def _norms(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    lengths = [1, 5, 0, 64, 65, 300, 1023, 2049, 40_000, 3]
    for odd in (False, True):
        drawn = [torch.randn(n + 1, generator=generator).to(dtype) for n in lengths]
        tensors = [x[1:] if odd else x[:-1].clone() for x in drawn]
        tensors[3][5], tensors[4][7] = torch.inf, torch.nan
        wanted = [portable.tree_sum(x.double() ** 2, (0,)) for x in tensors]
        exact = [portable.evaluate("sqrt", (x,), dtype=torch.float64).float().to(dtype).reshape(()) for x in wanted]
        for lanes in (4, 64):
            with patch.multiple(lists, AT_LAST=lanes, LANES=16):
                assert_same(lists.norms(tensors), exact)
    assert_same(lists.norms(tensors[:1]), exact[:1])


def _order_is_seen() -> None:
    """A negative control: the same values in another order have another sum."""
    x = torch.ones(300)
    x[7] = x[260] = 2.0**27  # beside its square a 1 is lost, beside 2 not
    x[9] = 2.0**10
    with patch.multiple(lists, AT_LAST=4, LANES=16):
        near, far = lists.norms([x, x.roll(1)]), [torch.linalg.vector_norm(y) for y in (x, x.roll(1))]
    assert_same([n.reshape(1) for n in near], [n.reshape(1) for n in far])


def _tables_are_kept() -> None:
    x = [torch.ones(9), torch.ones(5)]
    first = lists.table((x, x))[0]
    assert lists.table((x, x))[0] is first
    assert lists.table((x, [*reversed(x)]))[0] is not first
    for n in range(lists.KEPT + 1):
        lists.table(([torch.ones(n + 1)],))
    assert len(lists._kept) == lists.KEPT
    assert lists.table((x, x))[0] is not first


def interpreted() -> Checks:
    checks: Checks = {"versions": _versions, "order is seen": _order_is_seen, "tables are kept": _tables_are_kept}
    for dtype in (torch.float32, torch.float16):
        checks[f"norms of {dtype}"] = lambda dtype=dtype: _norms(dtype)
        for name in OPTIMIZERS:
            checks[f"{name} of {dtype}"] = lambda name=name, dtype=dtype: _same_updates(name, dtype)
    return checks


# ------------------------------------------------------------------------------------------------ compiled

TABLES = {"table": "*i64", "chunks": "*i64"}


def _scalars(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "i64")


def _constants(dtype: str, aligned: bool) -> dict[str, Any]:
    import triton.language as tl

    return {"DTYPE": getattr(tl, dtype), "ALIGNED": aligned, "CHUNK": lists.CHUNK, "BLOCK": lists.BLOCK}


def _adam_compiled(dtype: str, coupled: bool) -> None:
    """Additions and multiplications by themselves; one fused sum for each element where decay is added."""
    from easyscale.numerics.kernels.gpu.lists_kernels import adam

    scalars = _scalars("decay", "pull", "keep", "push", "root", "eps", "size")
    for capability in CAPABILITIES:
        constants = _constants(dtype, True) | {"DECOUPLED": not coupled, "COUPLED": coupled}
        text = ptx(adam, capability, TABLES | scalars, constants, num_warps=lists.WARPS, enable_fp_fusion=False)
        found = Counter(_FLOATING.findall(text))
        each = found["sqrt.rn.f32"]
        assert each, found
        assert found["div.rn.f32"] == found["div.rn.f64"] == each, found
        assert found["fma.rn.f32"] == (each if coupled else 0), found
        plain = {"add.rn.f32", "mul.rn.f32", "add.f32", "mul.f32", "add.rn.f64", "sub.rn.f64", "mul.rn.f64"}
        assert set(found) <= plain | {"sqrt.rn.f32", "div.rn.f32", "div.rn.f64", "fma.rn.f32"}, set(found)
        assert "ftz" not in text
        assert ".global.v4.b32" in text, "addresses are known to be aligned"
        assert dtype == "float32" or "cvt.rn.bf16" in text


def _sgd_compiled(dtype: str) -> None:
    from easyscale.numerics.kernels.gpu.lists_kernels import sgd

    scalars = _scalars("decay", "momentum", "share", "rate")
    for capability in CAPABILITIES:
        constants = _constants(dtype, False) | {"DECAY": True, "MOMENTUM": True, "NESTEROV": True}
        text = ptx(sgd, capability, TABLES | scalars, constants, num_warps=lists.WARPS, enable_fp_fusion=False)
        found = Counter(_FLOATING.findall(text))
        each = found["fma.rn.f32"] // 4
        assert each, found
        assert sum(found.values()) == 5 * each, found
        assert "ftz" not in text


def _norms_compiled(dtype: str) -> None:
    import triton.language as tl

    from easyscale.numerics.kernels.gpu.lists_kernels import finish, fold

    pointers = TABLES | {"work": "*fp64", "out": "*fp32"}
    for capability in CAPABILITIES:
        for raw in (False, True):
            constants = {"RAW": raw, "DTYPE": getattr(tl, dtype), "LANES": 512}
            text = ptx(fold, capability, pointers, constants | {"ALIGNED": True}, num_warps=4, enable_fp_fusion=False)
            assert set(_FLOATING.findall(text)) == {"add.rn.f64"} | ({"mul.rn.f64"} if raw else set())
            text = ptx(finish, capability, pointers, constants, num_warps=8, enable_fp_fusion=False)
            assert set(_FLOATING.findall(text)) == {"add.rn.f64", "sqrt.rn.f64"} | ({"mul.rn.f64"} if raw else set())


def compiled() -> Checks:
    checks: Checks = {}
    for dtype in ("float32", "bfloat16"):
        for coupled in (False, True):
            checks[f"Adam of {dtype}, {coupled}"] = lambda dtype=dtype, coupled=coupled: _adam_compiled(dtype, coupled)
        checks[f"SGD of {dtype}"] = lambda dtype=dtype: _sgd_compiled(dtype)
        checks[f"norms of {dtype}"] = lambda dtype=dtype: _norms_compiled(dtype)
    return checks


if __name__ == "__main__":
    print(json.dumps(complaints_of(interpreted() if sys.argv[1] == "interpreted" else compiled())))
