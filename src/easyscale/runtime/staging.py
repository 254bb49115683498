"""Where the gradients of an EST wait until the last EST of the worker is done.

One row per EST and bucket. On a CPU, rows are plain memory. On a GPU they stay on the device while it has room, or go
to pinned host memory: the copy runs on a side stream while the next EST computes, and the device then holds one bucket
at a time, whatever the number of ESTs. Rows on the host of a worker that holds all ESTs are those of `folding` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch

StagingKind = Literal["auto", "device", "host"]

# `auto` keeps rows on the device while they take at most this share of what the first local step left free:
# the rest is for the allocator's fragmentation and for batches that are larger than the first.
DEVICE_SHARE = 0.5


class Staging:
    """Rows by bucket and EST. `open` gives memory to fill on the device, `close` files it, `rows` gives them back."""

    def __init__(self, kind: StagingKind, device: torch.device, ests: range, *, sums_on_host: bool) -> None:
        self.device, self._ests = device, ests
        self._kind = kind
        self._host: bool | None = None if device.type == "cuda" and not sums_on_host else device.type == "cuda"
        self._rows: dict[tuple[int, int], torch.Tensor] = {}
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def reset(self) -> None:
        self._rows.clear()

    @property
    def on_host(self) -> bool:
        """Rows of a GPU worker lie in pinned host memory."""
        return bool(self._host)

    def choose(self, gradient_bytes: int) -> None:
        """Decide once, after the first local step, when the memory that the script needs is known."""
        if self._host is not None:
            return
        if self._kind != "auto":
            self._host = self._kind == "host"
            return
        free, _ = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        room = free + reserved - torch.cuda.max_memory_allocated(self.device)
        self._host = gradient_bytes * (len(self._ests) + 1) > room * DEVICE_SHARE

    def open(self, bucket: int, est: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        if self.on_host:
            return torch.empty(elements, dtype=dtype, device=self.device)
        return self._row(bucket, est, elements, dtype, self.device)

    def close(self, bucket: int, est: int, flat: torch.Tensor) -> None:
        if not self.on_host:
            return
        row = self._row(bucket, est, flat.numel(), flat.dtype, torch.device("cpu"))
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            row.copy_(flat, non_blocking=True)
        flat.record_stream(self.stream)

    def rows(self, bucket: int) -> list[torch.Tensor]:
        return [self._rows[bucket, est] for est in self._ests]

    def take_over(self, former: Staging, buckets: int, ests: Sequence[int]) -> None:
        """The rows that another plan had set aside, where this one wants them."""
        former.join()
        for bucket in range(buckets):
            for est in ests:
                row = former._rows[bucket, est]
                where = torch.device("cpu") if self.on_host else self.device
                self._row(bucket, est, row.numel(), row.dtype, where).copy_(row)

    def beside(self) -> Any:
        """Run on the side stream, after all that the main stream has been given so far."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.stream)

    def join(self) -> None:
        """Let the main stream wait for the side stream (the host does not wait)."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def _row(self, bucket: int, est: int, elements: int, dtype: torch.dtype, where: torch.device) -> torch.Tensor:
        row = self._rows.get((bucket, est))
        if row is None or row.numel() != elements:
            pinned = where.type == "cpu" and self.device.type == "cuda"
            row = torch.zeros(elements, dtype=dtype, device=where, pin_memory=pinned)
            self._rows[bucket, est] = row
        return row
