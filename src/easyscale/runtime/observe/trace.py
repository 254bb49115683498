"""Operator by operator: digests of what goes in and comes out, with the module and the line of the script.

A dispatch mode sees each operator of the loop body, the backward included. What the engine or stock DDP does around it
(copies of buffers, buckets, sums) is not the script's and is left out: two engines can be compared line by line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from easyscale.core.observe import Observation
from easyscale.numerics.digest import digest, plain, read
from easyscale.runtime.observe.evidence import is_library, shown

Digests = list[tuple[str, torch.Tensor | None]]
MOST_OPERATORS = 200_000  # of one local step; what is beyond is left out, and said
_TORCH = os.path.dirname(torch.__file__) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_OURS = tuple(_PACKAGE + part + os.sep for part in ("runtime", "numerics"))
# A call of the script passes through these on its way to torch: gates, and layers that D2 takes apart.
_THROUGH = tuple(
    _PACKAGE + os.path.join(*path)
    for path in (
        ("runtime", "gates.py"), ("numerics", "kernels", "attention.py"), ("numerics", "kernels", "recurrent.py"),
    )
)  # fmt: skip
_UNINITIALISED = tuple(f"aten::{n}" for n in ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"))


class Tracer:
    """The traces of a worker's ESTs in one global step, written to a file for each EST."""

    def __init__(self, observation: Observation, device: torch.device) -> None:
        self._folder, self._device = observation.trace_to, device
        self._steps: dict[int, Trace] = {}
        self._current: Trace | None = None

    def prepared(self, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        self._model = model
        if self._folder is None:
            return
        self._names = {id(module): name or "the model" for name, module in model.named_modules()}
        model.register_forward_pre_hook(self._forward_begins)
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._optimizer_begins)

    @contextmanager
    def body(self, est: int, batch: Digests) -> Iterator[None]:
        trace = self._steps.setdefault(est, Trace(self._model, self._names))
        trace.note("batch", batch)
        self._current = trace
        try:
            with trace.watching():
                yield
        finally:
            self._current = None

    def write(self, step: int) -> None:
        """The step is complete: what it left, and all that was seen on the way there."""
        after = [(name, digest(parameter)) for name, parameter in self._model.named_parameters()]
        for est, trace in self._steps.items():
            trace.note("after", after)
            trace.write(path_of(Path(self._folder or "."), step, est))
        self._steps = {}

    def _forward_begins(self, module: torch.nn.Module, args: Any) -> None:
        if self._current is not None and module is self._model:
            self._current.note("buffers", [(name, digest(b)) for name, b in module.named_buffers()], once=True)

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._current is not None:
            gradients = [(n, digest(p.grad)) for n, p in self._model.named_parameters() if p.grad is not None]
            self._current.note("reduced", gradients, once=True)


def path_of(folder: Path, step: int, est: int) -> Path:
    return folder / f"step-{step}-est-{est}.jsonl"


def is_tensor(value: Any) -> bool:
    """One with bits: the stand-ins with which a compiler walks through a program have none."""
    return isinstance(value, torch.Tensor) and not is_fake(value)


class Trace:
    """One EST, one global step: lines in the order in which things happened."""

    def __init__(self, model: torch.nn.Module | None, names: dict[int, str]) -> None:
        self._names, self._model = names, model
        self._tensors = {} if model is None else tensor_names(model)
        self._lines: list[dict[str, Any]] = []
        self._waiting: list[torch.Tensor | None] = []  # digests on their device, read once at the end
        # Memory that nothing has filled yet: what lies there is chance until it has been written to as a whole. Who
        # writes a part of it is written down with what it writes, and whoever reads it with what it reads.
        self._blank: set[int | None] = set()
        self._operators = 0
        self._modules: list[str] = []
        self._made_at: dict[int, tuple[str, str]] = {}  # autograd's sequence number -> module and line of the forward

    def note(self, what: str, digests: Digests, *, once: bool = False) -> None:
        if once and any(line["what"] == what for line in self._lines):
            return
        self._lines.append({"what": what, "digests": {name: self._keep(value) for name, value in digests}})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Operators and modules of this thread, and of the backward that it starts."""
        hooks = [
            torch.nn.modules.module.register_module_forward_pre_hook(self._enter),
            torch.nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            with _Operators(self):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator and write it down, unless it is not the script's."""
        node = torch._C._current_autograd_node()
        place = self._place(node)
        if func._schema.name in _UNINITIALISED:
            output = func(*args, **kwargs)
            if is_tensor(output):
                self._blank.add(_storage(output))
            return output
        if place is None or self._operators >= MOST_OPERATORS or _says_nothing(func):
            return func(*args, **kwargs)
        self._operators += 1
        given, _ = tree_flatten((args, kwargs))
        tensors = [value for value in given if is_tensor(value)]
        names = {**self._tensors, **gradient_names(self._model)} if node is None else self._tensors
        lost = {id(value) for value in _overwritten(func, args, kwargs)}
        partly = {id(t) for t in _written(func, args, kwargs) if id(t) not in lost and _storage(t) in self._blank}
        line: dict[str, Any] = {
            "what": "operator",
            "name": str(func),
            "module": place[0],
            "line": place[1],
            "backward": node.name() if node is not None else None,
            "values": [_value(v) for v in given if isinstance(v, (bool, int, float, complex, str, torch.dtype))][:40],
            "shapes": [f"{_dtype(t)}{list(t.shape)}" for t in tensors],
            "tensors": [names.get(_address(t) or 0) for t in tensors],
            "in": [self._keep(None if id(t) in lost or id(t) in partly else digest(t)) for t in tensors],
        }
        if torch.Tag.nondeterministic_seeded in func.tags:
            line["random"] = _generator_state(given, tensors)
        output = func(*args, **kwargs)
        results = [value for value in tree_flatten(output)[0] if is_tensor(value)]
        if func._schema.is_mutable:
            known = {id(value) for value in results}
            results += [t for t in tensors if id(t) not in known]
        line["out"] = [self._keep(None if id(t) in partly else digest(t)) for t in results]
        self._blank.difference_update(_storage(t) for t in results if id(t) not in partly and _fills_storage(t))
        self._lines.append(line)
        return output

    def write(self, path: Path) -> None:
        texts = read(self._waiting)
        for line in self._lines:
            for key in ("in", "out"):
                if key in line:
                    line[key] = [texts[index] for index in line[key]]
            if "digests" in line:
                line["digests"] = {name: texts[index] for name, index in line["digests"].items()}
        if self._operators >= MOST_OPERATORS:
            self._lines.append({"what": "cut", "operators": MOST_OPERATORS})
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self._lines))
        self._lines, self._waiting = [], []

    def _keep(self, value: torch.Tensor | None) -> int:
        self._waiting.append(value)
        return len(self._waiting) - 1

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if not self._modules and id(module) not in self._names:  # a model of a script that has no es.prepare()
            self._names.update({id(part): name or type(module).__name__ for name, part in module.named_modules()})
            self._tensors.update(tensor_names(module))
            self._model = module
        self._modules.append(self._names.get(id(module)) or type(module).__name__)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._modules:
            self._modules.pop()

    def _place(self, node: Any) -> tuple[str, str] | None:
        """Module and line of an operator; None where it is not the script's."""
        if node is not None:
            if "AccumulateGrad" in node.name():  # buckets are filled and summed here, by stock DDP and by us
                return None
            return self._made_at.get(node._sequence_nr(), ("", ""))
        line = line_of_script(sys._getframe(3))  # whoever called `__torch_dispatch__`
        if line is None:
            return None
        module = self._modules[-1] if self._modules else ""
        # The newest node of the graph is this operator's, or of one before it, which was here first.
        self._made_at.setdefault(torch.autograd._get_sequence_nr() - 1, (module, line))  # type: ignore[attr-defined]
        return module, line


class _Operators(TorchDispatchMode):
    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._trace.operator(func, args, kwargs or {})


def tensor_names(model: torch.nn.Module) -> dict[int, str]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {tensor.data_ptr(): name for name, tensor in named if tensor.numel()}


def gradient_names(model: torch.nn.Module | None) -> dict[int, str]:
    """Looked up each time: gradients come and go."""
    named = [] if model is None else list(model.named_parameters())
    return {p.grad.data_ptr(): f"gradient of {name}" for name, p in named if p.grad is not None and p.grad.numel()}


def line_of_script(frame: Any) -> str | None:
    """The script's line, and the library's where one lies between it and torch. None inside the engine, or where the
    engine of a backward tidies up."""
    library = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_TORCH):
            if frame.f_code.co_name == "_engine_run_backward":
                return None
        elif name.startswith(_OURS):
            if name not in _THROUGH:
                return library or None
        elif is_library(frame):
            library = library or ("" if name.startswith("<frozen") else shown(frame))
        else:
            return f"{shown(frame)}, in {library}" if library else shown(frame)
        frame = frame.f_back
    return library or None


def _says_nothing(func: Any) -> bool:
    """Views have the bits of their base; the profiler's marks have none at all."""
    if func._schema.name.startswith(("profiler::", "prim::")):
        return True
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _overwritten(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Arguments that are written to and not read: what they held before says nothing, it may be new memory."""
    name = func._schema.name.partition("::")[2]
    random = torch.Tag.nondeterministic_seeded in func.tags
    fills = name.endswith("_") and (random or name in ("zero_", "fill_", "copy_"))
    outputs = [kwargs[a.name] for a in func._schema.arguments if a.is_out and a.name in kwargs]
    return [*args[:1], *outputs] if fills else outputs


def _address(tensor: torch.Tensor) -> int | None:
    """Where its elements lie; None for a tensor that has no memory of its own, such as a sparse one."""
    try:
        return tensor.data_ptr() if tensor.numel() else None
    except RuntimeError:
        return None


def _storage(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() if _address(tensor) is not None else None


def _fills_storage(tensor: torch.Tensor) -> bool:
    return _address(tensor) is not None and tensor.nbytes >= tensor.untyped_storage().nbytes()


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an operator changes."""
    if not func._schema.is_mutable:
        return []
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    changed = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [value for value in tree_flatten([named.get(name) for name in changed])[0] if is_tensor(value)]


def _value(value: Any) -> str:
    return str(value)[:60]


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _generator_state(given: list[Any], tensors: list[torch.Tensor]) -> str:
    """The state that a random operator is about to draw from."""
    named = next((value for value in given if isinstance(value, torch.Generator)), None)
    device = next((value for value in given if isinstance(value, torch.device)), None)
    if named is None and (device or (tensors[0].device if tensors else torch.device("cpu"))).type == "cuda":
        return plain(torch.cuda.get_rng_state().numpy().tobytes())
    return plain((named or torch.default_generator).get_state().cpu().numpy().tobytes())
