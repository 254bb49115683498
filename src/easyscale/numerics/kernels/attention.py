"""Attention without its scores in memory: the bits of torch's plain composition, computed anew in the backward.

`scaled_dot_product_attention` at D2 is a composition of operators that have forms (docs/numerics.md). Its scores, their
softmax and what dropout leaves of them are [.., L, S] each, and autograd would keep them from the forward to the
backward. Here one operator, `easyscale::attention`, has the composition's result, and keeps only its inputs and the key
of dropout's random numbers; `easyscale::attention_backward` computes the scores again and from them the composition's
gradients. Both work on some heads at a time, so that what they need meanwhile is bounded (`MOST`).

`COMPOSITES` goes under torch's CompositeImplicitAutograd key. It takes the operator on `DEVICES`; all else is torch's
own composition: CPUs, where recomputing costs more than memory does; and what is rare (a mask with a gradient, grouped
queries, fp64, transforms of functions, empty tensors). So is the backward that is itself to be differentiated, or
that runs under autocast. Which of the two computes changes no bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from easyscale.numerics.kernels.gpu import replay
from easyscale.numerics.kernels.philox import draw_key
from easyscale.numerics.kernels.products import multiply
from easyscale.numerics.kernels.randomness import kept_of, limit_of
from easyscale.numerics.kernels.scores import Part, Rows, added_to, flat, kernels_for, placed, probabilities, slopes_of

DEVICES = {"cuda"}
MOST = 2**26  # scores at a time, unless a single head has more: 256 MiB, so that most layers are computed at once
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_NAME = "scaled_dot_product_attention"
_stock = torch.library.get_kernel(f"aten::{_NAME}", "CPU")  # one composition for all devices
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_backends = torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled, torch._C._get_cudnn_sdp_enabled


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if query.device.type not in DEVICES or not _is_usual(query, key, value, attn_mask, dropout_p, is_causal, scale):
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return _stock.call_boxed(_KEYS, query, key, value, attn_mask, dropout_p, is_causal, **options)  # type: ignore[no-any-return]
    root = math.sqrt(1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if query.dim() == 3:
        masks = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask[None]
        query, key, value = query[None], key[None], value[None]  # autograd comes back in the opposite order
        return _Attention.apply(value, key, query, masks, dropout_p, is_causal, root)[0]  # type: ignore[no-any-return,no-untyped-call]
    return _Attention.apply(value, key, query, attn_mask, dropout_p, is_causal, root)  # type: ignore[no-any-return,no-untyped-call]


def _is_usual(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None,
) -> bool:  # fmt: skip
    """Whether the operator is for this: shapes and dtypes, and nothing that only a composition can do."""
    if (
        query.dim() not in (3, 4) or query.dtype not in DTYPES or not query.dtype is key.dtype is value.dtype
        or not query.device == key.device == value.device or not 0 <= dropout_p < 1
        or query.shape[:-2] != key.shape[:-2] or key.shape[:-1] != value.shape[:-1] or query.shape[-1] != key.shape[-1]
        or not (query.numel() and key.numel() and value.numel()) or (scale is not None and not 0 <= scale < math.inf)
    ):  # fmt: skip
        return False
    if mask is not None and (
        is_causal or mask.requires_grad or mask.device != query.device
        or mask.dtype not in (torch.bool, torch.float32, query.dtype)
        or not _broadcasts(mask.shape, (*query.shape[:-1], key.shape[-2]))
    ):  # fmt: skip
        return False
    # The script may ask for another way of stock's, which stock then takes and D2 refuses.
    if any(enabled() for enabled in _backends) or not torch._C._get_math_sdp_enabled():
        return False
    if query.dtype is not torch.float32 and torch._C._get_math_sdp_allow_fp16_bf16_reduction():
        return False
    return not torch._C._are_functorch_transforms_active() and forward_ad._current_level < 0


def _broadcasts(shape: torch.Size, to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


class _Attention(torch.autograd.Function):
    """Value, key, query: where one tensor is two or three of them, their gradients are added in that order, which is
    the composition's."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool,
        root: float,
    ) -> Tensor:  # fmt: skip
        out, drawn = torch.ops.easyscale.attention.default(value, key, query, mask, dropout_p, is_causal, root)
        ctx.save_for_backward(value, key, query, mask, drawn)
        ctx.settings = dropout_p, is_causal, root
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        value, key, query, mask, drawn = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        if torch.is_grad_enabled() or torch.is_autocast_enabled(query.device.type):
            found = _composed_backward(g, value, key, query, mask, drawn, ctx.settings, wanted)
        else:
            operator = torch.ops.easyscale.attention_backward.default
            made = operator(g, value, key, query, mask, drawn, *ctx.settings, wanted)
            found = [x if want else None for x, want in zip(made, wanted, strict=True)]
        return *found, None, None, None, None


def _composed_backward(
    g: Tensor, value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None, drawn: Tensor,
    settings: tuple[float, bool, float], wanted: list[bool],
) -> list[Tensor | None]:  # fmt: skip
    """By operators that autograd knows."""
    differentiable, kind = torch.is_grad_enabled(), query.device.type
    with torch.enable_grad():
        apart = [x.view_as(x) if want else x.detach() for x, want in zip((value, key, query), wanted, strict=True)]
        v, k, q = apart
        with torch.autocast(kind, enabled=False):
            out = composed(v, k, q, mask, drawn, *settings)
        asked = [x for x, want in zip(apart, wanted, strict=True) if want]
        made = iter(torch.autograd.grad(out, asked, g, create_graph=differentiable))
    return [next(made) if want else None for want in wanted]


def composed(
    value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None, drawn: Tensor, dropout_p: float, is_causal: bool,
    root: float,
) -> Tensor:  # fmt: skip
    """Torch's composition, with a key of dropout that was drawn already."""
    q, k, v = (x.float() for x in (query, key, value))
    scores = torch.matmul(q * root, k.mT * root)
    added = added_to(mask, is_causal, scores.shape, scores.device)
    if added is not None:
        scores = scores + added
    rows = torch.ops.aten._safe_softmax(scores, -1)
    if drawn.numel():
        noise = kept_of(torch.empty_like(rows), int(drawn), limit_of(1 - dropout_p))
        rows = rows * noise.div_(1 - dropout_p)
    return torch.matmul(rows, v).to(query.dtype)


# ---------------------------------------------------------------------------------------------- the two operators


def attention(
    value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, root: float
) -> tuple[Tensor, Tensor]:
    """[B, H, L, Ev], contiguous; and the key of dropout's stream (none: empty)."""
    stream = 0 if dropout_p == 0 else draw_key(None)
    drawn = torch.tensor(stream) if dropout_p else torch.empty(0, dtype=torch.int64)
    made = _attend if query.device.type not in DEVICES else _attend_again
    return made(value, key, query, mask, dropout_p, is_causal, root, stream), drawn


def _attend(
    value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, root: float,
    stream: int,
) -> Tensor:  # fmt: skip
    at_once = kernels_for(query.device, key.shape[2])
    rows = _rows(query, key, mask, is_causal, stream, dropout_p)
    out: Tensor | None = None
    for part, begin in _parts(query, key):
        q, k, v = (x if part is None else x[part] for x in (query, key, value))
        scores = multiply(flat(q, root, at_once), flat(k.mT, root, at_once))
        made = multiply(probabilities(scores, part, begin, rows, at_once), flat(v, None, at_once))
        if part is None:
            return made.view((*query.shape[:3], value.shape[3])).to(query.dtype)
        if out is None:
            out = query.new_empty((*query.shape[:3], value.shape[3]))
        out[part] = made.view((*q.shape[:3], value.shape[3]))
    assert out is not None
    return out


def attention_backward(
    g: Tensor, value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None, drawn: Tensor, dropout_p: float,
    is_causal: bool, root: float, wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of value, key and query; what is not wanted is empty."""
    made = _slopes if query.device.type not in DEVICES else _slopes_again
    stream = int(drawn) if drawn.numel() else 0
    return made(g, value, key, query, mask, dropout_p, is_causal, root, wanted, stream)


def _slopes(
    g: Tensor, value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool,
    root: float, wanted: list[bool], stream: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    at_once = kernels_for(query.device, key.shape[2])
    rows = _rows(query, key, mask, is_causal, stream, dropout_p)
    dv: Tensor | None = None
    dk: Tensor | None = None
    dq: Tensor | None = None
    for part, begin in _parts(query, key):
        there, q, k, v = (x if part is None else x[part] for x in (g, query, key, value))
        there, q = flat(there, None, at_once), flat(q, root, at_once)
        scores = multiply(q, flat(k.mT, root, at_once))
        slopes = multiply(there, flat(v.mT, None, at_once)) if wanted[1] or wanted[2] else None
        weights, slopes = slopes_of(scores, slopes, part, begin, rows, at_once)
        if wanted[0]:
            dv = placed(dv, value, part, multiply(weights.mT, there), None, at_once)
        if slopes is not None and wanted[1]:
            dk = placed(dk, key, part, multiply(slopes.mT, q), root, at_once)
        if slopes is not None and wanted[2]:
            dq = placed(dq, query, part, multiply(slopes, flat(k, root, at_once)), root, at_once)
    v, k, q = (x.new_empty(0) if made is None else made for x, made in ((value, dv), (key, dk), (query, dq)))
    return v, k, q


def _parts(query: Tensor, key: Tensor) -> Iterator[tuple[Part | None, int]]:
    """Heads that are computed together, as slices of the first two dimensions (none: all of them), and the number of
    the first one."""
    batch, heads, each = query.shape[0], query.shape[1], query.shape[2] * key.shape[2]
    if batch * heads * each <= MOST:
        yield None, 0
        return
    if heads * each <= MOST:
        some = max(1, MOST // (heads * each))
        for i in range(0, batch, some):
            yield (slice(i, i + some), slice(None)), i * heads
        return
    some = max(1, MOST // each)
    for i in range(batch):
        for j in range(0, heads, some):
            yield (slice(i, i + 1), slice(j, j + some)), i * heads + j


def _rows(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, stream: int, dropout_p: float
) -> Rows:  # fmt: skip
    mask = mask if mask is None else mask.expand((*query.shape[:3], key.shape[2]))
    return Rows(mask, is_causal, stream if dropout_p else None, dropout_p)


_SETTINGS = ["Optional[Tensor]", "float", "bool", "float"]
_attend_again = replay.Replayed(_attend, ["Tensor", "Tensor", "Tensor", *_SETTINGS, replay.DRAWN])
_slopes_again = replay.Replayed(
    _slopes, ["Tensor", "Tensor", "Tensor", "Tensor", *_SETTINGS, "List[bool]", replay.DRAWN]
)


# ---------------------------------------------------------------------------------------------- in torch's dispatcher

_library = torch.library.Library("easyscale", "DEF")
_library.define(
    "attention(Tensor value, Tensor key, Tensor query, Tensor? mask, float dropout_p, bool is_causal, float root)"
    " -> (Tensor, Tensor)",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_library.define(
    "attention_backward(Tensor g, Tensor value, Tensor key, Tensor query, Tensor? mask, Tensor drawn, float dropout_p,"
    " bool is_causal, float root, bool[3] wanted) -> (Tensor, Tensor, Tensor)"
)
for _key in ("CPU", "CUDA"):
    _library.impl("attention", attention, _key)
    _library.impl("attention_backward", attention_backward, _key)


def _shape(
    value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool, root: float
) -> tuple[Tensor, Tensor]:
    drawn = torch.empty(() if dropout_p else (0,), dtype=torch.int64, device="cpu")
    return query.new_empty((*query.shape[:3], value.shape[3])), drawn


def _backward_shape(
    g: Tensor, value: Tensor, key: Tensor, query: Tensor, mask: Tensor | None, drawn: Tensor, dropout_p: float,
    is_causal: bool, root: float, wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    pairs = zip((value, key, query), wanted, strict=True)
    v, k, q = (torch.empty_like(x) if want else x.new_empty(0) for x, want in pairs)
    return v, k, q


torch.library.register_fake("easyscale::attention", _shape, lib=_library)
torch.library.register_fake("easyscale::attention_backward", _backward_shape, lib=_library)

COMPOSITES: dict[str, Callable[..., Any]] = {_NAME: scaled_dot_product_attention}
