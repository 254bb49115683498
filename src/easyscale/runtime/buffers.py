"""Module buffers, with stock DDP's meaning: rank 0's are copied to every rank before a forward.

The model of a worker has one set of buffers, `live`. `base` is what EST 0 left in the last global step; what it leaves
in this one waits as `next` until all ESTs had their turn. Before a forward that stock DDP would synchronise, live
becomes base; an EST that runs on without synchronisation (`no_sync`) keeps its own copy in its context. Outside of
local steps, the model of every worker shows EST 0's buffers. `before` is the base of the round before, for an EST whose
last local step has to be run again. A worker that runs EST 0 alone, on a plan that never changes, copies nothing: its
live buffers are all of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from easyscale.core.errors import UnsupportedError
from easyscale.runtime.group import Group


class Buffers:
    """The buffers of the prepared model on one worker."""

    def __init__(self, model: torch.nn.Module, ignored: frozenset[str]) -> None:
        self._slots = [
            (module, name)
            for prefix, module in model.named_modules()
            for name in module._buffers
            if (f"{prefix}.{name}" if prefix else name) not in ignored
        ]
        self._only_est0 = False
        self._base: list[torch.Tensor] = []
        self._next: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._next_is_set = False
        self.is_current = True  # base is EST 0's of the last round, not of the one before
        self._parcel: tuple[torch.Tensor, list[torch.Tensor]] | None = None  # to send them in, and where each one lies
        self.early: list[torch.Tensor] | None = None  # what EST 0 leaves in this round, before the round is over

    def use_plan(self, group: Group, ests: range, *, fixed: bool) -> None:
        """`fixed`: this worker will never have other ESTs."""
        self._group, self._holds_est0 = group, 0 in ests
        self._only_est0 = fixed and ests == range(1)

    def live(self) -> list[torch.Tensor]:
        """Looked up each time: scripts may replace a buffer by another tensor."""
        found = (module._buffers.get(name) for module, name in self._slots)
        return [tensor for tensor in found if tensor is not None]

    def stamp(self) -> tuple[int, ...]:
        """Changes with each write to a buffer; reading it does not touch the device."""
        return tuple(value for tensor in self.live() for value in (id(tensor), tensor._version))

    def __bool__(self) -> bool:
        return bool(self._slots)

    def copy(self) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in self.live()]

    def put(self, values: Sequence[torch.Tensor]) -> None:
        live = self.live()
        self._refuse_other_shapes(live, values)
        _copy(live, values)

    def _refuse_other_shapes(self, live: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        if [t.shape for t in live] != [t.shape for t in values]:
            raise UnsupportedError(
                "A buffer of the model appeared, vanished or changed its shape.",
                "ESTs take turns with one set of buffers, which must stay alike.",
                "give it its final shape before es.prepare(), or keep such state with es.register(per_est=True).",
            )

    def keep_as_base(self) -> None:
        """Between loops: what the model shows is what every EST starts from."""
        self._next_is_set = False
        if not self._only_est0:
            self._base = self.copy()

    def keep_as_next(self) -> None:
        """EST 0 ends its local step: what it leaves is what every EST starts from in the next global step."""
        if self._only_est0:
            return
        live = self.live()
        self._refuse_other_shapes(live, self._base)
        if self._next:
            _copy(self._next, live)
        else:
            self._next = self.copy()
        self._next_is_set = True

    def next_becomes_base(self) -> bool:
        """False: EST 0 has left nothing here."""
        was_set = self._next_is_set
        if was_set:
            self._before, self._base, self._next = self._base, self._next, self._before
            self._next_is_set = False
        return was_set

    def drop_next(self) -> None:
        self._next_is_set = False

    def ghost_to_live(self) -> None:
        """A local step of the round before is run again: what it started from."""
        self.put(self._before if self.is_current else self._base)

    def base_to_live(self) -> None:
        if not self._only_est0:
            self.put(self._base)

    def next_to_live(self) -> None:
        if not self._only_est0:
            self.put(self._next if self._next_is_set else self._base)

    def share_base(self) -> None:
        """Send EST 0's buffers to all workers (once a global step, as stock DDP does).

        In one parcel: the host waits for the device once, not once a buffer.
        """
        sent = self._send_from_est0(self._shared_base())
        if sent is not None and not self._holds_est0:
            self._before, self._base = self._base, self._before or self.copy()
            _copy(self._base, sent)

    def share_early(self, *, est0_is_live: bool) -> None:
        """Every EST's step is computed: what EST 0 leaves goes to all workers before the round is over.

        For shared state that reads buffers (an average of the weights): each worker keeps a copy of it, and each may
        be the one that goes on with it.
        """
        mine = self.live() if est0_is_live else self._next if self._next_is_set else self._base
        sent = self._send_from_est0(mine)
        self.early = None if sent is None or self._holds_est0 else [tensor.clone() for tensor in sent]

    def early_to_live(self) -> None:
        if self.early is not None:
            self.put(self.early)

    def _send_from_est0(self, tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """Where those of EST 0's worker lie; None where there is nobody to send them to, or nothing."""
        if self._group.workers == 1 or not any(t.numel() for t in tensors):
            return None
        if self._parcel is None:
            self._parcel = _parcel(tensors)
        packed, places = self._parcel
        if self._holds_est0:
            _copy(places, tensors)
        host = packed.cpu()
        self._group.broadcast(host, 0)
        if not self._holds_est0:
            packed.copy_(host)
        return places

    def _shared_base(self) -> list[torch.Tensor]:
        return self.live() if self._only_est0 else self._base

    def base_tree(self) -> list[torch.Tensor]:
        """What another worker needs to go on: a copy in host memory."""
        return [tensor.detach().cpu().clone() for tensor in self._shared_base()]

    def take_base(self, values: Sequence[torch.Tensor]) -> None:
        """The base of the round that just ended came from a peer."""
        self._before, self._base = self._base, self.copy()
        _copy(self._base, values)

    def changed_outside_batch_norm(self) -> bool:
        """Whether a buffer differs from base that the next forward may read (waits for the device).

        Batch norm in training mode updates its running statistics and reads none of them.
        """
        norms = (torch.nn.modules.batchnorm._NormBase,)
        return any(
            not (isinstance(module, norms) and module.training) and not torch.equal(live, base)
            for (module, _), live, base in zip(self._slots, self.live(), self._base, strict=False)
        )


def _parcel(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Memory for all of them, each from a multiple of 16 bytes on, so that any dtype can be seen there."""
    offsets, total = [], 0
    for tensor in tensors:
        offsets.append(total)
        total += -(-tensor.nbytes // 16) * 16
    packed = torch.zeros(total, dtype=torch.uint8, device=tensors[0].device)
    places = [
        packed[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for offset, tensor in zip(offsets, tensors, strict=True)
    ]
    return packed, places


@torch.no_grad()
def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """One list a dtype: torch fuses a list of copies into few launches only where its dtypes are the same."""
    by_type: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        pair = by_type.setdefault(target.dtype, ([], []))
        pair[0].append(target)
        pair[1].append(source)
    for into, out_of in by_type.values():
        torch._foreach_copy_(into, out_of)
