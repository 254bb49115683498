"""Losses: the definitions to the bit where they are short, gradients and options near to stock's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from d2_rows import assert_both_same, assert_no_worse, assert_same, fp32, native_only, row_forms, tree
from easyscale.numerics.kernels import losses
from easyscale.numerics.kernels.primitives import evaluate

REDUCTIONS = ["none", "mean", "sum"]


def test_mse_is_the_definition_to_the_bit() -> None:
    x, t = torch.randn(13), torch.randn(13)
    squares = [(a - b) * (a - b) for a, b in zip(x.tolist(), t.tolist(), strict=True)]
    assert losses.mse_loss(x, t).item() == fp32(tree(squares) / 13)
    assert losses.mse_loss(x, t, losses.SUM).item() == fp32(tree(squares))
    g = torch.tensor(0.3)
    wanted = [fp32(((a - b) * g.item()) * (2 / 13)) for a, b in zip(x.tolist(), t.tolist(), strict=True)]
    assert losses.mse_loss_backward(g, x, t, losses.MEAN).tolist() == wanted


def test_nll_is_the_definition_to_the_bit() -> None:
    x, w = torch.randn(5, 4), torch.rand(4)
    target = torch.tensor([0, 3, -100, 1, 3])
    own = [-(x[i, t].item() * w[t].item()) if t >= 0 else 0.0 for i, t in enumerate(target.tolist())]
    weights = [w[t].item() if t >= 0 else 0.0 for t in target.tolist()]
    out, total = losses.nll_loss_forward(x, target, w, losses.MEAN, -100)
    assert (out.item(), total.item()) == (fp32(tree(own) / tree(weights)), fp32(tree(weights)))
    g = torch.tensor(0.7)
    grad = losses.nll_loss_backward(g, x, target, w, losses.MEAN, -100, total)
    for i, t in enumerate(target.tolist()):
        wanted = [0.0] * 4
        if t >= 0:
            wanted[t] = fp32(-((g.item() / tree(weights)) * w[t].item()))
        assert grad[i].tolist() == wanted


ODD = [0.0, -0.0, 0.3, -0.3, 0.30000001, 1e-45, 3e38, -3e38, math.inf, -math.inf, math.nan, 1.0, -2.5]


@pytest.mark.parametrize("edge", [0.3, 1.0])
def test_smooth_l1_and_huber_are_the_definitions_to_the_bit(edge: float) -> None:
    x = torch.tensor(ODD)
    t, g = torch.tensor([0.0, 0.1, -0.2])[torch.arange(len(ODD)) % 3], torch.tensor(0.7)
    smooth, huber = losses.smooth_l1_loss(x, t, losses.NONE, edge), losses.huber_loss(x, t, losses.NONE, edge)
    for_smooth = losses.smooth_l1_loss_backward(g, x, t, losses.MEAN, edge)
    for_huber = losses.huber_loss_backward(g, x, t, losses.MEAN, edge)
    share, slope = 1 / len(ODD), g.item()
    found = zip(x.tolist(), t.tolist(), smooth, huber, for_smooth, for_huber, strict=True)
    for a, b, s, h, ds, dh in found:
        d = a - b
        z = abs(d)
        pairs = [
            (s, ((z * 0.5) * z) / edge if z < edge else z - 0.5 * edge),
            (h, (z * 0.5) * z if z < edge else (z - 0.5 * edge) * edge),
            (ds, ((d * share) * slope) / edge if z < edge or d != d else math.copysign(slope * share, d)),
            (dh, (d * share) * slope if z <= edge or d != d else math.copysign((slope * share) * edge, d)),
        ]
        for made, wanted in pairs:
            assert_same(made, torch.tensor(fp32(wanted)))


def test_binary_cross_entropy_is_the_definition_to_the_bit() -> None:
    def formula(name: str, value: float) -> float:
        return evaluate(name, [torch.tensor(value, dtype=torch.float64)], dtype=torch.float64).item()

    x, t, w = torch.tensor([0.0, 1.0, 0.3, 1e-45, 0.99999994]), torch.tensor([0.0, 0.0, 0.7, 1.0, 1.0]), torch.rand(5)
    made, g = losses.binary_cross_entropy(x, t, w, losses.NONE), torch.rand(5)
    back = losses.binary_cross_entropy_backward(g, x, t, w, losses.NONE)
    logits = torch.tensor([0.0, -0.0, 3.7, -90.0, 200.0])
    by_logits = losses.binary_cross_entropy_with_logits(logits, t, None, None, losses.MEAN)
    for i, (a, b, c, d) in enumerate(zip(x.tolist(), t.tolist(), w.tolist(), g.tolist(), strict=True)):
        lower, upper = max(formula("log1p", -a), -100.0), max(formula("log", a), -100.0)
        assert made[i].item() == fp32(((b - 1) * lower - b * upper) * c)
        assert back[i].item() == fp32(((d * (a - b)) / max((1 - a) * a, 1e-12)) * c)
    rows = []
    for a, b in zip(logits.tolist(), t.tolist(), strict=True):
        p = formula("log1p", formula("exp", -abs(a))) + (-a if a < 0 else 0.0)
        rows.append((1 - b) * a + p)
    assert by_logits.item() == fp32(tree(rows) / 5)


PAIRS: dict[str, Any] = {
    "mse": functional.mse_loss, "l1": functional.l1_loss, "smooth_l1": functional.smooth_l1_loss,
    "smooth_l1, beta": lambda x, t, **o: functional.smooth_l1_loss(x, t, beta=0.3, **o), "huber": functional.huber_loss,
    "huber, delta": lambda x, t, **o: functional.huber_loss(x, t, delta=0.4, **o),
    "logits": functional.binary_cross_entropy_with_logits,
    "logits, weights": lambda x, t, **o: functional.binary_cross_entropy_with_logits(
        x, t, weight=torch.linspace(0.5, 2, 5, dtype=x.dtype), pos_weight=torch.linspace(3, 1, 5, dtype=x.dtype), **o),
    "bce": lambda x, t, **o: functional.binary_cross_entropy(torch.sigmoid(x), t, **o),
    "bce, weight": lambda x, t, **o: functional.binary_cross_entropy(
        torch.sigmoid(x), t, weight=torch.linspace(0.5, 2, 5, dtype=x.dtype), **o),
    "soft margin": lambda x, t, **o: functional.soft_margin_loss(x, t.sign() + 0 * t, **o),
}  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", list(PAIRS))
def test_results_and_gradients_are_as_near_as_stocks(name: str, reduction: str) -> None:
    torch.manual_seed(0)
    target = torch.rand(30, 5)

    def loss(x: Tensor) -> Tensor:
        return PAIRS[name](x, target.to(x.dtype), reduction=reduction)  # type: ignore[no-any-return]

    # stock's backwards of some are composed of several operators, which round for themselves under both
    assert_no_worse(loss, torch.randn(30, 5) * 2, slack=2.0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(40, 7), (7,), (3, 7, 4, 5), (3, 7, 11)])
def test_cross_entropy_of_every_kind_is_as_near_as_stocks(shape: tuple[int, ...], reduction: str) -> None:
    torch.manual_seed(0)
    target = torch.randint(0, 7, shape[:1] + shape[2:] if len(shape) > 1 else ())
    options: list[dict[str, Any]] = [{}, {"ignore_index": 2}, {"label_smoothing": 0.1}]
    for option in options:
        for weighed in (False, True):

            def loss(x: Tensor) -> Tensor:
                weight = torch.linspace(0.5, 2, 7, dtype=x.dtype) if weighed else None  # noqa: B023
                return functional.cross_entropy(x, target, weight, reduction=reduction, **option)  # noqa: B023

            if shape == (7,) and (option or target.item() == 2):
                continue  # 0 / 0
            assert_no_worse(loss, torch.randn(shape), slack=2.0)


def test_probabilities_as_targets_and_divergences_reach_the_forms() -> None:
    torch.manual_seed(0)
    target = torch.randn(6, 9).softmax(1)
    assert_no_worse(lambda x: functional.cross_entropy(x, target.to(x.dtype)), torch.randn(6, 9), slack=2.0)

    def divergence(x: Tensor) -> Tensor:
        return functional.kl_div(x.log_softmax(1), target.to(x.dtype), reduction="batchmean")

    assert_no_worse(divergence, torch.randn(6, 9), slack=2.0)


@native_only
@pytest.mark.parametrize("name", list(PAIRS))
def test_both_implementations_have_the_same_bits(name: str) -> None:
    x, target = torch.randn(70, 5), torch.rand(70, 5)

    def run() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        out = PAIRS[name](leaf, target)
        out.backward()
        assert leaf.grad is not None
        return [out.detach(), leaf.grad]

    with row_forms():
        assert_both_same(run)


def test_dtypes_and_all_ignored_are_as_stocks() -> None:
    x, target = torch.randn(4, 3).bfloat16(), torch.tensor([1, 1, 1, 1])
    with row_forms():
        ours = [functional.cross_entropy(x, target), functional.mse_loss(x, x + 1)]
        nothing = functional.cross_entropy(x, target, ignore_index=1)
    stock = [functional.cross_entropy(x, target), functional.mse_loss(x, x + 1)]
    assert [y.dtype for y in ours] == [y.dtype for y in stock]
    torch.testing.assert_close(ours, stock, rtol=2e-2, atol=1e-2)
    assert bool(torch.isnan(nothing))
    assert_same(torch.tensor(0.0), losses.nll_loss_forward(x.float(), target, None, losses.SUM, 1)[0])


def test_probabilities_out_of_range_and_wrong_classes_are_refused() -> None:
    with row_forms():
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            functional.binary_cross_entropy(torch.tensor([1.5]), torch.tensor([1.0]))
        with pytest.raises((IndexError, RuntimeError)):
            functional.nll_loss(torch.randn(2, 3), torch.tensor([0, 3]))
        with pytest.raises(RuntimeError, match="mismatch"):
            torch.ops.aten.nll_loss2d_forward(torch.randn(2, 3, 4, 4), torch.zeros(2, 4, 3).long(), None, 1, -100)
        with pytest.raises(RuntimeError, match="weight"):
            functional.nll_loss(torch.randn(2, 3), torch.tensor([0, 1]), torch.ones(2))
