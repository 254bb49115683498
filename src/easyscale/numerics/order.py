"""The order of additions in a gradient sum, as data.

Stock DDP over Gloo sums a bucket with a ring all-reduce over N ranks: the flat buffer is cut into N chunks and
chunk c is the chain  x[c-1] + x[c-2] + ... + x[c]  (virtual ranks modulo N, one addition after the other). That
order is the promise. `chain_program` writes down what ONE worker of a plan does so that the chain of each chunk
visits the virtual ranks in exactly that order, wherever they live: it starts where x[c-1] lives, crosses each
worker boundary once, and ends where x[c] lives; the finished chunks are then spread so that workers send equal
shares. `tree_nodes` describes the second order: a fixed binary tree over virtual ranks.

Pure: numbers in, instructions out. `runtime.reduce` carries them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

# Gloo's `maxSegmentSize` for ring algorithms: part of the order, not a tuning knob.
GLOO_SEGMENT_BYTES = 1 << 20


def ring_chunk(elements: int, itemsize: int, ranks: int) -> int:
    """Elements in one chunk of Gloo's ring all-reduce. The last chunks may be shorter, or empty."""
    size = elements * itemsize
    largest = GLOO_SEGMENT_BYTES // itemsize * itemsize
    segments = _round_up(max(_ceil(size, largest), 2 * ranks), ranks)
    segment = _round_up(_ceil(size, segments), itemsize)
    return segments // ranks * segment // itemsize


def chain(chunk: int, ranks: int) -> list[int]:
    """Virtual ranks in the order in which their values of one chunk are added."""
    return [(chunk - 1 - i) % ranks for i in range(ranks)]


@dataclass(frozen=True, slots=True)
class Local:
    """acc[lo:hi] = or += the gradient of one EST of this worker."""

    op: Literal["copy", "add"]
    est: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Remote:
    """Send acc[lo:hi] to a peer, receive it from there, or add what comes to it. `tag` tells messages apart.

    A send with `est` set sends that EST's own gradient instead of the sum so far.
    """

    op: Literal["send", "recv", "recv-add"]
    peer: int
    lo: int
    hi: int
    tag: int
    est: int | None = None


Instruction = Local | Remote


@lru_cache(maxsize=512)
def chain_program(elements: int, itemsize: int, split: tuple[int, ...], worker: int) -> tuple[Instruction, ...]:
    """What `worker` does with one bucket. Sends never wait; a receive is awaited before the next instruction."""
    return tuple(i for i in _Chain(elements, itemsize, split, worker).program() if i.hi > i.lo)


class _Chain:
    def __init__(self, elements: int, itemsize: int, split: tuple[int, ...], worker: int) -> None:
        self.elements, self.split, self.worker = elements, split, worker
        self.ranks, self.workers = sum(split), len(split)
        self.chunk = ring_chunk(elements, itemsize, self.ranks)
        self.starts = [sum(split[:w]) for w in range(len(split))]
        self.a, self.b = self.starts[worker], self.starts[worker] + split[worker]

    def program(self) -> Iterator[Instruction]:
        below, above = (self.worker - 1) % self.workers, (self.worker + 1) % self.workers
        yield from self._start()
        for hop in range(1, self.workers):
            yield from self._exchange("send", below, self._group((self.worker + hop - 1) % self.workers), hop)
            group = self._group((self.worker + hop) % self.workers)
            yield from self._exchange("recv", above, group, hop)
            for lo, hi in group:
                for est in reversed(range(self.a, self.b)):
                    yield Local("add", est, lo, hi)
        if self.workers > 1:  # chunks whose chain began in the middle of a worker come home
            yield from self._exchange("send", below, [self._homeward(below)], self.workers)
            yield from self._exchange("recv", above, [self._homeward(self.worker)], self.workers)
        if self.workers == 2:
            yield from self._visit()
        yield from self._finish()
        yield from self._spread()

    def _span(self, first: int, last: int) -> tuple[int, int]:
        """Elements of the chunks first..last-1."""
        return min(first * self.chunk, self.elements), min(last * self.chunk, self.elements)

    def _group(self, worker: int) -> list[tuple[int, int]]:
        """Elements of the chunks whose chain starts at `worker`: first+1 .. last+1, and N is chunk 0 again."""
        first, last = self.starts[worker] + 1, self.starts[worker] + self.split[worker]
        begin = self._visited(worker)[1]
        if last < self.ranks:
            return [(begin, self._span(first, last + 1)[1])]
        return [(begin, self._span(first, self.ranks)[1]), self._span(0, 1)]

    def _inner(self, worker: int) -> tuple[int, int]:
        """Elements of the chunks whose chain both starts and ends at `worker`."""
        return self._span(self.starts[worker] + 1, self.starts[worker] + self.split[worker])

    def _homeward(self, worker: int) -> tuple[int, int]:
        return self._visited(worker)[1], self._inner(worker)[1]

    def _visited(self, worker: int) -> tuple[int, int]:
        """With two workers of unequal share: elements for which the smaller one sends its ESTs' own gradients to the
        larger instead of passing the chain back and forth, so that the larger does not send more than it must."""
        lo, hi = self._inner(worker)
        small, large = min(self.split), max(self.split)
        if self.workers != 2 or self.split[worker] == small:
            return lo, lo
        return lo, lo + (hi - lo) * (large - small) // (small * (large - 1))

    def _visit(self) -> Iterator[Instruction]:
        other = 1 - self.worker
        lo, hi = self._visited(other)
        for i, est in enumerate(reversed(range(self.a, self.b))):
            yield Remote("send", other, lo, hi, 100 + i, est)
        lo, hi = self._visited(self.worker)
        for i in range(self.split[other]):
            yield Remote("recv-add", other, lo, hi, 100 + i)

    def _start(self) -> Iterator[Instruction]:
        for est in reversed(range(self.a, self.b)):
            first = (est + 1) % self.ranks
            yield Local("copy", est, *self._span(first, first + 1))
            if self.b == self.ranks:
                yield Local("add", est, *self._span(est + 2, self.ranks))
                if est + 1 < self.ranks:
                    yield Local("add", est, *self._span(0, 1))
            else:
                yield Local("add", est, *self._span(est + 2, self.b + 1))

    def _finish(self) -> Iterator[Instruction]:
        for est in reversed(range(self.a + 1, self.b)):
            yield Local("add", est, *self._span(self.a + 1, est + 1))

    def _exchange(
        self, op: Literal["send", "recv", "recv-add"], peer: int, spans: Sequence[tuple[int, int]], hop: int
    ) -> Iterator[Instruction]:
        for i, (lo, hi) in enumerate(spans):
            yield Remote(op, peer, lo, hi, 2 * hop + i)

    def _spread(self) -> Iterator[Instruction]:
        """All-gather: each finished piece walks a path over all workers, the last of which sends nothing."""
        pieces = []
        for owner, lasts in enumerate(_last_receivers(self.split)):
            lo, hi = self._span(self.starts[owner], self.starts[owner] + self.split[owner])
            total, done = sum(share for _, share in lasts), 0
            for last, share in lasts:
                begin = lo + (hi - lo) * done // total
                done += share
                pieces.append((begin, lo + (hi - lo) * done // total, self._path(owner, last)))
        for hop in range(self.workers - 1):
            for op in ("send", "recv"):
                for number, (lo, hi, path) in enumerate(pieces):
                    tag = 1000 + hop * len(pieces) + number
                    if op == "send" and path[hop] == self.worker:
                        yield Remote("send", path[hop + 1], lo, hi, tag)
                    if op == "recv" and path[hop + 1] == self.worker:
                        yield Remote("recv", path[hop], lo, hi, tag)

    def _path(self, owner: int, last: int) -> list[int]:
        around = [(owner - i) % self.workers for i in range(self.workers)]
        return [w for w in around if w != last] + [last] if self.workers > 1 else around


@lru_cache(maxsize=256)
def _last_receivers(split: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each owner: which workers come last on the paths of its chunks, with their shares.

    Who comes last does not forward, so each worker should come last for 1/p of all elements. Shares are counted in
    1/p of a chunk; the most constrained worker is served first, which finds an exact solution where there is one
    (no owner holds more than (p-1)/p of all).
    """
    workers, ranks = len(split), sum(split)
    if workers == 1:
        return (((0, 1),),)
    own = [count * workers for count in split]
    room = [ranks] * workers
    given = [[0] * workers for _ in split]
    for _ in range(sum(own)):
        tight = max(range(workers), key=lambda w: (own[w] + room[w], -w))
        if own[tight] and any(room[w] for w in range(workers) if w != tight):
            others = [w for w in range(workers) if w != tight]
            owner, last = tight, max(others, key=lambda w: (room[w] > 0, own[w] + room[w]))
        else:
            owners = [w for w in range(workers) if own[w] and w != tight]
            owner = max(owners, key=lambda w: (own[w] + room[w], -w)) if owners else tight
            last = tight if owner != tight else (tight + 1) % workers
        given[owner][last] += 1
        own[owner] -= 1
        room[last] -= 1
    return tuple(tuple((last, share) for last, share in enumerate(row) if share) for row in given)


# ---------------------------------------------------------------------------------------------- tree


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """The sum of the gradients of virtual ranks lo..hi-1, added as the tree says."""

    lo: int
    hi: int

    def children(self) -> tuple[Node, Node]:
        """Left subtree: the largest power of two below the size; so trees of 2^i ranks are perfect."""
        middle = self.lo + (1 << ((self.hi - self.lo - 1).bit_length() - 1))
        return Node(self.lo, middle), Node(middle, self.hi)

    @property
    def leaf(self) -> bool:
        return self.hi - self.lo == 1


@lru_cache(maxsize=4096)
def tree_nodes(ranks: int, lo: int, hi: int) -> tuple[Node, ...]:
    """The fewest nodes of the tree over `ranks` whose leaves are exactly lo..hi-1, in order."""

    def cover(node: Node) -> Iterator[Node]:
        if lo <= node.lo and node.hi <= hi:
            yield node
        elif node.lo < hi and lo < node.hi:
            left, right = node.children()
            yield from cover(left)
            yield from cover(right)

    return tuple(cover(Node(0, ranks)))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return _ceil(a, b) * b
