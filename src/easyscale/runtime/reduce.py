"""From the gradients of each EST to the reduced gradient that stock DDP would leave in `p.grad`.

Hooks on the parameters follow each backward. After the backward of an EST that is not the worker's last, its gradients
are scaled by 1/N into rows that wait in `staging` or `folding`, and `p.grad` becomes None. During the backward of the
last EST, bucket after bucket is summed over all virtual ranks (`sums`) as soon as its gradients are there; after it,
`p.grad` holds the result. Buckets follow `numerics.buckets`; what stock DDP leaves alone is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch

from easyscale.core.errors import LoopError, UnsupportedError, UnusedParameterError, WorkerLostError
from easyscale.core.plan import Plan
from easyscale.numerics.buckets import BucketMap, bucket_limits, first_buckets, rebuilt_buckets
from easyscale.numerics.order import tree_nodes
from easyscale.runtime.folding import Folding
from easyscale.runtime.group import Group
from easyscale.runtime.layout import Bucket, lay_out
from easyscale.runtime.scaling import scale_into, scaled
from easyscale.runtime.staging import Staging, StagingKind
from easyscale.runtime.sums import TreeNodes, chain_sum, tree_sum

Order = Literal["ddp", "tree"]


@dataclass(frozen=True, kw_only=True)
class ReductionSettings:
    """Choices of a job; all but `staging` decide bits and are part of its record."""

    order: Order = "ddp"
    staging: StagingKind = "auto"
    bucket_cap_mb: float | None = None  # None: stock DDP's default, 1 MiB for the first bucket and 25 for others
    find_unused_parameters: bool = False


class Reducer:
    """One per worker. The session calls `use_plan`, `begin`, `arm` and `end`; autograd calls the hooks."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        world: int,
        settings: ReductionSettings,
        device: torch.device,
    ) -> None:
        self._names, self.parameters, self.world = names, parameters, world
        self._settings, self._device = settings, device
        self._thread: ThreadPoolExecutor | None = None
        self.ests = range(0)
        self._staging = Staging(settings.staging, device, range(0), sums_on_host=False)
        self.ready: list[int] | None = None  # rank 0's order of gradients, once known
        self._recorded: list[int] = []
        self._folding: Folding | None = None
        self._aside: list[int] = []  # ESTs whose gradients of this round wait in their rows
        self._lost: WorkerLostError | None = None
        self._use(first_buckets(parameters, bucket_limits(settings.bucket_cap_mb), settings.find_unused_parameters))
        self._est: int | None = None
        self._follows = False  # this backward's gradients are followed one by one
        self._phase: Literal["idle", "waiting", "backward", "done"] = "idle"
        self._armed = self.accumulated = False
        self.on_backward_ended: Callable[[], None] = lambda: None  # after the last of a round, sums are waited for
        self.on_reduced: Callable[[], None] = lambda: None  # p.grad holds the reduced gradient
        # All sums are there; nothing has been written yet.
        self.before_commit: Callable[[], None] = lambda: None
        # A peer was lost before all sums were there. Returns whether to sum again, on the plan that is in force then;
        # else the gradients stay set aside.
        self.on_lost: Callable[[WorkerLostError], bool] = _give_up
        # On the nodes, as DDP's: they run after all hooks of the script's. Kept, because they hold the hooks.
        self._nodes = [torch.autograd.graph.get_gradient_edge(p).node for p in parameters]
        self._hooks = [node.register_hook(self._hook(i)) for i, node in enumerate(self._nodes)]

    def use_plan(self, split: tuple[int, ...], group: Group) -> None:
        """Which ESTs are this worker's, and its peers. In the middle of a round, rows that were set aside stay."""
        assert sum(split) == self.world
        self._split, self._group = split, group
        self.ests = Plan(split).range_of(group.worker)
        self._remote = group.workers > 1
        self._direct = group.workers == self.world and self._settings.order == "ddp"
        sums_on_host = self._remote and not self._direct
        kind = "device" if self._direct else self._settings.staging
        former = self._staging
        self._staging = Staging(kind, self._device, self.ests, sums_on_host=sums_on_host)
        self._host_sums = sums_on_host and self._device.type == "cuda"
        self._covers = [tree_nodes(self.world, r.start, r.stop) for r in Plan(split).ranges()]
        if sums_on_host and self._thread is None:
            self._thread = ThreadPoolExecutor(1, "easyscale-reduce")
        # Starting early pays where a sum runs beside the backward: with peers, or on a GPU.
        self._early = self._remote or self._device.type == "cuda"
        self._folding = None
        self._views.clear()
        if self._aside and self._settings.order == "ddp":
            self._staging.choose(self.gradient_bytes)
            self._staging.take_over(former, len(self._buckets), self._aside)

    @property
    def gradient_bytes(self) -> int:
        return sum(b.elements * b.dtype.itemsize for b in self._buckets)

    # ------------------------------------------------------------------ the rhythm of a local step

    def begin(self, est: int, *, first: bool, last: bool, ghost: bool = False) -> None:
        """A local step of `est` begins: the `first` or `last` of this worker's in the round. `ghost`: it is run again
        only for what it leaves in the EST's context; its gradients were counted already."""
        self._est, self._phase, self._armed = est, "waiting", False
        self.is_last, self._ghost = last and not ghost, ghost
        self.accumulated = False  # a backward under `no_sync` left gradients in p.grad
        self._arrived: set[int] = set()
        self._waiting = [len(bucket.places) for bucket in self._buckets]
        self._next = 0
        self._results: dict[int, Callable[[], torch.Tensor]] = {}
        if first:
            self._aside = []

    def arm(self, synchronise: bool) -> None:
        """A forward with gradients ended: its backward will count, unless it ran under `no_sync`."""
        self._armed = synchronise

    @property
    def synchronised(self) -> bool:
        """The current local step has had its backward, and it was not under `no_sync`."""
        return self._phase == "done"

    def end(self) -> None:
        self._est, self._phase, self._armed = None, "idle", False

    # ------------------------------------------------------------------ buckets

    def recorded_order(self) -> list[int]:
        """The order seen in EST 0's first backward; empty on workers that do not hold EST 0."""
        return list(self._recorded)

    def rebuild(self, ready: Sequence[int]) -> None:
        """Once, after the first global step (or from a checkpoint): buckets in the recorded order."""
        if self._settings.find_unused_parameters:
            self.ready = []
            return
        self.ready = list(ready)
        self._use(rebuilt_buckets(self.parameters, bucket_limits(self._settings.bucket_cap_mb), ready))

    @property
    def bucket_map(self) -> BucketMap:
        return [[place.index for place in bucket.places] for bucket in self._buckets]

    def _use(self, buckets: BucketMap) -> None:
        self._buckets = [lay_out(self.parameters, indices) for indices in buckets]
        self._home = {place.index: b for b, bucket in enumerate(self._buckets) for place in bucket.places}
        self._views: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._staging.reset()
        self._aside = []
        if self._folding is not None:
            self._folding.use([(bucket.elements, bucket.dtype) for bucket in self._buckets])
        self._trees = [TreeNodes(self.world) for _ in self._buckets]
        self._used = torch.zeros(len(self.parameters), dtype=torch.int32)

    # ------------------------------------------------------------------ hooks

    def _hook(self, index: int) -> Callable[..., None]:
        def gradient_is_there(*_: Any) -> None:
            if self._phase != "backward" or index in self._arrived:
                self._unusual(index)
            else:  # all but one call of a backward: short, since it runs for each parameter of each local step
                self._arrived.add(index)
                if self._follows:
                    self._follow(index)

        return gradient_is_there

    def _unusual(self, index: int) -> None:
        """The first gradient of a backward, one that only accumulates, or one that should not be."""
        if self._est is None:
            raise LoopError(
                "backward() was called outside the loop over the prepared loader.",
                "gradients belong to the local step of an EST, and none is running.",
                "move the backward into the loop, or use torch.autograd.grad(), which leaves p.grad alone.",
            )
        if self._phase == "done":
            raise LoopError(
                f"A second backward() reached the parameters in one local step (EST {self._est}).",
                "its gradients were already set aside for the reduction; stock DDP would not reduce the second one.",
                "add the losses and call backward() once, or wrap the first ones in `with model.no_sync():`.",
            )
        if not self._armed:
            self.accumulated = True
            self._used[index] = 1
            return
        if self._phase == "waiting":
            self._phase = "backward"
            if self.is_last and set(self.ests) - {*self._aside, self._est}:
                self._refuse_missing_ests()
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)
        if index in self._arrived:
            raise UnsupportedError(
                f"The gradient of {self._names[index]} became ready twice in one backward.",
                "re-entrant activation checkpointing of a shared module does that; stock DDP refuses it too.",
                "use torch.utils.checkpoint with use_reentrant=False.",
            )
        early = self._early and self.world > 1 and self.is_last
        records = self.ready is None and self._est == 0
        self._follows = early or records
        self._arrived.add(index)
        if self._follows:
            self._follow(index)

    def _follow(self, index: int) -> None:
        """A gradient is there, and it matters when."""
        if self.ready is None and self._est == 0:
            self._recorded.append(index)
        if self._early and self.world > 1 and self.is_last:
            self._waiting[self._home[index]] -= 1
            while self._next < len(self._buckets) and self._waiting[self._next] == 0:
                self._launch(self._next)

    def _gradient(self, index: int) -> torch.Tensor | None:
        grad = self.parameters[index].grad
        if grad is not None and grad.layout is not torch.strided:
            raise UnsupportedError(
                f"{self._names[index]} has a sparse gradient.",
                "sparse gradients have no fixed layout, so their sum has no fixed order.",
                "build the embedding with sparse=False.",
            )
        return grad

    def _backward_ended(self) -> None:
        if len(self._arrived) < len(self.parameters) and not self._settings.find_unused_parameters:
            self._refuse_unused()
        self._armed = False
        if not self._ghost:
            self.on_backward_ended()
        if self.world > 1:
            self._set_aside_or_reduce()
        else:
            for index in self._arrived:
                self._gradient(index)
        self._phase = "done"

    def _set_aside_or_reduce(self) -> None:
        if self._ghost:
            self._forget_gradients()
            return
        if self._settings.find_unused_parameters:
            self._used[list(self._arrived)] = 1
        self._choose_staging()
        if not self.is_last:
            self._set_aside()
            self._aside.append(self._est if self._est is not None else -1)
        elif self._reduce():
            self.on_reduced()

    def _forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _refuse_missing_ests(self) -> None:
        missing = [est for est in self.ests if est not in self._aside and est != self._est]
        raise LoopError(
            f"EST {self._est} calls backward(), but ESTs {missing} did not in this global step.",
            "every EST takes part in every global step; stock DDP would hang here.",
            "call backward() for each batch, or for none (multiply the loss by 0 to leave a batch out).",
        )

    def _refuse_unused(self) -> None:
        missing = [n for i, n in enumerate(self._names) if i not in self._arrived]
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise UnusedParameterError(
            f"In a local step of EST {self._est}, {len(missing)} parameters got no gradient: {shown}.",
            "the sum over all ESTs would miss them; stock DDP fails in its next forward.",
            "use them in the loss, set requires_grad=False, or pass find_unused_parameters=True to es.prepare().",
        )

    # ------------------------------------------------------------------ setting aside

    def _choose_staging(self) -> None:
        self._staging.choose(self.gradient_bytes)
        alone = not self._remote and self._settings.order == "ddp"
        if self._folding is None and alone and self._staging.on_host and not self._aside:
            self._folding = Folding(self._device, self.world)
            self._folding.use([(bucket.elements, bucket.dtype) for bucket in self._buckets])

    def _set_aside(self) -> None:
        flats = [self._fill(b) for b in range(len(self._buckets))]
        self._forget_gradients()
        if self._folding is not None:
            assert self._est is not None
            self._folding.put(self._est, flats)

    @torch.no_grad()
    def _fill(self, b: int) -> torch.Tensor:
        """Scale this EST's gradients of one bucket by 1/N into its row (stock DDP multiplies, then sums)."""
        assert self._est is not None
        bucket, est = self._buckets[b], self._est
        grads = [self._gradient(place.index) for place in bucket.places]
        factor = 1.0 / self.world
        if self._settings.order == "tree" or self._folding is not None:
            flat = scaled(bucket, grads, factor, self._device)
        else:
            flat = self._staging.open(b, est, bucket.elements, bucket.dtype)
            scale_into(self._row_views(b, est, flat), grads, flat, factor)
        if self._settings.order == "tree":
            self._trees[b].put(est, flat)
        elif not self._direct and self._folding is None:
            self._staging.close(b, est, flat)
        return flat

    def _row_views(self, b: int, est: int, flat: torch.Tensor) -> list[torch.Tensor]:
        if self._staging.on_host:  # a new device buffer each time
            return [place.view(flat) for place in self._buckets[b].places]
        if (b, est) not in self._views:
            self._views[b, est] = [place.view(flat) for place in self._buckets[b].places]
        return self._views[b, est]

    # ------------------------------------------------------------------ the sum

    def _launch(self, b: int) -> None:
        """The last EST's gradients of bucket b are there: start its sum. Same order on all workers."""
        assert b == self._next
        self._next += 1
        self._choose_staging()
        flat = self._fill(b)
        if self._folding is not None:
            total = self._folding.finish(b, flat)
            self._results[b] = lambda: total
        else:
            self._start_sum(b)

    def _start_sum(self, b: int) -> None:
        """Over the rows of bucket b, all of which are there. A peer that is lost already is heard of in `_reduce`."""
        if self._lost is not None:
            return
        try:
            if self._direct:
                flat = self._staging.rows(b)[0]
                wait = self._group.all_reduce(flat)
                self._results[b] = lambda: (wait(), flat)[1]
            elif self._remote:
                self._sum_on_thread(b)
            else:
                with self._staging.beside():
                    total = self._sum_alone(b)
                self._results[b] = lambda: total
        except WorkerLostError as problem:
            self._lost = problem

    def _sum_on_thread(self, b: int) -> None:
        assert self._thread is not None
        done = torch.cuda.Event() if self._host_sums else None
        nodes = self._nodes_for_peers(b)
        if done is not None:
            done.record(self._staging.stream)
        future: Future[torch.Tensor] = self._thread.submit(self._sum_with_peers, b, nodes, done)
        self._results[b] = future.result

    def _nodes_for_peers(self, b: int) -> Any:
        if self._settings.order != "tree":
            return None
        nodes = dict(self._trees[b].held)
        if not self._host_sums:
            return nodes
        with self._staging.beside():
            for tensor in nodes.values():
                tensor.record_stream(self._staging.stream)
            return {node: tensor.to("cpu", non_blocking=True) for node, tensor in nodes.items()}

    def _sum_with_peers(self, b: int, nodes: Any, copied: Any) -> torch.Tensor:
        if copied is not None:
            copied.synchronize()  # on the reduction's own thread: the host runs ahead meanwhile
        if nodes is not None:
            return tree_sum(nodes, self._covers, self._group)
        return chain_sum(self._staging.rows(b), self._split, self._group)

    def _sum_alone(self, b: int) -> torch.Tensor:
        if self._settings.order == "tree":
            return tree_sum(self._trees[b].held, self._covers, self._group)
        if self._staging.on_host:  # rows that were set aside when there were peers: see `use_plan`
            self._staging.stream.synchronize()
        return chain_sum(self._staging.rows(b), self._split, self._group)

    @torch.no_grad()
    def _reduce(self) -> bool:
        """Whether p.grad holds the sums now. If not, a peer was lost, and this EST's gradients wait with the others."""
        while self._next < len(self._buckets):
            self._launch(self._next)
        while True:
            try:
                totals, unused = self._totals()
                self.before_commit()
                break
            except WorkerLostError as problem:
                self._let_go()
                if not self.on_lost(problem):
                    self._forget_gradients()
                    self.is_last = False
                    return False
                for b in range(len(self._buckets)):
                    self._start_sum(b)
        for bucket, total in zip(self._buckets, totals, strict=True):
            self._write(bucket, total, unused)
        for tree in self._trees:
            tree.clear()
        self._used.zero_()
        self._aside = []  # summed: the next plan needs no rows of this round
        return True

    def _totals(self) -> tuple[list[torch.Tensor], set[int]]:
        """The sum of each bucket, on the device, and the parameters that no EST has used."""
        if self._lost is not None:
            raise self._lost
        unused = self._unused_everywhere()
        (self._folding or self._staging).join()
        totals = []
        for b in range(len(self._buckets)):
            total = self._results[b]()
            if total.device != self._device:
                total = total.to(self._device, non_blocking=True)
            elif self._staging.stream is not None:
                total.record_stream(torch.cuda.current_stream(self._device))
            totals.append(total)
        self._results = {}
        return totals, unused

    def _let_go(self) -> None:
        """Nobody works on the rows any more, and they are what they were: all-reduces in place have spoilt theirs."""
        assert self._est is not None
        self._group.sever()
        for wait in self._results.values():
            with suppress(WorkerLostError):
                wait()
        self._results, self._lost = {}, None
        if self._direct:
            for b in range(len(self._buckets)):
                self._fill(b)
        if self._est not in self._aside:
            self._aside.append(self._est)

    def _unused_everywhere(self) -> set[int]:
        if not self._settings.find_unused_parameters:
            return set()
        used = self._used.clone()  # a sum that breaks off would spoil it
        self._group.all_reduce(used)()
        return set((used == 0).nonzero().flatten().tolist())

    def _write(self, bucket: Bucket, total: torch.Tensor, unused: set[int]) -> None:
        """Stock DDP copies into the gradient that is there, or makes one of the parameter's layout."""
        targets, sources = [], []
        for place in bucket.places:
            if place.index in unused:
                continue
            parameter = self.parameters[place.index]
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter, memory_format=torch.preserve_format)
            targets.append(parameter.grad)
            sources.append(place.view(total))
        if targets:
            torch._foreach_copy_(targets, sources)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def _give_up(problem: WorkerLostError) -> bool:
    raise problem
