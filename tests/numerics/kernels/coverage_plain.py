"""Cases of plain operators for `test_coverage_operators`: elementwise, reductions, moving elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

Case = Callable[[], Any]


def make(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values in -2 .. 2 without a random operator, which is another one at level D2."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    mixed = (places * 2654435761 + seed * 97531) % 40009
    return (mixed.double() / 40009 * 4 - 2).to(dtype).reshape(shape)


def back(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Outputs and gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = [y for y in pytree.tree_leaves(function(*leaves)) if y.is_floating_point()]
    total = sum((y * make(*y.shape, seed=7, dtype=y.dtype)).sum() for y in outputs)
    return outputs, torch.autograd.grad(total, leaves, allow_unused=True)


X, Y, P = make(6, 8), make(6, 8, seed=2), make(6, 8, seed=3).abs() + 0.1
LABELS, PICTURE, DEEP = torch.tensor([1, 0, 3, 7, 2, 2]), make(2, 4, 7, 9), make(2, 4, 5, 6, 7)
WHOLE = torch.tensor([[3, 1, 4], [1, 5, 2]])

ELEMENTWISE = """
abs acos acosh asin asinh atan atanh ceil clone cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac lgamma
log log10 log1p log2 logit neg positive reciprocal relu round rsqrt sgn sigmoid sign sin sinc sinh sqrt square tan
tanh trunc
""".split()  # noqa: SIM905  names read better so
BETWEEN_ZERO_AND_ONE = {"acos", "asin", "atanh", "erfinv", "logit"}
ACTIVATIONS = """
celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus
softshrink softsign tanhshrink
""".split()  # noqa: SIM905  names read better so
BINARY = """
add sub mul div fmod remainder pow atan2 hypot logaddexp logaddexp2 maximum minimum fmax fmin lerp copysign xlogy
dist
""".split()  # noqa: SIM905  names read better so


def _arguments(name: str) -> Tensor:
    if name in BETWEEN_ZERO_AND_ONE:
        return (P / 2.2).clamp(0.01, 0.95)
    return P + 1 if name == "acosh" else P


def elementwise() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for name in ELEMENTWISE:
        cases[name] = partial(back, getattr(torch, name), _arguments(name))
    for name in ACTIVATIONS:
        cases[name] = partial(back, getattr(F, name), X)
    for name in BINARY:
        function = partial(torch.lerp, weight=0.3) if name == "lerp" else getattr(torch, name)
        cases[f"{name} of two"] = partial(back, function, P, P.flip(0) + 0.03)
    cases |= {
        "with numbers": lambda: back(
            lambda x: (x + 1, 1 - x, x * 2, x / 3, 3 / x, x**2, x**3, x**0.5, 2**x, x % 0.7), P
        ),
        "number modulo": lambda: 3 % P,
        "floor_divide": lambda: (P // (P.flip(0) + 0.03), X // 0.3, torch.div(X, Y, rounding_mode="trunc")),
        "with a factor": lambda: back(lambda x, y: (x.add(y, alpha=0.3), x.sub(y, alpha=3)), X, Y),
        "addcmul": lambda: back(lambda x, y, z: (torch.addcmul(x, y, z, value=0.3), torch.addcdiv(x, y, z)), X, Y, P),
        "clamp": lambda: back(lambda x, y: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=y), x.clip(-0.5)), X, Y),
        "prelu": lambda: back(F.prelu, X, make(8)),
        "glu": lambda: back(F.glu, X),
        "threshold": lambda: back(lambda x: F.threshold(x, 0.1, 2.0), X),
        "where": lambda: back(lambda x, y: torch.where(x > 0, x, y), X, Y),
        "decimals": lambda: torch.round(X, decimals=2),
        "nan_to_num": lambda: torch.tensor([float("nan"), float("inf"), 1.0]).nan_to_num(),
        "isclose": lambda: (torch.isclose(X, Y), torch.allclose(X, X), X.isfinite(), X.isreal()),
        "whole numbers": lambda: (
            WHOLE // 2,
            WHOLE % 2,
            WHOLE**2,
            WHOLE & 1,
            WHOLE | 2,
            WHOLE << 1,
            ~WHOLE,
            WHOLE.float(),
        ),
        "polygamma": lambda: torch.polygamma(1, P),
        "cross": lambda: back(torch.linalg.cross, make(4, 3), make(4, 3, seed=2)),
        "mvlgamma": lambda: torch.mvlgamma(P + 2, 2),
        "counted up": lambda: (torch.zeros(3, dtype=torch.int64).add_(1), torch.tensor(4).add_(1), WHOLE + 1),
    }
    return cases


def reductions() -> dict[str, Case]:
    dims: dict[str, Any] = {"all": {}, "last": {"dim": -1}, "first kept": {"dim": 0, "keepdim": True}}
    cases: dict[str, Case] = {}
    for name in ("sum", "mean", "std", "var", "prod", "amax", "amin", "logsumexp", "nansum", "median", "norm"):
        for which, options in dims.items():
            if not (name == "logsumexp" and not options):
                cases[f"{name} {which}"] = partial(back, partial(getattr(torch, name), **options), X)
    for p in (0.5, 1, 2, 3, float("inf"), -float("inf"), 0):
        cases[f"norm {p}"] = lambda p=p: back(lambda x: torch.linalg.vector_norm(x, p, dim=1), P)
    return cases | {
        "max": lambda: back(lambda x: (x.max(), x.min(), x.max(1)[0], x.min(0)[0], torch.aminmax(x)), X),
        "running": lambda: back(
            lambda x: (x.cumsum(1), x.cumprod(0), x.logcumsumexp(1), x.cummax(1)[0], x.cummin(0)[0]), P
        ),
        "frobenius": lambda: back(lambda x: (torch.linalg.matrix_norm(x), torch.linalg.norm(x), x.norm(p="fro")), X),
        "var_mean": lambda: back(lambda x: (torch.var_mean(x, 1), torch.std_mean(x, 0, correction=0)), X),
        "truth": lambda: (
            (X > 0).any(),
            (X > 0).all(1),
            X.argmax(),
            X.argmin(1),
            X.count_nonzero(),
            (X > 0).sum(),
            X.nonzero(),
        ),
        "trace": lambda: back(torch.trace, X),
        "cdist": lambda: [back(lambda a, b, p=p: torch.cdist(a, b, p=p), X, Y) for p in (1.0, 2.0, 3.0, float("inf"))],
        "pdist": lambda: [back(lambda a, p=p: F.pdist(a, p), X) for p in (1.0, 2.0)],
        "similar": lambda: back(
            lambda a, b: (F.cosine_similarity(a, b), F.pairwise_distance(a, b), F.normalize(a)), X, Y
        ),
        "softmax": lambda: back(lambda x: (x.softmax(1), x.log_softmax(0), F.softmin(x, 1)), X),
        "sorted": lambda: back(
            lambda x: (x.sort(1)[0], x.sort(0, descending=True)[0], x.topk(3)[0], x.kthvalue(2)[0]), X
        ),
        "argsort": lambda: (
            X.argsort(1),
            X.argsort(0, descending=True),
            X.topk(3)[1],
            X.median(1),
            X.nanmedian(),
            X.mode(0)[0],
        ),
        "unique": lambda: (
            torch.unique(LABELS, return_inverse=True, return_counts=True),
            torch.unique_consecutive(LABELS),
        ),
        "counted": lambda: (torch.bincount(LABELS), torch.histc(X, 10, -2, 2), torch.histc(X, 7), F.one_hot(LABELS)),
        "quantile": lambda: (X.quantile(0.3), X.quantile(torch.tensor([0.1, 0.5]), dim=1)),
        "searched": lambda: (
            torch.searchsorted(torch.arange(5.0), P),
            torch.bucketize(P, torch.arange(3.0)),
            torch.isin(WHOLE, 1),
        ),
    }


def moving() -> dict[str, Case]:
    place = torch.tensor([[0, 2, 1], [5, 5, 0]])
    return {
        "views": lambda: back(
            lambda x: (x.view(48), x.reshape(4, 12), x.t(), x.permute(1, 0), x[None], x.flatten()), X
        ),
        "cut": lambda: back(
            lambda x: (*x.chunk(3), *x.split([1, 2, 5], 1), *x.unbind(0), *x.tensor_split(4), x[1:4, ::2]), X
        ),
        "joined": lambda: back(lambda x, y: (torch.cat([x, y]), torch.stack([x, y]), torch.hstack([x, y])), X, Y),
        "spread": lambda: back(lambda x: (x.expand(3, 6, 8), x.repeat(2, 3), x.repeat_interleave(2, 1), x.tile(2)), X),
        "turned": lambda: back(
            lambda x: (x.flip(0), x.roll(2, 1), x.rot90(), x.tril(), x.triu(1), x.diagonal(), x.fliplr()), X
        ),
        "indexed": lambda: back(
            lambda x: (x[LABELS[:3]], x[:, LABELS], x[x > 0], x.gather(0, place), x.take(place)), X
        ),
        "selected": lambda: back(
            lambda x: (x.index_select(0, place[0]), x.masked_select(x > 0), x[:, :3].take_along_dim(place, 0)), X
        ),
        "filled": lambda: back(
            lambda x: (x.masked_fill(x > 0, 2), x.index_fill(0, place[0], 3.0), x.clone().fill_diagonal_(1.0)), X
        ),
        "scattered": lambda: back(lambda x, y: (x.scatter(1, place, y), x.scatter_add(1, place, y)), X, Y[:2, :3]),
        "index_add": lambda: back(
            lambda x, y: (x.index_add(0, LABELS % 6, y, alpha=0.5), x.index_copy(0, place[0], y[:3])), X, Y
        ),
        "index_put": lambda: back(lambda x, y: x.index_put((place[1],), y[:3], accumulate=True), X, Y),
        "scatter_reduce": lambda: [
            back(lambda x, y, how=how: x.scatter_reduce(1, place, y, how), X, Y[:2, :3])
            for how in ("sum", "mean", "prod", "amax")
        ],
        "assigned": lambda: back(_assigned, X, Y),
        "padded": lambda: [
            back(lambda x, m=m: F.pad(x, (2, 1, 3, 2), mode=m), PICTURE)
            for m in ("constant", "reflect", "replicate", "circular")
        ],
        "padded deep": lambda: [
            back(lambda x, m=m: F.pad(x, (1,) * 6, mode=m), DEEP) for m in ("reflect", "replicate")
        ],
        "padded flat": lambda: [
            back(lambda x, m=m: F.pad(x, (2, 3), mode=m), PICTURE[0]) for m in ("reflect", "replicate", "circular")
        ],
        "windows": lambda: back(
            lambda x: (F.unfold(x, 3, padding=1), F.fold(F.unfold(x, 2), (7, 9), 2), x.unfold(2, 3, 2)), PICTURE
        ),
        "pixels": lambda: back(
            lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x[..., :6, :8], 2), F.channel_shuffle(x, 2)), PICTURE
        ),
        "made": lambda: (
            torch.eye(3),
            torch.linspace(0, 1, 7),
            torch.arange(5),
            torch.arange(0, 1, 0.1),
            torch.full((2,), 3.0),
            torch.logspace(0, 2, 5),
            torch.tril_indices(3, 3),
            torch.ones(2),
            torch.zeros_like(X),
        ),
        "meshgrid": lambda: torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij"),
        "converted": lambda: back(lambda x: (x.double(), x.bfloat16().float(), x.half().float()), X),
        "vander": lambda: (
            torch.diag(make(4)),
            torch.diag_embed(X),
            torch.block_diag(X, Y),
            torch.combinations(LABELS),
        ),
    }


def _assigned(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[0] = y[1]
    z[:, 2] += y[:, 3]
    z[z > 1] = 0.5
    return z
