"""The comparison of operators on a GPU (tests/gpu/d2_mirror.py), tried out on the CPU's two implementations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.gpu.d2_mirror import EXAMPLES, mirrored

from easyscale.numerics.kernels import portable


def sample() -> None:
    x = torch.tensor([[0.5, 4.0], [2.0, 3.0]])
    x.clone().sqrt_()
    for _ in range(EXAMPLES + 1):
        torch.exp(x.bfloat16())
    x * 2.0


def test_both_implementations_have_the_same_bits() -> None:
    found = mirrored([sample], "cpu")
    assert not found.bad
    assert not found.broken
    assert {"exp", "sqrt_", "mul"} <= set(found.outcomes)


def test_what_differs_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    right = portable.evaluate

    def wrong(name: str, *args: Any, **options: Any) -> torch.Tensor:
        made = right(name, *args, **options)
        made[0, 1] = -made[0, 1]
        return made

    monkeypatch.setattr(portable, "evaluate", wrong)
    found = mirrored([sample], "cpu")
    assert set(found.bad) == {"exp", "sqrt_"}
    assert found.outcomes["exp"].different == EXAMPLES + 1
    assert len(found.outcomes["exp"].examples) == EXAMPLES
    (change,) = found.outcomes["sqrt_"].examples
    assert change == (
        "aten.sqrt_.default(float32[2, 2]): 1 of 4 elements of result 0 differ, at [0, 1] 2 (0x40000000) on the CPU, "
        "-2 (0xc0000000) there, of the inputs 4 (0x40800000)"
    ), "inputs are those before the change"
    assert found.outcomes["exp"].examples[0] in str(found)
