"""Carrying out a sum: the chain of stock DDP or the binary tree, over the rows of one bucket.

The orders themselves are data of `numerics.order`; here they meet tensors and peers. Elementwise additions only, so the
device, the number of threads and the cut into pieces cannot change a bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from easyscale.numerics.order import Local, Node, chain_program
from easyscale.runtime.group import Group


def chain_sum(rows: Sequence[torch.Tensor], split: tuple[int, ...], group: Group) -> torch.Tensor:
    """The sum over all virtual ranks, in Gloo's ring order. `rows` are this worker's ESTs, in order."""
    if rows[0].is_complex():  # Gloo sums pairs of real numbers
        flat = chain_sum([torch.view_as_real(row).view(-1) for row in rows], split, group)
        return torch.view_as_complex(flat.view(-1, 2))
    worker = group.worker
    first = sum(split[:worker])
    acc = torch.empty_like(rows[0])
    unfinished = []
    for step in chain_program(acc.numel(), acc.element_size(), split, worker):
        part = acc[step.lo : step.hi]
        if isinstance(step, Local):
            row = rows[step.est - first][step.lo : step.hi]
            if step.op == "copy":
                part.copy_(row)
            else:
                part.add_(row)
        elif step.op == "send":
            source = part if step.est is None else rows[step.est - first][step.lo : step.hi]
            unfinished.append(group.send(source, step.peer, step.tag))
        elif step.op == "recv":
            group.receive(part, step.peer, step.tag)
        else:
            came = torch.empty_like(part)
            group.receive(came, step.peer, step.tag)
            part.add_(came)
    for wait in unfinished:
        wait()
    return acc


class TreeNodes:
    """Partial sums of one bucket: two nodes become their parent as soon as both are there, in whatever order they come.

    ESTs that run in order leave at most one tensor per level of the tree, O(log k) in all.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.held: dict[Node, torch.Tensor] = {}

    def put(self, est: int, flat: torch.Tensor) -> None:
        node, total = Node(est, est + 1), flat
        while (pair := _pair_of(self._ranks, node)) is not None:
            left, right, parent = pair
            other = self.held.pop(right if node == left else left, None)
            if other is None:
                break
            node, total = parent, other.add_(total)
        self.held[node] = total

    def clear(self) -> None:
        self.held = {}


def tree_sum(nodes: Mapping[Node, torch.Tensor], covers: Sequence[Sequence[Node]], group: Group) -> torch.Tensor:
    """Sum the nodes of all workers as the tree says. `covers[w]` are the nodes that worker w holds."""
    flat = next(iter(nodes.values()))
    ranks = covers[-1][-1].hi
    if group.workers == 1:
        return nodes[Node(0, ranks)]
    elements, me = flat.numel(), group.worker
    bounds = [elements * w // group.workers for w in range(group.workers + 1)]
    waits = [
        group.send(nodes[node][bounds[peer] : bounds[peer + 1]], peer, 20000 + i)
        for peer in _others(group)
        for i, node in enumerate(covers[me])
        if bounds[peer] < bounds[peer + 1]
    ]
    lo, hi = bounds[me], bounds[me + 1]
    mine = {node: tensor[lo:hi] for node, tensor in nodes.items()}
    for peer in _others(group):
        for i, node in enumerate(covers[peer]):
            mine[node] = torch.empty(hi - lo, dtype=flat.dtype)
            if lo < hi:
                group.receive(mine[node], peer, 20000 + i)
    for wait in waits:
        wait()
    total = torch.empty_like(flat)
    total[lo:hi] = _fold(Node(0, ranks), mine)
    _all_gather(total, bounds, group)
    return total


def _fold(node: Node, known: Mapping[Node, torch.Tensor]) -> torch.Tensor:
    if node in known:
        return known[node]
    left, right = node.children()
    return _fold(left, known) + _fold(right, known)


def _all_gather(flat: torch.Tensor, bounds: Sequence[int], group: Group) -> None:
    """A ring: each worker passes on what it got in the round before."""
    right, left = (group.worker + 1) % group.workers, (group.worker - 1) % group.workers
    for hop in range(group.workers - 1):
        out, into = (group.worker - hop) % group.workers, (group.worker - hop - 1) % group.workers
        wait = None
        if bounds[out] < bounds[out + 1]:
            wait = group.send(flat[bounds[out] : bounds[out + 1]], right, 30000 + hop)
        if bounds[into] < bounds[into + 1]:
            group.receive(flat[bounds[into] : bounds[into + 1]], left, 30000 + hop)
        if wait is not None:
            wait()


def _others(group: Group) -> list[int]:
    return [w for w in range(group.workers) if w != group.worker]


def _pair_of(ranks: int, node: Node) -> tuple[Node, Node, Node] | None:
    """The two children of a node's parent, and the parent; None for the root."""
    parent = Node(0, ranks)
    while not parent.leaf and node != parent:
        left, right = parent.children()
        if node in (left, right):
            return left, right, parent
        parent = left if node.hi <= left.hi else right
    return None
