"""Rows of attention's scores: what mask, softmax and dropout make of them, and the gradients of that.

By kernels that read and write each row once, where there are any (`gpu.attention`), and else by the forms of these
operators. Both have the bits of the composition (docs/numerics.md). The factors of products are laid out here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from easyscale.numerics.kernels import primitives
from easyscale.numerics.kernels.randomness import kept_of, limit_of, noise_of
from easyscale.numerics.kernels.softmax import safe_softmax, softmax_backward

Part = tuple[slice, slice]  # of samples and heads


@dataclass(frozen=True, slots=True)
class Rows:
    """How scores become probabilities: the mask of all rows [B, H, L, S], and dropout by the stream of a key."""

    mask: Tensor | None
    is_causal: bool
    key: int | None
    dropout_p: float

    @property
    def noise(self) -> float:
        return noise_of(1 - self.dropout_p, torch.float32)

    @property
    def limit(self) -> int:
        return limit_of(1 - self.dropout_p)


def added_to(mask: Tensor | None, is_causal: bool, shape: torch.Size, device: torch.device) -> Tensor | None:
    """What is added to the scores: 0 and -inf, or the mask as it is."""
    if is_causal:
        mask = torch.ones(shape[-2:], dtype=torch.bool, device=device).tril()
    if mask is not None and mask.dtype is torch.bool:
        return torch.zeros(mask.shape, dtype=torch.float32, device=device).masked_fill_(~mask, -torch.inf)
    return mask


def kernels_for(device: torch.device, length: int) -> ModuleType | None:
    """The kernels for this, where there are any and they take rows of this length."""
    found: ModuleType | None = getattr(primitives.implementation(device), "attention", None)
    return found if found is not None and length <= found.LONGEST else None


def flat(x: Tensor, root: float | None, at_once: ModuleType | None) -> Tensor:
    """fp32 [heads, rows, columns] from [B, H, rows, columns], times the root."""
    if at_once is not None:
        return at_once.flat(x, root)  # type: ignore[no-any-return]
    x = x.float()
    return (x if root is None else x * root).flatten(0, 1)


def placed(
    out: Tensor | None, like: Tensor, part: Part | None, made: Tensor, root: float | None, at_once: ModuleType | None
) -> Tensor:
    """fp32 [heads, rows, columns] times the root, rounded, where `part` is in a tensor of the kind of `like`: in `out`,
    or a new one."""
    if part is None and root is None and like.dtype is torch.float32 and like.is_contiguous():
        return made.view(like.shape)
    whole = torch.empty_like(like) if out is None else out
    there = whole if part is None else whole[part]
    if at_once is not None:
        at_once.put(there, made, root)
    else:
        there.copy_((made if root is None else made * root).view(there.shape))
    return whole


def probabilities(scores: Tensor, part: Part | None, begin: int, rows: Rows, at_once: ModuleType | None) -> Tensor:
    """What the values are weighed with, from fp32 scores [heads, L, S] that may be overwritten."""
    if at_once is not None:
        return at_once.probabilities(scores, _shown(rows, part), begin, rows)  # type: ignore[no-any-return]
    made, noise = _softmax(scores, part, begin, rows)
    return made if noise is None else made * noise


def slopes_of(
    scores: Tensor, slopes: Tensor | None, part: Part | None, begin: int, rows: Rows, at_once: ModuleType | None
) -> tuple[Tensor, Tensor | None]:
    """What the values were weighed with, and the gradient of the scores from that of these weights."""
    if at_once is not None and slopes is not None:
        return at_once.slopes(scores, slopes, _shown(rows, part), begin, rows)  # type: ignore[no-any-return]
    if slopes is None:
        return probabilities(scores, part, begin, rows, at_once), None
    made, noise = _softmax(scores, part, begin, rows)
    if noise is None:
        return made, softmax_backward(slopes, made, -1, torch.float32)
    return made * noise, softmax_backward(slopes * noise, made, -1, torch.float32)


def _shown(rows: Rows, part: Part | None) -> Tensor | None:
    return rows.mask if rows.mask is None or part is None else rows.mask[part]


def _softmax(scores: Tensor, part: Part | None, begin: int, rows: Rows) -> tuple[Tensor, Tensor | None]:
    """By other forms: the softmax, and what dropout multiplies it by."""
    added = added_to(_shown(rows, part), rows.is_causal, scores.shape, scores.device)
    if added is not None:
        scores = scores + added.reshape(-1, *added.shape[-2:])
    made = safe_softmax(scores, -1)
    if rows.key is None:
        return made, None
    count, each = scores.shape[0], scores[0].numel()
    start = begin * each
    whole = kept_of(torch.empty(count * each + start % 4, dtype=torch.float32, device=scores.device), rows.key,
                    rows.limit, start - start % 4)  # fmt: skip
    return made, whole[start % 4 :].view(scores.shape).div_(1 - rows.dropout_p)
