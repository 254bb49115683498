"""Layer, RMS, group and batch norm: the definitions to the bit, the same in C as by torch operators, near to stock."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from d2_rows import assert_both_same, assert_no_worse, assert_same, fp32, native_only, row_forms, special, tree
from easyscale.numerics.kernels import norms

EPS = 1e-5
LAST = torch.channels_last


def values(x: Tensor) -> list[float]:
    return [float(v) for v in x.reshape(-1).tolist()]


def test_layer_norm_is_the_definition_to_the_bit() -> None:
    x, w, b, g = (torch.randn(13) for _ in range(4))
    y, mean, rstd = norms.layer_norm(x, [13], w, b, EPS)
    m = tree(values(x)) / 13
    r = 1 / math.sqrt(tree([(v - m) * (v - m) for v in values(x)]) / 13 + EPS)
    rows = list(zip(values(x), values(w), values(b), values(g), strict=True))
    assert (mean.item(), rstd.item()) == (fp32(m), fp32(r))
    assert values(y) == [fp32(((v - m) * r) * s + t) for v, s, t, _ in rows]

    dx, dw, db = norms.layer_norm_backward(g, x, [13], mean, rstd, w, b, [True, True, True])
    m, r = fp32(m), fp32(r)
    hat, weighed = [(v - m) * r for v in values(x)], [d * s for _, s, _, d in rows]
    one, two = tree(weighed) / 13, tree([a * h for a, h in zip(weighed, hat, strict=True)]) / 13
    assert dx is not None
    assert dw is not None
    assert db is not None
    assert values(dx) == [fp32(((a - one) - h * two) * r) for a, h in zip(weighed, hat, strict=True)]
    assert values(dw) == [fp32(d * h) for d, h in zip(values(g), hat, strict=True)]
    assert_same(db, g)


def test_batch_norm_is_the_definition_to_the_bit() -> None:
    x, g, w, b = torch.randn(3, 2, 5), torch.randn(3, 2, 5), torch.randn(2), torch.randn(2)
    running_mean, running_var = torch.zeros(2), torch.ones(2)
    y, mean, rstd = norms.batch_norm(x, w, b, running_mean, running_var, True, 0.1, EPS)
    dx, dw, db = norms.batch_norm_backward(g, x, w, None, None, mean, rstd, True, EPS, [True, True, True])
    assert dx is not None
    assert dw is not None
    assert db is not None
    for c in range(2):
        own, scale, shift = values(x[:, c]), w[c].item(), b[c].item()
        m = tree(own) / 15
        var = tree([(v - m) * (v - m) for v in own]) / 15
        r = 1 / math.sqrt(var + EPS)
        assert values(y[:, c]) == [fp32(((v - m) * r) * scale + shift) for v in own]
        assert running_mean[c].item() == fp32(0.0 * (1 - 0.1) + m * 0.1)
        assert running_var[c].item() == fp32(1.0 * (1 - 0.1) + (var * (15 / 14)) * 0.1)
        m, r = fp32(m), fp32(r)
        assert (mean[c].item(), rstd[c].item()) == (m, r)
        grads = values(g[:, c])
        one, two = tree(grads), tree([d * (v - m) for d, v in zip(grads, own, strict=True)])
        k = ((two / 15) * r) * r
        wanted = [fp32(((d - one / 15) - (v - m) * k) * (r * scale)) for d, v in zip(grads, own, strict=True)]
        assert values(dx[:, c]) == wanted
        assert (dw[c].item(), db[c].item()) == (fp32(two * r), fp32(one))


def test_group_norm_is_the_definition_to_the_bit() -> None:
    samples, channels, groups, pixels = 2, 6, 3, 5
    x, g = torch.randn(samples, channels, pixels), torch.randn(samples, channels, pixels)
    w, b = torch.randn(channels), torch.randn(channels)
    y, mean, rstd = norms.group_norm(x, w, b, samples, channels, pixels, groups, EPS)
    back = norms.group_norm_backward(g, x, mean, rstd, w, samples, channels, pixels, groups, [True, True, True])
    hats = torch.zeros(samples, channels, pixels, dtype=torch.float64)
    for s in range(samples):
        for k in range(groups):
            own = slice(2 * k, 2 * k + 2)
            row, scale = values(x[s, own]), [w[c].item() for c in (2 * k, 2 * k + 1) for _ in range(pixels)]
            shift = [b[c].item() for c in (2 * k, 2 * k + 1) for _ in range(pixels)]
            m = tree(row) / len(row)
            r = 1 / math.sqrt(tree([(v - m) * (v - m) for v in row]) / len(row) + EPS)
            wanted = [fp32(((v - m) * r) * c + t) for v, c, t in zip(row, scale, shift, strict=True)]
            assert values(y[s, own]) == wanted
            m, r = fp32(m), fp32(r)
            assert (mean[s, k].item(), rstd[s, k].item()) == (m, r)
            hat, weighed = [(v - m) * r for v in row], [d * c for d, c in zip(values(g[s, own]), scale, strict=True)]
            hats[s, own] = torch.tensor(hat, dtype=torch.float64).view(2, pixels)
            one, two = tree(weighed) / 10, tree([a * h for a, h in zip(weighed, hat, strict=True)]) / 10
            assert back[0] is not None
            wanted = [fp32(((a - one) - h * two) * r) for a, h in zip(weighed, hat, strict=True)]
            assert values(back[0][s, own]) == wanted
    assert back[1] is not None
    assert back[2] is not None
    for c in range(channels):
        pairs = zip(values(g[:, c]), values(hats[:, c]), strict=True)
        assert back[1][c].item() == fp32(tree([d * h for d, h in pairs]))
        assert back[2][c].item() == fp32(tree(values(g[:, c])))


@pytest.mark.parametrize("eps", [EPS, None])
def test_rms_norm_is_the_definition_to_the_bit(eps: float | None) -> None:
    x, w, g = torch.randn(3, 11), torch.randn(11), torch.randn(3, 11)
    y, rstd = norms.rms_norm(x, [11], w, eps)
    dx, dw = norms.rms_norm_backward(g, x, [11], rstd, w, [True, True])
    assert dx is not None
    assert dw is not None
    added = torch.finfo(torch.float32).eps if eps is None else eps
    products = []
    for i in range(3):
        row, scale, grads = values(x[i]), values(w), values(g[i])
        r = 1 / math.sqrt(tree([v * v for v in row]) / 11 + added)
        assert values(y[i]) == [fp32((v * r) * s) for v, s in zip(row, scale, strict=True)]
        r = fp32(r)
        assert rstd[i].item() == r
        hat, weighed = [v * r for v in row], [d * s for d, s in zip(grads, scale, strict=True)]
        two = tree([a * h for a, h in zip(weighed, hat, strict=True)]) / 11
        assert values(dx[i]) == [fp32((a - h * two) * r) for a, h in zip(weighed, hat, strict=True)]
        products.append([d * h for d, h in zip(grads, hat, strict=True)])
    assert values(dw) == [fp32(tree(list(column))) for column in zip(*products, strict=True)]


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.layer_norm(x, w.shape, w, b)


def batch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, w, b, training=True)


def batch_evaluated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    channels = x.shape[1]
    mean, var = torch.linspace(-1, 1, channels, dtype=x.dtype), torch.linspace(0.5, 2, channels, dtype=x.dtype)
    return functional.batch_norm(x, mean, var, w, b, training=False)


def group(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.group_norm(x, 3, w, b)


def instance(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.instance_norm(x, weight=w, bias=b)


CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "layer": (layer, (5, 7, 33), (33,)),
    "layer, two dims": (layer, (9, 3, 200), (3, 200)),
    "layer, one row": (layer, (17,), (17,)),
    "layer, wide": (layer, (3, 1500), (1500,)),
    "batch": (batch, (4, 6, 5, 5), (6,)),
    "batch, large": (batch, (7, 3, 31, 33), (3,)),
    "batch of rows": (batch, (50, 150), (150,)),
    "batch, 1d": (batch, (5, 3, 11), (3,)),
    "batch, 3d": (batch, (2, 3, 4, 5, 6), (3,)),
    "evaluated": (batch_evaluated, (4, 6, 5, 5), (6,)),
    "group": (group, (4, 6, 5, 5), (6,)),
    "group of rows": (group, (5, 12), (12,)),
    "instance": (instance, (4, 6, 5, 5), (6,)),
}


def inputs(name: str, seed: int = 0) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(seed)
    function, shape, parameters = CASES[name]
    return function, [torch.randn(shape) * 3 + 1, torch.randn(parameters), torch.randn(parameters)]


@pytest.mark.parametrize("name", list(CASES))
def test_results_and_gradients_are_as_near_as_stocks(name: str) -> None:
    function, given = inputs(name)
    assert_no_worse(function, *given, slack=1.2)


@pytest.mark.parametrize("name", ["batch", "evaluated", "group"])
def test_channels_last_stays_and_has_the_same_bits(name: str) -> None:
    function, given = inputs(name)
    last = given[0].contiguous(memory_format=LAST)
    assert_no_worse(function, last, *given[1:], slack=1.2)
    with row_forms():
        assert_same(function(last, *given[1:]), function(*given))


def forward_and_backward(function: Any, given: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in given]
    out = function(*leaves)
    g = torch.linspace(-1, 2, out.numel()).reshape(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, g)]


@native_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", list(CASES))
def test_c_and_torch_operators_have_the_same_bits(name: str, dtype: torch.dtype) -> None:
    function, given = inputs(name)
    given = [x.to(dtype) for x in given]
    with row_forms():
        assert_both_same(lambda: forward_and_backward(function, given))
        if given[0].dim() == 4:
            given[0] = given[0].contiguous(memory_format=LAST)
            assert_both_same(lambda: forward_and_backward(function, given))


@native_only
@pytest.mark.parametrize("name", ["layer", "batch", "group", "batch of rows"])
def test_special_values_have_the_same_bits_in_c(name: str) -> None:
    function, given = inputs(name)
    given[0] = special(*given[0].shape)
    with row_forms():
        assert_both_same(lambda: forward_and_backward(function, given))


def test_rms_norm_reaches_its_form_and_is_near_to_stock() -> None:
    x, w = torch.randn(6, 40), torch.randn(40)

    def rms(x: Tensor, w: Tensor) -> Tensor:
        return functional.rms_norm(x, (40,), w, 1e-6)

    assert_no_worse(rms, x, w, slack=1.2)
    with row_forms():
        r = 1 / math.sqrt(tree([v * v for v in values(x[0])]) / 40 + 1e-6)
        assert values(rms(x, w)[0]) == [fp32((v * r) * s) for v, s in zip(values(x[0]), values(w), strict=True)]
        assert_both_same(lambda: forward_and_backward(rms, [x, w]))
        assert_both_same(lambda: forward_and_backward(lambda x: functional.rms_norm(x, (40,)), [x]))


def test_norms_without_weights_leave_minus_zero_alone() -> None:
    x = torch.tensor([[-0.0, 0.0, -0.0, 0.0]])
    assert_both_same(lambda: norms.layer_norm(x, [4], None, None, EPS)[0])
    assert_both_same(lambda: norms.batch_norm(x, None, None, None, None, True, 0.1, EPS)[0])
    plain = torch.randn(3, 4, 5)
    with row_forms():
        assert_both_same(lambda: forward_and_backward(lambda x: functional.group_norm(x, 2), [plain]))


def test_running_statistics_are_as_stocks_to_rounding() -> None:
    x = torch.randn(8, 5, 3, 3)
    ours, stock = torch.nn.BatchNorm2d(5), torch.nn.BatchNorm2d(5)
    with row_forms():
        for _ in range(3):
            ours(x)
    for _ in range(3):
        stock(x)
    torch.testing.assert_close(ours.state_dict(), stock.state_dict(), rtol=1e-6, atol=1e-7)


def test_empty_inputs_are_as_stocks() -> None:
    with row_forms():
        assert functional.layer_norm(torch.empty(0, 3), (3,)).shape == (0, 3)
        x = torch.empty(0, 3, requires_grad=True)
        w = torch.ones(3, requires_grad=True)
        functional.layer_norm(x, (3,), w).sum().backward()
        assert_same(w.grad, torch.zeros(3))
        assert norms.batch_norm(torch.empty(0, 3), None, None, None, None, True, 0.1, EPS)[0].shape == (0, 3)


def test_stocks_own_norms_have_other_bits() -> None:
    for name in ("layer", "batch", "group"):
        function, given = inputs(name)
        with row_forms():
            ours = function(*given)
        assert not torch.equal(ours, function(*given))
