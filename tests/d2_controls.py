"""Negative controls of D2: each lets one stock kernel, or one other rounding, through. Apply before `install`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from easyscale.numerics.kernels import primitives, products, safe
from easyscale.numerics.kernels.catalogue import FORMS


def let_through(*packets: str) -> None:
    """The stock kernels of these operators, as if they were safe."""
    for name in [name for name in FORMS if name.partition(".")[0] in packets]:
        del FORMS[name]
    stock = safe.is_safe
    allowed = {*packets, *(f"{packet}_" for packet in packets)}
    safe.is_safe = lambda name, device: name.partition(".")[0] in allowed or stock(name, device)


def plain_matmul() -> None:
    let_through("mm", "addmm", "bmm", "baddbmm")


def unfused() -> None:
    """acc = a * b rounded, then added: what a compiler makes of acc += a * b where it does not contract."""

    def product(a: Tensor, b: Tensor, block: int = 0) -> Tensor:
        total = torch.zeros((a.shape[0], a.shape[1], b.shape[2]), device=a.device)
        for k in range(a.shape[2]):
            total = total + a[:, :, k : k + 1].float() * b[:, k : k + 1].float()
        return total

    primitives.product = product
    assert products.primitives is primitives
    products._planned = lambda a, b, bias: None  # what goes to the kernels without `primitives`
    products._planned_batch = lambda a, b: None


def vendor_exp() -> None:
    """Activations and softmax by stock kernels, which use the instruction set's own exp."""
    let_through("exp", "silu", "sigmoid", "gelu", "tanh", "_softmax", "_log_softmax")


def vendor_sums() -> None:
    let_through("sum", "mean", "native_layer_norm", "native_layer_norm_backward", "native_batch_norm")


CONTROLS: dict[str, Callable[[], None]] = {
    "plain matmul": plain_matmul,
    "unfused multiply-add": unfused,
    "vendor exp": vendor_exp,
    "vendor sums": vendor_sums,
}
