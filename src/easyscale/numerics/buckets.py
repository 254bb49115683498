"""Stock DDP's buckets: which gradients are summed together, and in which order they lie in memory.

The chunk that an element falls into, and so the order of its additions, depends on its place in a bucket. Stock DDP
starts with one bucket (or, with `find_unused_parameters`, with 1 MiB and 25 MiB ones) in registration order, and after
the first backward rebuilds them in the order in which rank 0's gradients became ready. The map is recorded in the job
and never rebuilt again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch._C._distributed_c10d import _DEFAULT_FIRST_BUCKET_BYTES, _compute_bucket_assignment_by_size

BucketMap = list[list[int]]


def bucket_limits(cap_mb: float | None) -> list[int]:
    """Bytes of the first bucket and of the others. Stock DDP shrinks the first one only by default (None)."""
    if cap_mb is None:
        return [_DEFAULT_FIRST_BUCKET_BYTES, 25 * 1024 * 1024]
    return [int(cap_mb * 1024 * 1024)] * 2


def first_buckets(parameters: Sequence[torch.Tensor], limits: list[int], find_unused: bool) -> BucketMap:
    """Buckets of the first backward, in the order in which they are reduced."""
    limits = limits if find_unused else [sys.maxsize]
    buckets, _ = _compute_bucket_assignment_by_size(list(parameters), limits, [False] * len(parameters))
    return list(reversed(buckets))


def rebuilt_buckets(parameters: Sequence[torch.Tensor], limits: list[int], ready: Sequence[int]) -> BucketMap:
    """Buckets from the second global step on; `ready` is rank 0's order of gradients in the first backward."""
    tensors = [parameters[i] for i in ready]
    buckets, _ = _compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors), list(ready))
    return [list(bucket) for bucket in buckets]
