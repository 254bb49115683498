"""State on its way from one worker to others, over a group: structure first, then the bytes of each tensor.

Large tensors travel from the memory where they are; small ones together in one parcel.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from easyscale.runtime import codec
from easyscale.runtime.group import Group

SMALL = 1 << 16  # bytes up to which a tensor goes into the parcel: below, a message costs more than a copy


def send_tree(group: Group, tree: Any) -> None:
    """From this worker to all others of the group."""
    structure, tensors = codec.encode(tree)
    flat = {name: _bytes_of(tensor) for name, tensor in tensors.items()}
    facts = [[name, *_shape_of(tensor), flat[name].numel()] for name, tensor in tensors.items()]
    group.broadcast_bytes(json.dumps([structure, facts]).encode(), group.worker)
    small = [raw for raw in flat.values() if raw.numel() <= SMALL]
    if small:
        group.broadcast(torch.cat(small), group.worker)
    for raw in flat.values():
        if raw.numel() > SMALL:
            group.broadcast(raw, group.worker)


def receive_tree(group: Group, root: int) -> Any:
    """What `root` sends with `send_tree`, in host memory."""
    structure, facts = json.loads(group.broadcast_bytes(b"", root))
    sizes = [size for *_, size in facts if size <= SMALL]
    parcel = torch.empty(sum(sizes), dtype=torch.uint8)
    if sizes:
        group.broadcast(parcel, root)
    tensors, at = {}, 0
    for name, dtype, shape, size in facts:
        if size <= SMALL:
            raw = parcel[at : at + size].clone()
            at += size
        else:
            raw = torch.empty(size, dtype=torch.uint8)
            group.broadcast(raw, root)
        tensors[name] = raw.view(getattr(torch, dtype)).view(shape)
    return codec.decode(structure, tensors)


def _shape_of(tensor: torch.Tensor) -> tuple[str, list[int]]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
