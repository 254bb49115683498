"""What both engines share: identity, device, epochs, random streams between loops, the journal.

`EstSession` runs the ESTs of a worker; `ReferenceSession` is stock DistributedDataParallel with one process a rank.
A script cannot tell them apart.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from easyscale.core.errors import UnsupportedError, UsageError
from easyscale.core.messages import Done, Ready
from easyscale.core.spec import WorkerSpec
from easyscale.numerics.fingerprint import fingerprint
from easyscale.numerics.record import apply_level, leave_level
from easyscale.numerics.rng import seed_all
from easyscale.runtime.control import line_of
from easyscale.runtime.journal import Journal, OnNonFinite
from easyscale.runtime.reduce import Order
from easyscale.runtime.staging import StagingKind

if TYPE_CHECKING:
    from easyscale.runtime.d2 import Guard
    from easyscale.runtime.observe.observer import Observer


@dataclass(frozen=True, kw_only=True)
class ScriptSettings:
    """What the script says in `es.init()`."""

    seed: int
    reduction: Order = "ddp"
    staging: StagingKind = "auto"
    on_nonfinite: OnNonFinite = "warn"


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Keyword options of `es.prepare()`, with stock DDP's names and defaults where DDP has them."""

    find_unused_parameters: bool = False
    broadcast_buffers: bool = True
    bucket_cap_mb: float | None = None
    place_batches: bool = True


class Engine(ABC):
    """One per process."""

    def __init__(self, spec: WorkerSpec, settings: ScriptSettings, started: float) -> None:
        self.spec, self.settings = spec, settings
        self.world = spec.ests
        self.ests = spec.plan.range_of(spec.place)
        self.device = _device(spec)
        self.epoch, self.step = 0, 0
        self.model: torch.nn.Module | None = None
        self.line = line_of(spec)
        self.journal = Journal(spec, settings.on_nonfinite, self.line)
        self.observer = self._make_observer(spec)
        self.started = started
        self.timings: dict[str, float] = {}
        self.in_epochs = False
        self.epoch_count: int | None = None  # that es.epochs() was asked for
        self.loops = 0  # loops over prepared loaders begun in this epoch
        self.left_epochs = False  # the script broke out of es.epochs(): there is no epoch left
        self.failed = False  # the script raised: nothing more is agreed on with peers
        self.leaving = False  # a stop or hand-over is under way
        self.guard = self._guarded_level(spec)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        seed_all(settings.seed)

    def _guarded_level(self, spec: WorkerSpec) -> Guard | None:
        """Put the level in force; at D2, with what watches over it."""
        if spec.determinism != "D2":
            apply_level(spec.determinism, spec.threads)
            return None
        from easyscale.runtime.d2 import Guard

        guard = Guard(lambda text: self.journal.event("corrected", text, self.step) if spec.place == 0 else None)
        guard.look_before()
        apply_level(spec.determinism, spec.threads)
        guard.begin()
        return guard

    def level_ends(self) -> None:
        """The job is over in this process: what only it needed is taken away."""
        if self.guard is not None:
            self.guard.end()
            self.guard = None
            leave_level(self.spec.determinism)

    @property
    def random_device(self) -> torch.device:
        """The device whose generator belongs to an EST. At D2 every device draws from the CPU's, so that a context
        from any device type can be taken up on any other."""
        return torch.device("cpu") if self.spec.determinism == "D2" else self.device

    def _make_observer(self, spec: WorkerSpec) -> Observer | None:
        if spec.observation is None:
            return None
        from easyscale.runtime.observe.observer import Observer

        return Observer(spec.observation, self.journal, spec.worker, self.device)

    @property
    def is_over(self) -> bool:
        """The job was given a number of global steps, and they are done."""
        return self.spec.max_steps is not None and self.step >= self.spec.max_steps

    # -------------------------------------------------------------- what the script asks

    @abstractmethod
    def prepare(self, objects: tuple[Any, ...], options: PrepareOptions) -> list[Any]: ...

    @abstractmethod
    def rank(self) -> int: ...

    def current_est(self) -> int | None:
        """The EST whose local step runs, if one does."""
        return None

    def est_of(self, problem: BaseException) -> int | None:
        """The EST in whose local step the script raised this, if it was in one."""
        return self.current_est()

    @abstractmethod
    def register(self, name: str, target: Any, per_est: bool) -> None: ...

    @abstractmethod
    def request_checkpoint(self) -> None: ...

    @abstractmethod
    def log(self, values: dict[str, Any]) -> None: ...

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that remain."""
        self.in_epochs, self.epoch_count = True, count
        try:
            for epoch in range(self.epoch, self.epoch if self.left_epochs else count):
                self.epoch, self.loops = epoch, 0
                self.seed_between("top")
                yield epoch
                self.epoch = epoch + 1
                self.epoch_ended()
        except GeneratorExit:
            self.left_epochs = True
            raise
        finally:
            self.in_epochs = False

    # -------------------------------------------------------------- inside

    def epoch_ended(self) -> None:  # noqa: B027  nothing to do, unless an engine has something
        """The body of an epoch is over."""

    @abstractmethod
    def finish(self) -> None:
        """The script returned."""

    def ready(self) -> None:
        seconds = time.time() - self.started
        self.timings["ready"] = seconds
        self.journal.tell(Ready(worker=self.spec.worker, pid=os.getpid(), step=self.step, seconds=seconds))

    def leave(self) -> None:
        """The process ends on purpose before the script does: what was told and saved is on its way by then."""
        self.journal.flush(force=True)

    def done(self, bytes_sent: int = 0) -> None:
        self.journal.flush(force=True)
        sha = fingerprint(self.model) if self.model is not None and 0 in self.ests else None
        self.journal.tell(
            Done(worker=self.spec.worker, steps=self.step, fingerprint=sha, timings=self.timings, bytes_sent=bytes_sent)
        )

    def seed_between(self, place: str = "between") -> None:
        """Random streams for code outside the loops: the same on every worker, none of them an EST's.

        So an evaluation between epochs, on every worker or on one, leaves training's bits alone. The top of an epoch
        has a stream of its own, which a resume in the middle of that epoch meets again.
        """
        step = 0 if place == "top" else self.step
        text = f"{place}:{self.settings.seed}:{step}:{self.epoch}"
        seed_all(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))


def sort_objects(objects: tuple[Any, ...]) -> dict[str, list[Any]]:
    """Tell models, optimizers, loaders, schedulers and scalers apart; refuse what cannot be prepared."""
    from torch.amp.grad_scaler import GradScaler
    from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

    kinds: dict[str, list[Any]] = {"models": [], "optimizers": [], "loaders": [], "schedulers": [], "scalers": []}
    for thing in objects:
        if isinstance(thing, torch.nn.Module):
            kinds["models"].append(thing)
        elif isinstance(thing, torch.optim.Optimizer):
            kinds["optimizers"].append(thing)
        elif isinstance(thing, torch.utils.data.DataLoader):
            kinds["loaders"].append(thing)
        elif isinstance(thing, (LRScheduler, ReduceLROnPlateau)):
            kinds["schedulers"].append(thing)
        elif isinstance(thing, GradScaler):
            kinds["scalers"].append(thing)
        else:
            raise UsageError(
                f"es.prepare() got a {type(thing).__name__}.",
                "it prepares a model, optimizers, DataLoaders, LR schedulers and GradScalers.",
                "pass other state to es.register(name, object).",
            )
    if len(kinds["models"]) != 1:
        raise UnsupportedError(
            f"es.prepare() got {len(kinds['models'])} models.",
            "a global step is one backward of each EST through one model.",
            "pass one module that contains the others, in one call of es.prepare().",
        )
    return kinds


def refuse_unsupported(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise UnsupportedError(
                f"The model has a SyncBatchNorm ({name or 'the model itself'}).",
                "it needs the activations of all ESTs at once, and ESTs of a worker run one after the other.",
                "use BatchNorm, GroupNorm or LayerNorm (without convert_sync_batchnorm).",
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(
                f"The module {name or 'itself'} is TorchScript.",
                "its compiler rewrites a graph after its first runs, so bits depend on how often a process ran it, and "
                "workers run it for different numbers of ESTs.",
                "pass the Python module, without torch.jit.script or torch.jit.trace.",
            )
        lazy = [p for p in module.parameters(recurse=False) if torch.nn.parameter.is_lazy(p)]
        if lazy:
            raise UnsupportedError(
                f"The module {name or 'itself'} is lazy: its parameters have no shape yet.",
                "buckets and sums are laid out by shape; stock DDP refuses it too.",
                "run one forward on a sample batch before es.prepare().",
            )
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            raise UnsupportedError(
                f"The embedding {name} was built with sparse=True.",
                "sparse gradients have no fixed layout, so their sum has no fixed order.",
                "build it with sparse=False.",
            )


def place(batch: Any, device: torch.device) -> Any:
    """Tensors of a batch to the device, containers kept; nothing to do on a CPU."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({key: place(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(place(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(place(value, device) for value in batch)
    return batch


def batch_size(batch: Any) -> int:
    """Samples in a batch, 0 where it is not obvious."""
    while isinstance(batch, (list, tuple, dict)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return int(batch.shape[0]) if isinstance(batch, torch.Tensor) and batch.dim() else 0


def attach(model: torch.nn.Module, before: Callable[[Any, Any], None], after: Callable[[Any], Any]) -> None:
    """Call `before` and `after` each forward of this very model (not of a deep copy of it).

    Plain functions: a deep copy of the model shares them instead of copying what they belong to. A model that was
    compiled in place (`model.compile()`) is called from outside, as DDP calls it, because the compiler takes a module
    with hooks another way: it would compile a `Sequential`, which it leaves alone under stock DDP.
    """

    def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if module is model:
            before(args, kwargs)

    def leave(module: torch.nn.Module, args: Any, output: Any) -> Any:
        return after(output) if module is model else None

    if model._compiled_call_impl is None:
        model.register_forward_pre_hook(_untraced(enter), prepend=True, with_kwargs=True)
        model.register_forward_hook(_untraced(leave))
    else:
        _surround(model, model._compiled_call_impl, _untraced(enter), _untraced(leave))


def _surround(
    model: torch.nn.Module, compiled: Callable[..., Any], enter: Callable[..., None], leave: Callable[..., Any]
) -> None:
    """Put them around the compiled call, which torch leaves out of copies of the model."""

    def call(*args: Any, **kwargs: Any) -> Any:
        enter(model, args, kwargs)
        output = compiled(*args, **kwargs)
        changed = leave(model, args, output)
        return output if changed is None else changed

    def again(*_args: Any, **_options: Any) -> None:
        raise UsageError(
            "model.compile() was called again after es.prepare(), on the model or on a copy of it.",
            "the model was compiled when it was prepared, and another compiled call would go round EasyScale.",
            "call model.compile() once, with its final options, before es.prepare().",
        )

    model._compiled_call_impl = call
    model.compile = again  # type: ignore[method-assign]


def give_no_sync(model: torch.nn.Module, owner: Any) -> None:
    """`model.no_sync()`. A plain function: a deep copy of the model must not copy what it belongs to."""

    def no_sync() -> Any:
        return owner.no_sync()

    model.no_sync = no_sync  # type: ignore[assignment]


def _untraced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile out of a hook, without importing the compiler (seconds) where nobody compiles."""
    if "torch._dynamo" in sys.modules:
        return torch.compiler.disable(hook)  # type: ignore[no-any-return]
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return hook


def device_name(device: torch.device) -> str:
    """What a device is called by those who plan."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _device(spec: WorkerSpec) -> torch.device:
    kind = spec.device_here
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(
                "--device cuda was asked for, but torch sees no GPU.",
                "torch.cuda.is_available() is False on this machine.",
                "use --device cpu, or install a CUDA build of torch and check nvidia-smi.",
            )
        return torch.device("cuda", spec.gpu_number % torch.cuda.device_count())
    try:
        device = torch.device(kind)
    except RuntimeError:
        raise UsageError(f"There is no device {kind!r}.", "torch does not know it.", "use auto, cpu or cuda.") from None
    if spec.determinism == "D2" and device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"Level D2 has no operators for the device {kind!r}.",
            "its definitions are implemented for CPUs and for GPUs with CUDA.",
            "use --device cpu or cuda, or --determinism D1.",
        )
    return device
