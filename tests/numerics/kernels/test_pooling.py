"""Pooling: the forms by windows (for CUDA), called on CPU tensors, against stock's CPU kernels and plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.numerics.kernels.isa_samples import numbers
from torch import Tensor

from easyscale.numerics.kernels import pooling
from easyscale.numerics.kernels.registry import FORMS

aten = torch.ops.aten
SHAPES = {2: (2, 3, 9, 10), 3: (2, 3, 6, 7, 8)}
SETTINGS = [
    {"kernel": 2, "stride": 2}, {"kernel": 3, "stride": 2, "padding": 1}, {"kernel": 3, "stride": 1},
    {"kernel": 3, "stride": 2, "padding": 1, "ceil": True}, {"kernel": 2, "stride": 3, "include": False, "padding": 1},
    {"kernel": 3, "stride": 2, "padding": 1, "override": 5}, {"kernel": 4, "stride": 3, "ceil": True, "include": False},
]  # fmt: skip


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1, layout: str = "plain") -> Tensor:
    x = numbers(torch.Size(shape).numel(), dtype, seed, special=False).reshape(shape)
    if layout == "plain":
        return x
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def same(a: Tensor, b: Tensor) -> bool:
    bits = torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())
    return a.dtype == b.dtype and a.stride() == b.stride() and bits


def rest_of(setting: dict[str, Any], dims: int) -> tuple[Any, ...]:
    return (
        [setting["kernel"]] * dims, [setting["stride"]] * dims, [setting.get("padding", 0)] * dims,
        setting.get("ceil", False), setting.get("include", True), setting.get("override"),
    )  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("layout", ["plain", "channels last"])
def test_averages_have_the_bits_of_stock_on_cpus(setting: dict[str, Any], dims: int, layout: str) -> None:
    for dtype in (torch.float32, torch.float64):
        x, rest = make(*SHAPES[dims], dtype=dtype, layout=layout), rest_of(setting, dims)
        wanted = getattr(aten, f"avg_pool{dims}d")(x, *rest)
        assert same(pooling.average(x, *rest, dims), wanted)
        gradient = make(*wanted.shape, dtype=dtype, seed=2, layout=layout)
        back = getattr(aten, f"avg_pool{dims}d_backward")(gradient, x, *rest)
        assert same(pooling.average_backward(gradient, x, *rest, dims), back)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_averages_of_halves_are_those_of_fp32_rounded_once(dims: int, dtype: torch.dtype) -> None:
    x, rest = make(*SHAPES[dims], dtype=dtype), rest_of(SETTINGS[1], dims)
    forward, backward = FORMS[f"avg_pool{dims}d"].function, FORMS[f"avg_pool{dims}d_backward"].function
    made = forward(x, *rest)
    assert same(made, getattr(aten, f"avg_pool{dims}d")(x.float(), *rest).to(dtype))
    assert same(pooling.average(x, *rest, dims), made)
    gradient = make(*made.shape, dtype=dtype, seed=2)
    assert same(pooling.average_backward(gradient, x, *rest, dims), backward(gradient, x, *rest))


def plain_adaptive(x: Tensor, outputs: tuple[int, int]) -> Tensor:
    """[H, W] by the definition."""
    result = torch.zeros(outputs)
    (height, width), (rows, columns) = x.shape, outputs
    for r in range(rows):
        for c in range(columns):
            total, count = torch.zeros(()), 0
            for i in range(r * height // rows, -(-(r + 1) * height // rows)):
                for j in range(c * width // columns, -(-(c + 1) * width // columns)):
                    total, count = total + x[i, j], count + 1
            result[r, c] = total / count
    return result


@pytest.mark.parametrize("outputs", [(4, 7), (3, 5), (9, 10), (1, 2), (11, 13)])
@pytest.mark.parametrize("layout", ["plain", "channels last"])
def test_adaptive_averages_follow_their_definition(outputs: tuple[int, int], layout: str) -> None:
    x = make(2, 3, 9, 10, layout=layout)
    made = FORMS["_adaptive_avg_pool2d"].function(x, list(outputs))
    assert torch.allclose(made, aten._adaptive_avg_pool2d(x, outputs), rtol=1e-5, atol=1e-3)
    for n in range(2):
        for c in range(3):
            assert torch.equal(made[n, c], plain_adaptive(x[n, c], outputs))


@pytest.mark.parametrize("dims", [2, 3])
def test_adaptive_averages_of_equal_windows_by_stock_and_by_windows_agree(dims: int) -> None:
    x, outputs = make(2, 3, *[12, 6, 8][:dims]), [4, 3, 2][:dims]
    made = FORMS[f"_adaptive_avg_pool{dims}d"].function(x, outputs)
    kernel = [size // output for size, output in zip(x.shape[2:], outputs, strict=True)]
    assert same(made, pooling.average(x, kernel, kernel, [0], False, True, None, dims))
    gradient = make(*made.shape, seed=2)
    back = FORMS[f"_adaptive_avg_pool{dims}d_backward"].function(gradient, x)
    assert same(back, pooling.average_backward(gradient, x, kernel, kernel, [0], False, True, None, dims))


@pytest.mark.parametrize("dims", [2, 3])
def test_the_derivative_of_adaptive_averages_is_near_stocks(dims: int) -> None:
    x = make(*SHAPES[dims]).div(2**10)
    outputs = [4, 5, 11][:dims]
    gradient = make(2, 3, *outputs, seed=2).div(2**10)
    made = FORMS[f"_adaptive_avg_pool{dims}d_backward"].function(gradient, x)
    assert torch.allclose(made, getattr(aten, f"_adaptive_avg_pool{dims}d_backward")(gradient, x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("layout", ["plain", "channels last"])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"), [(3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 1), (2, 1, 0, 2)]
)
def test_the_derivative_of_maxima_has_the_bits_of_stock_on_cpus(
    dims: int, layout: str, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    x = make(*SHAPES[dims], layout=layout)
    rest = ([kernel] * dims, [stride] * dims, [padding] * dims, [dilation] * dims)
    chosen, indices = getattr(aten, f"max_pool{dims}d_with_indices")(x, *rest, False)
    gradient = make(*chosen.shape, seed=2, layout=layout)
    wanted = getattr(aten, f"max_pool{dims}d_with_indices_backward")(gradient, x, *rest, False, indices)
    ranges = pooling.max_ranges(gradient, x, *rest, dims)
    assert same(pooling.maximum_backward(gradient, x, indices, ranges), wanted)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("layout", ["plain", "channels last"])
def test_the_derivative_of_adaptive_maxima_has_the_bits_of_stock_on_cpus(dims: int, layout: str) -> None:
    x = make(*SHAPES[dims], layout=layout)
    chosen, indices = getattr(aten, f"adaptive_max_pool{dims}d")(x, [4, 5, 3][:dims])
    gradient = make(*chosen.shape, seed=2, layout=layout)
    wanted = getattr(aten, f"adaptive_max_pool{dims}d_backward")(gradient, x, indices)
    made = pooling.maximum_backward(gradient, x, indices, pooling.adaptive_ranges(gradient, x, dims))
    assert torch.equal(made, wanted)


def test_another_order_of_additions_is_seen() -> None:
    """Negative control."""
    x = make(4, 8, 12, 12)
    plain = pooling.average(x, [3, 3], [1, 1], [0, 0], False, True, None, 2)
    turned = pooling.average(x.flip(2, 3), [3, 3], [1, 1], [0, 0], False, True, None, 2).flip(2, 3)
    assert not torch.equal(plain, turned)
