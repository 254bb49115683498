"""Set-aside gradients of a lone GPU worker in pinned host memory, with as little left for the end as the order allows.

Chunk c of a bucket is the chain  x[c-1] + ... + x[0] + x[N-1] + ... + x[c].  Its first part is known when EST c-1 is
done: it is folded into one piece then, while the next EST computes. Only the second part has to wait for the last EST,
so half of what was set aside crosses the link again after it, instead of all. A row holds one EST's gradients of one
bucket; one more row a bucket takes the folded pieces.

Work runs on two side streams, the lanes, each with every second bucket: while one adds, the other copies. All that
touches a bucket is on its lane, in order, so that the host never waits and a row needs no events. The last EST's row
never leaves the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from easyscale.numerics.order import ring_chunk

LANES = 2
AHEAD = 64 << 20  # bytes of the last bucket that may come to the device before they are needed
ALIGNED = 512
MOST_BUCKETS = 4096  # room for their alignment, whatever buckets come after the first step's


class Folding:
    """Rows of `ranks` ESTs, all of this worker: `put` each but the last, then `finish` bucket after bucket."""

    def __init__(self, device: torch.device, ranks: int) -> None:
        self._device, self._ranks = device, ranks
        self._memory: dict[int, torch.Tensor] = {}  # by EST, for all its rows; the folded pieces are at N - 1
        self._pieces: dict[tuple[int, int, int, int], torch.Tensor] = {}
        self._ahead: dict[int, list[torch.Tensor]] = {}  # by bucket: what is on the device before it is needed
        # High priority: a sum that waits for room among the backward's kernels holds up the copies behind it.
        gpu = device.type == "cuda"
        self._lanes: list[Any] = [torch.cuda.Stream(device, priority=-1) if gpu else None for _ in range(LANES)]

    def use(self, buckets: Sequence[tuple[int, torch.dtype]]) -> None:
        """Rows for buckets of these sizes from now on, in the same memory: the main stream has joined the lanes."""
        self._buckets = [_as_real(elements, dtype) for elements, dtype in buckets]
        self._chunks = [ring_chunk(n, dtype.itemsize, self._ranks) for n, dtype in self._buckets]
        sizes = [-(-n * dtype.itemsize // ALIGNED) * ALIGNED for n, dtype in self._buckets]
        self._offsets = [sum(sizes[:b]) for b in range(len(sizes))]
        self._pieces.clear()
        self._ahead.clear()

    def put(self, est: int, flats: Sequence[torch.Tensor]) -> None:
        """EST `est`, not the last, is done: its gradients, by bucket. Their memory is used up."""
        flats = [_real(flat) for flat in flats]
        self._ahead.clear()
        for lane, stream in enumerate(self._lanes):
            mine = range(lane, len(flats), LANES)
            with self._beside(stream):
                for b in mine:
                    self._row(b, est).copy_(flats[b], non_blocking=True)
                self._fold(est + 1, flats, mine)
            for b in mine:
                if stream is not None:
                    flats[b].record_stream(stream)

    def _fold(self, chunk: int, flats: Sequence[torch.Tensor], mine: Sequence[int]) -> None:
        """Now that EST chunk-1 is there: the first part of the chunk's chain, from it down to EST 0."""
        mine = [b for b in mine if self._begin(b, chunk) < self._begin(b, chunk + 1)]
        if not mine:
            return
        sums = [flats[b][self._begin(b, chunk) : self._begin(b, chunk + 1)] for b in mine]
        came = [torch.empty_like(part) for part in sums] if chunk > 1 else []
        for est in reversed(range(chunk - 1)):
            torch._foreach_copy_(came, [self._piece(b, est, chunk, chunk + 1) for b in mine], non_blocking=True)
            torch._foreach_add_(sums, came)
        for b, part in zip(mine, sums, strict=True):
            self._piece(b, self._ranks - 1, chunk, chunk + 1).copy_(part, non_blocking=True)

    def finish(self, b: int, flat: torch.Tensor) -> torch.Tensor:
        """The last EST's gradients of bucket b are in `flat`: the sum over all ESTs takes their place, after `join`."""
        total = _real(flat)
        ahead = self._ahead.pop(b, [])
        with self._beside(self._lanes[b % LANES]):
            came = torch.empty_like(total)
            for i, piece in enumerate(self._second_part(b)):
                there = ahead[i] if i < len(ahead) else came[: piece.numel()]
                if i >= len(ahead):
                    there.copy_(piece, non_blocking=True)
                if i == 0:  # the folded pieces; chunk 0 has none: its chain begins with the last EST
                    part = total[self._begin(b, 1) :]
                    torch.add(there, part, out=part)
                else:
                    total[: piece.numel()].add_(there)
            if b + LANES == len(self._buckets) - 1:
                self._fetch_ahead(b + LANES)
        return flat

    def _second_part(self, b: int) -> list[torch.Tensor]:
        """What is added to the last EST's gradients, in order: the folded pieces, then EST N-2 down to EST 0."""
        folded = self._piece(b, self._ranks - 1, 1, self._ranks)
        return [folded, *(self._piece(b, est, 0, est + 1) for est in reversed(range(self._ranks - 1)))]

    def _fetch_ahead(self, b: int) -> None:
        """For the bucket that ends the backward, since nothing hides its way: bring what it will add, up to AHEAD."""
        room, there = AHEAD, []
        for piece in self._second_part(b):
            room -= piece.nbytes
            if room < 0:
                break
            there.append(piece.to(self._device, non_blocking=True))
        self._ahead[b] = there

    def join(self) -> None:
        """Let the main stream wait for the lanes (the host does not wait)."""
        for stream in self._lanes:
            if stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(stream)

    def _begin(self, b: int, chunk: int) -> int:
        return min(chunk * self._chunks[b], self._buckets[b][0])

    def _piece(self, b: int, slot: int, first: int, last: int) -> torch.Tensor:
        """The chunks first..last-1 of a row. Kept: a new view costs as much as a small copy."""
        key = (b, slot, first, last)
        if key not in self._pieces:
            self._pieces[key] = self._row(b, slot)[self._begin(b, first) : self._begin(b, last)]
        return self._pieces[key]

    def _row(self, b: int, slot: int) -> torch.Tensor:
        elements, dtype = self._buckets[b]
        if slot not in self._memory:
            gradients = sum(n * kind.itemsize for n, kind in self._buckets)
            self._memory[slot] = pinned(gradients + ALIGNED * MOST_BUCKETS, self._device)
        begin = self._offsets[b]
        return self._memory[slot][begin : begin + elements * dtype.itemsize].view(dtype)

    def _beside(self, stream: Any) -> Any:
        """Run on a lane, after all that the main stream has been given so far."""
        if stream is None:
            return nullcontext()
        stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(stream)


def pinned(size: int, device: torch.device) -> torch.Tensor:
    """Host memory that the GPU copies by itself. Torch's own `pin_memory` would round it up to a power of two."""
    memory = torch.empty(size, dtype=torch.uint8)
    if device.type == "cuda":
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), size, 0))
        weakref.finalize(memory, torch.cuda.cudart().cudaHostUnregister, memory.data_ptr())
    return memory


def _as_real(elements: int, dtype: torch.dtype) -> tuple[int, torch.dtype]:
    """Gloo sums complex numbers as pairs of real ones."""
    return (2 * elements, dtype.to_real()) if dtype.is_complex else (elements, dtype)


def _real(flat: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
