"""Gradients times 1/N into the rows that are summed: stock DDP multiplies first, then sums, and so do we."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from easyscale.runtime.layout import Bucket

# Elements from which a gradient is scaled into its row by a call of its own, in one pass over memory; smaller ones are
# copied together and then scaled, in few calls. On a CPU a pass costs more and a call less than on a GPU.
LARGE = {"cpu": 1 << 13, "cuda": 1 << 18}


def scaled(bucket: Bucket, grads: list[torch.Tensor | None], factor: float, device: torch.device) -> torch.Tensor:
    """The gradients of a bucket, scaled, in new memory."""
    present = [grad for grad in grads if grad is not None]
    small = bucket.elements < LARGE["cuda"] * len(grads)
    if bucket.row_major and len(present) == len(grads) and small and device.type == "cuda":
        joined: torch.Tensor = torch._C._nn.flatten_dense_tensors([grad.detach() for grad in present])  # one call
        return joined.mul_(factor)
    flat = torch.empty(bucket.elements, dtype=bucket.dtype, device=device)
    scale_into([place.view(flat) for place in bucket.places], grads, flat, factor)
    return flat


def scale_into(
    views: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None], flat: torch.Tensor, factor: float
) -> None:
    """Each view of `flat` becomes its gradient times the factor, or zero where there is none.

    By `mul` with a number, as in stock DDP: `_foreach_mul_` rounds the number to half precision first.
    """
    large = LARGE.get(flat.device.type, LARGE["cuda"])
    copies, sources = [], []
    runs: list[list[int]] = []  # where copies lie one after the other: one product each
    for view, grad in zip(views, grads, strict=True):
        if grad is None:
            view.zero_()
        elif view.numel() >= large:
            torch.mul(grad.detach(), factor, out=view)
        else:
            copies.append(view)
            sources.append(grad.detach())
            begin = int(view.storage_offset()) - int(flat.storage_offset())
            if runs and runs[-1][1] == begin:
                runs[-1][1] += view.numel()
            else:
                runs.append([begin, begin + view.numel()])
    if copies:
        torch._foreach_copy_(copies, sources)
    for begin, end in runs:
        flat[begin:end].mul_(factor)
