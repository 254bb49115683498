"""Cases of what layers are made of for `test_coverage_operators`: products, pictures, losses, random numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tests.numerics.kernels.coverage_plain import DEEP, LABELS, PICTURE, WHOLE, Case, P, X, Y, back, make
from torch import Tensor, nn


def products() -> dict[str, Case]:
    a, b, c = make(3, 4, 5), make(3, 5, 6, seed=2), make(4, 5)
    uneven = (torch.arange(48.0) ** 2 % 7.3 - 3).view(6, 8)  # of full rank, unlike X
    return {
        "matmul": lambda: back(lambda a, b: (a @ b, a[0] @ b[0], a @ b[0], a[0, 0] @ b[0], a[0, 0] @ b[0, :, 0]), a, b),
        "addmm": lambda: back(
            lambda a, b, x: (torch.addmm(x, a[0], b[0], beta=0.5), torch.baddbmm(x[None], a, b)), a, b, make(4, 6)
        ),
        "einsum": lambda: back(lambda a, b: (torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij->bj", a)), a, b),
        "outer": lambda: back(
            lambda x, y: (torch.outer(x, y), torch.dot(x, x), torch.kron(x, y), torch.mv(c, y)),
            make(5),
            make(5, seed=2),
        ),
        "bilinear": lambda: back(F.bilinear, make(4, 5), make(4, 6), make(3, 5, 6)),
        "linear": lambda: back(F.linear, make(2, 3, 5), make(4, 5), make(4)),
        "tensordot": lambda: back(
            lambda a, b: (torch.tensordot(a, b, dims=([2], [1])), torch.matrix_power(a[:, :3, :3], 3)), a, b
        ),
        "conv1d": lambda: back(lambda x, w, b: F.conv1d(x, w, b, 2, 1), PICTURE[0], make(5, 7, 3), make(5)),
        "conv2d": lambda: back(lambda x, w, b: F.conv2d(x, w, b, 2, 1, 1, 2), PICTURE, make(6, 2, 3, 3), make(6)),
        "depthwise": lambda: back(lambda x, w: F.conv2d(x, w, None, 1, 2, 2, 4), PICTURE, make(4, 1, 3, 3)),
        "conv3d": lambda: back(lambda x, w, b: F.conv3d(x, w, b, 1, 1), DEEP, make(3, 4, 3, 3, 3), make(3)),
        "transposed": lambda: back(
            lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), PICTURE, make(4, 3, 3, 3), make(3)
        ),
        "transposed1d": lambda: back(lambda x, w: F.conv_transpose1d(x, w, None, 2), PICTURE[0], make(7, 3, 3)),
        "transposed3d": lambda: back(lambda x, w: F.conv_transpose3d(x, w, None, 2), DEEP, make(4, 3, 2, 2, 2)),
        "embedding": lambda: back(lambda w: F.embedding(WHOLE, w, padding_idx=1), X),
        "embedding by frequency": lambda: back(lambda w: F.embedding(WHOLE, w, scale_grad_by_freq=True), X),
        "embedding below a norm": lambda: F.embedding(WHOLE, X.clone(), max_norm=1.0),
        "embedding bag": lambda: [
            back(lambda w, m=m: F.embedding_bag(WHOLE, w, mode=m), X) for m in ("sum", "mean", "max")
        ],
        "weighted bag": lambda: back(
            lambda w, s: F.embedding_bag(WHOLE, w, mode="sum", per_sample_weights=s), X, make(2, 3)
        ),
        "renorm": lambda: back(lambda x: torch.renorm(x, 2, 0, 1.0), X),
        "qr": lambda: torch.linalg.qr(uneven),
    }


def attention() -> dict[str, Case]:
    q, k, v = make(2, 3, 5, 8), make(2, 3, 7, 8, seed=2), make(2, 3, 7, 8, seed=3)
    mask, added, attend = (
        torch.arange(7) < torch.tensor([[3], [5], [7], [1], [2]]),
        make(5, 7),
        F.scaled_dot_product_attention,
    )
    return {
        "attention": lambda: back(attend, q, k, v),
        "attention masked": lambda: back(lambda q, k, v: attend(q, k, v, attn_mask=mask), q, k, v),
        "attention shifted": lambda: back(lambda q, k, v, m: attend(q, k, v, attn_mask=m), q, k, v, added),
        "attention causal": lambda: back(lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.2), k, k, v),
        "attention grouped": lambda: back(
            lambda q, k, v: attend(q, k, v, enable_gqa=True), q[:, :2], k[:, :1], v[:, :1]
        ),
        "masked softmax": lambda: back(lambda x: torch.ops.aten._masked_softmax(x, q > 1, 3, 2), q),
    }


def pictures() -> dict[str, Case]:
    grid = make(2, 5, 6, 2) * 0.6
    return {
        "max pool": lambda: back(
            lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool1d(x[0], 2), F.adaptive_max_pool2d(x, 3)), PICTURE
        ),
        "average pool": lambda: back(
            lambda x: (F.avg_pool2d(x, 3, 2, 1), F.avg_pool1d(x[0], 2), F.adaptive_avg_pool2d(x, (3, 4))), PICTURE
        ),
        "pool 3d": lambda: back(
            lambda x: (
                F.max_pool3d(x, 2),
                F.avg_pool3d(x, 2),
                F.adaptive_avg_pool3d(x, 2),
                F.adaptive_max_pool3d(x, 2),
            ),
            DEEP,
        ),
        "lp pool": lambda: back(lambda x: F.lp_pool2d(x, 2, 3), PICTURE.abs() + 0.1),
        "upsampled": lambda: [
            back(lambda x, m=m: F.interpolate(x, scale_factor=2, mode=m), PICTURE)
            for m in ("nearest", "bilinear", "bicubic", "area")
        ],
        "grid": lambda: [
            back(lambda x, g, m=m: F.grid_sample(x, g, m, align_corners=False), PICTURE, grid)
            for m in ("bilinear", "nearest", "bicubic")
        ],
        "grid 3d": lambda: back(
            lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=True), DEEP, make(2, 3, 4, 5, 3)
        ),
        "affine grid": lambda: back(lambda t: F.affine_grid(t, [2, 4, 5, 6], align_corners=False), make(2, 2, 3)),
        "norms": lambda: back(_norms, PICTURE, make(4), make(4, seed=2)),
        "local response": lambda: back(lambda x: F.local_response_norm(x, 3), PICTURE),
        "weight norm": lambda: [
            back(lambda v, g, d=d: torch._weight_norm(v, g, d), X, make(6, 1) if d == 0 else make(1, 8)) for d in (0, 1)
        ],
    }


def _norms(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    mean, variance = torch.zeros(4), torch.ones(4)
    return (
        F.batch_norm(x, mean, variance, weight, bias, training=True),
        F.batch_norm(x, mean, variance, weight, bias),
        F.group_norm(x, 2, weight, bias),
        F.instance_norm(x, weight=weight, bias=bias),
        F.layer_norm(x, (7, 9)),
        F.rms_norm(x, (9,)),
    )


def losses() -> dict[str, Case]:
    marks, signs = (Y > 0).float(), (Y > 0).float() * 2 - 1
    cases: dict[str, Case] = {}
    for how in ("mean", "sum", "none"):
        r: Any = {"reduction": how}
        cases |= {
            f"cross entropy {how}": lambda r=r: back(
                lambda x: F.cross_entropy(x, LABELS, weight=make(8).abs() + 0.1, **r), X
            ),
            f"smoothed {how}": lambda r=r: back(
                lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1, ignore_index=2, **r), X
            ),
            f"soft labels {how}": lambda r=r: back(lambda x: F.cross_entropy(x, P / P.sum(1, keepdim=True), **r), X),
            f"distances {how}": lambda r=r: back(
                lambda x, y: (
                    F.mse_loss(x, y, **r),
                    F.l1_loss(x, y, **r),
                    F.smooth_l1_loss(x, y, **r),
                    F.huber_loss(x, y, **r),
                ),
                X,
                Y,
            ),
            f"bce {how}": lambda r=r: back(
                lambda x: (
                    F.binary_cross_entropy(x.sigmoid(), marks, **r),
                    F.binary_cross_entropy_with_logits(x, marks, pos_weight=make(8).abs(), **r),
                ),
                X,
            ),
            f"divergence {how}": lambda r=r: back(
                lambda x: (
                    F.kl_div(x.log_softmax(1), P, **r),
                    F.poisson_nll_loss(x, P, full=True, **r),
                    F.gaussian_nll_loss(x, Y, P, full=True, **r),
                ),
                X,
            ),
            f"margins {how}": lambda r=r: back(
                lambda x: (
                    F.multi_margin_loss(x, LABELS, **r),
                    F.multi_margin_loss(x, LABELS, p=2, **r),
                    F.multilabel_soft_margin_loss(x, marks, **r),
                    F.soft_margin_loss(x, signs, **r),
                    F.hinge_embedding_loss(x, signs, **r),
                ),
                X,
            ),
            f"multilabel {how}": lambda r=r: back(
                lambda x: F.multilabel_margin_loss(x, torch.tensor([[3, 0, -1, 1, 1, 1, 1, 1]] * 6), **r), X
            ),
            f"pairs {how}": lambda r=r: back(
                lambda x, y: (
                    F.margin_ranking_loss(x, y, signs, 0.3, **r),
                    F.triplet_margin_loss(x, y, P, **r),
                    F.cosine_embedding_loss(x, y, signs[:, 0], 0.1, **r),
                ),
                X,
                Y,
            ),
            f"ctc {how}": lambda r=r: _ctc(**r),
        }
    cases["nll of pictures"] = lambda: back(
        lambda x: F.cross_entropy(x, torch.arange(126).reshape(2, 7, 9) % 4), PICTURE
    )
    return cases


def _ctc(**options: Any) -> Any:
    targets, lengths = torch.tensor([[1, 2, 2], [3, 1, 0], [4, 0, 0], [0, 0, 0]]), torch.tensor([3, 2, 1, 0])
    inputs = torch.tensor([9, 7, 2, 4])
    flat = torch.tensor([1, 2, 2, 3, 1, 4])
    return [
        back(
            lambda x, t=t, n=n, k=k: F.ctc_loss(x.log_softmax(2), t, n, k, zero_infinity=True, **options), make(9, 4, 6)
        )
        for t, n, k in (
            (targets, inputs, lengths),
            (flat, inputs, lengths),
            (targets, tuple(inputs.tolist()), tuple(lengths.tolist())),
        )
    ]


RANDOM: dict[str, Case] = {
    "numbers": lambda: (
        torch.rand(3),
        torch.randn(3),
        torch.rand_like(X),
        torch.randn_like(X),
        torch.randint(9, (3,)),
        torch.randperm(5),
    ),
    "in place": lambda: [
        getattr(torch.empty(5), f)()
        for f in ("normal_", "uniform_", "exponential_", "cauchy_", "log_normal_", "random_")
    ],
    "drawn": lambda: (
        torch.multinomial(P, 3),
        torch.bernoulli(P.clamp(max=1)),
        torch.normal(X, P),
        torch.randint_like(WHOLE, 5),
    ),
    "dropped": lambda: back(lambda x: (F.dropout(x), F.alpha_dropout(x), F.feature_alpha_dropout(x)), X),
    "dropped maps": lambda: back(lambda x: (F.dropout1d(x[0]), F.dropout2d(x)), PICTURE),
    "attention with dropout": lambda: back(
        lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.3), make(2, 3, 5, 8)
    ),
    "rrelu": lambda: back(lambda x: F.rrelu(x, training=True), X),
    "gumbel": lambda: back(lambda x: F.gumbel_softmax(x, hard=True), X),
    "distributions": lambda: (
        torch.distributions.Normal(X, P).rsample(),
        torch.distributions.Categorical(logits=X).sample(),
        torch.distributions.Normal(X, P).log_prob(Y),
        torch.distributions.Bernoulli(logits=X).entropy(),
    ),
    "initial": lambda: [
        getattr(nn.init, f)(torch.empty(6, 5))
        for f in (
            "kaiming_normal_",
            "kaiming_uniform_",
            "xavier_normal_",
            "xavier_uniform_",
            "orthogonal_",
            "trunc_normal_",
            "normal_",
            "uniform_",
            "ones_",
            "zeros_",
            "eye_",
        )
    ],
    "initial sparse": lambda: (nn.init.sparse_(torch.empty(6, 5), 0.2), nn.init.dirac_(torch.empty(4, 4, 3, 3))),
}
