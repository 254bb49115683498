"""The QR decomposition by Householder reflections, in fp64, rounded once: what orthogonal initialization needs.

For column k: with n the norm of what is below and on the diagonal, the diagonal becomes -sign(x) n (LAPACK's choice; a
column that is zero below the diagonal is left alone); v = x less that, divided by its first element; and all columns
from k on lose tau v (v^T A). Norms and products by the halving tree. One column after the other: slow, and done once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easyscale.numerics.kernels.primitives import tree_sum
from easyscale.numerics.kernels.reductions import root_of, rounded
from easyscale.numerics.kernels.registry import form


def _reflect(block: Tensor, v: Tensor, tau: Tensor) -> None:
    """block - tau v (v^T block), in place."""
    along = tree_sum(block * v, [-2])
    block.copy_(block - (v * tau) * along)


@form("linalg_qr")
def linalg_qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(f"qr received unrecognized mode '{mode}'")
    r = A.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    rows, columns = r.shape[-2:]
    rank = min(rows, columns)
    reflections = []
    for k in range(rank):
        x = r[..., k:, k : k + 1]
        first, below = x[..., :1, :], tree_sum(x[..., 1:, :].square(), [-2])
        flat = below == 0
        norm = root_of(first * first + below)
        diagonal = torch.where(first < 0, norm, -norm)
        divisor = torch.where(flat, 1.0, first - diagonal)
        v = torch.where(flat, 0.0, x / divisor)
        v[..., :1, :] = 1.0
        tau = torch.where(flat, 0.0, (diagonal - first) / torch.where(flat, 1.0, diagonal))
        _reflect(r[..., k:, k:], v, tau)
        reflections.append((v, tau))
    triangle = r.triu() if mode == "complete" else r[..., :rank, :].triu()
    made = rounded(triangle, A.dtype)
    if mode == "r":
        return A.new_empty(0), made
    q = torch.eye(rows, rows if mode == "complete" else rank, dtype=torch.float64, device=A.device)
    q = q.expand(*A.shape[:-2], *q.shape).contiguous()
    for k in reversed(range(rank)):
        _reflect(q[..., k:, k:], *reflections[k])
    return rounded(q, A.dtype), made
