"""Distances, norms of weights, QR, the gamma function, margins: in plain Python to the bit, or near to C's library."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from d2_rows import assert_same, fp32, tree
from easyscale.numerics.kernels import counting, distances, gamma, margins, orthogonal
from easyscale.numerics.kernels.losses import MEAN, NONE
from easyscale.numerics.kernels.primitives import evaluate


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def power(x: float, y: float) -> float:
    given = [torch.tensor(v, dtype=torch.float64) for v in (x, y)]
    return evaluate("pow", given, dtype=torch.float64).item()


def norm(apart: list[float], p: float) -> float:
    sizes = [abs(d) for d in apart]
    if p == 2:
        return math.sqrt(tree([d * d for d in apart]))
    if p == 1:
        return tree(sizes)
    if p == math.inf:
        return max(sizes)
    return power(tree([power(s, p) for s in sizes]), 1 / p)


def slope(d: float, distance: float, p: float) -> float:
    sign = (d > 0) - (d < 0)
    if p == 1:
        return float(sign)
    if p == math.inf:
        return float(sign) if fp32(abs(d)) == distance else 0.0
    if distance == 0 or d == 0:
        return 0.0
    return d / distance if p == 2 else sign * power(abs(d), p - 1) / power(distance, p - 1)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_distances_are_the_definition_to_the_bit(p: float) -> None:
    """Also of a row to itself. For p = inf the largest difference gets the gradient, though the distance is rounded."""
    x, y, g = drawn(4, 5), drawn(3, 5, seed=1), drawn(4, 3, seed=2)
    y[0] = x[0]
    made = distances.cdist_forward(x, y, p, None)
    back = distances.cdist_backward(g, x, y, p, made)
    for i, row in enumerate(x.tolist()):
        apart = [[a - b for a, b in zip(row, other, strict=True)] for other in y.tolist()]
        assert made[i].tolist() == [fp32(norm(d, p)) for d in apart]
        for c in range(5):
            terms = [g[i, j].item() * slope(apart[j][c], made[i, j].item(), p) for j in range(3)]
            assert back[i, c].item() == fp32(tree(terms))


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_distances_of_pairs_are_those_of_all(p: float) -> None:
    x = drawn(6, 5)
    one, two = torch.triu_indices(6, 6, 1)
    made = distances.pdist_forward(x, p)
    assert_same(made, distances.cdist_forward(x, x, p, None)[one, two])
    leaf = x.double().requires_grad_()
    torch.nn.functional.pdist(leaf, p).backward(torch.ones(15, dtype=torch.float64))
    back = distances.pdist_backward(torch.ones(15), x, p, made)
    torch.testing.assert_close(back.double(), leaf.grad, rtol=1e-5, atol=1e-5)


def test_a_weight_divided_by_its_norm_is_the_definition_to_the_bit() -> None:
    v, g, grad = drawn(3, 7), drawn(3, 1, seed=1), drawn(3, 7, seed=2)
    made, norms = distances.weight_norm(v, g, 0)
    for_v, for_g = distances.weight_norm_backward(grad, v, g, norms, 0)
    for i in range(3):
        row, scale, slopes = v[i].tolist(), g[i].item(), grad[i].tolist()
        n = math.sqrt(tree([a * a for a in row]))
        s = tree([d * a for d, a in zip(slopes, row, strict=True)])
        assert made[i].tolist() == [fp32(a * (scale / n)) for a in row]
        assert norms[i].item() == fp32(n)
        assert for_g[i].item() == fp32(s / n)
        wanted = [fp32((scale / n) * (d - a * (s / (n * n)))) for d, a in zip(slopes, row, strict=True)]
        assert for_v[i].tolist() == wanted


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 4, 3), (3, 0), (1, 1)])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr_gives_the_matrix_back_and_has_the_signs_of_stock(shape: tuple[int, ...], mode: str) -> None:
    a = drawn(*shape)
    q, r = orthogonal.linalg_qr(a, mode)
    stock = torch.linalg.qr(a.double(), mode)
    torch.testing.assert_close(r.double(), stock[1], rtol=1e-5, atol=1e-6)
    if mode != "r":
        torch.testing.assert_close(q.double(), stock[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(q.double() @ r.double(), a.double(), rtol=1e-5, atol=1e-6)


def test_the_gamma_function_is_near_to_that_of_the_c_library() -> None:
    x = torch.cat([torch.linspace(-9.95, 12, 400), torch.tensor([0.5, 1.0, 2.0, 3.0, 1e-30, 100.0, 1e10])])
    made = gamma.lgamma(x).tolist()
    assert made == pytest.approx([math.lgamma(v) for v in x.tolist()], rel=2e-7, abs=2e-7)
    odd = torch.tensor([0.0, -0.0, -1.0, -3.0, math.inf, -math.inf, math.nan])
    assert_same(gamma.lgamma(odd), torch.lgamma(odd))
    torch.testing.assert_close(gamma.digamma(x.double()), torch.digamma(x.double()), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(gamma.polygamma(1, x.double()), torch.polygamma(1, x.double()), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("p", [1, 2])
def test_the_margin_loss_is_the_definition_to_the_bit(p: int) -> None:
    x, target, weight = drawn(4, 5), torch.tensor([0, 4, 2, 2]), drawn(5, seed=1).abs()
    made = margins.multi_margin_loss(x, target, p, 1.0, weight, NONE)
    for i, (row, t) in enumerate(zip(x.tolist(), target.tolist(), strict=True)):
        z = [max((1.0 - row[t]) + v, 0.0) if j != t else 0.0 for j, v in enumerate(row)]
        assert made[i].item() == fp32(tree([(h * h if p == 2 else h) * weight[t].item() for h in z]) / 5)


def test_the_margin_loss_of_several_labels_is_the_definition_to_the_bit() -> None:
    """The third row has a label twice, the fourth none, the fifth all."""
    x, slopes = drawn(5, 4), drawn(5, seed=1)
    target = torch.tensor([[2, 0, -1, 1], [3, -1, 0, 0], [1, 1, -1, -1], [-1, 2, 2, 2], [0, 1, 2, 3]])
    made, marks = margins.multilabel_margin_loss_forward(x, target, NONE)
    back = margins.multilabel_margin_loss_backward(slopes, x, target, NONE, marks)
    for i, (row, line) in enumerate(zip(x.tolist(), target.tolist(), strict=True)):
        labels = line[: line.index(-1)] if -1 in line else line
        hinges, counts = [], [0] * 4
        for position in range(4):
            for j in range(4):
                counted = position < len(labels) and j not in labels
                z = 1.0 - (row[labels[position]] - row[j]) if counted else 0.0
                hinges.append(max(z, 0.0))
                if z > 0:
                    counts[j] += 1
                    counts[labels[position]] -= 1
        assert made[i].item() == fp32(tree(hinges) / 4)
        assert back[i].tolist() == [fp32((count / 4) * slopes[i].item()) for count in counts]
        assert marks[i].tolist() == [float(j in labels) for j in range(4)]
    whole, _ = margins.multilabel_margin_loss_forward(x.double(), target, MEAN)
    rows = [margins.multilabel_margin_loss_forward(x[i].double(), target[i], MEAN)[0].item() for i in range(5)]
    assert whole.item() == tree(rows) / 5


def test_a_histogram_counts_by_fp64_places() -> None:
    x = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.99999994, 1.0, 1.5, -0.1, math.nan])
    wanted = [0.0] * 10
    for v in x.tolist():
        if 0 <= v <= 1:
            wanted[min(int((v * 10) / 1.0), 9)] += 1
    assert counting.histc(x, 10, 0, 1).tolist() == wanted
