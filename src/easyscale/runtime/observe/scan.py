"""The operators of a job's first steps with their modules, levels and times (`easyscale scan`).

A dispatch mode sees each operator of the loop body, the backward included; only the operator itself is timed. Steps
after that run without it and give the time of a whole step. What was found is in a file after each step, so that a run
which fails leaves what it had seen. The numbers of a scanned run are those of any run: nothing is changed, but that an
operator which torch refuses as nondeterministic is let through once it was noted.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from easyscale.core.spec import Level
from easyscale.numerics.kernels import install
from easyscale.numerics.kernels.refusal import Refused
from easyscale.numerics.kernels.registry import DeviceKind
from easyscale.numerics.record import surroundings
from easyscale.runtime.observe.levels import Levels, Standing
from easyscale.runtime.observe.trace import line_of_script

Phase = Literal["forward", "backward", "update"]
# The first step warms up (and alone shows what happens once, as the making of an optimizer's state); the others give
# the times of operators: the shorter ones, as something else may have had the machine for a moment.
TRACED = 3
LOOP = "the loop"  # operators outside of every module: the loss, as a rule
_REFUSED_BY_TORCH = "does not have a deterministic implementation"
Key = tuple[str, Phase, str]


@dataclass(slots=True)
class Row:
    """One operator of one module in one phase."""

    standing: Standing
    line: str
    calls: int = 0
    seconds: float = 0.0
    refused: str = ""  # what D2 said, where it refused it


class Scanner:
    """One per process. Engines call it through their `Observer`."""

    def __init__(self, path: str, device: torch.device) -> None:
        self._path, self._device = Path(path), device
        self._level: Level = "D1"
        self._levels = Levels()
        self._traced: dict[int, Tally] = {}
        self._bare: dict[int, float] = {}

    def prepared(self, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        self._level = "D2" if install.is_installed() else "D1"
        self._names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
        self._kinds = {self._names[id(module)]: type(module).__name__ for module in model.modules()}
        self._updating: list[str] = []
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._update_begins)
            optimizer.register_step_post_hook(self._update_ends)

    @contextmanager
    def body(self, step: int) -> Iterator[None]:
        """The script's loop body runs inside."""
        if step >= TRACED:
            began = self._now()
            with self._tolerant():
                yield
            self._bare[step] = self._bare.get(step, 0.0) + self._now() - began
            return
        tally = self._traced.setdefault(step, Tally(self._names, self._levels, self._updating))
        try:
            with tally.watching():
                yield
        except BaseException:
            self.write()
            raise

    def step_ended(self) -> None:
        self.write()

    def write(self) -> None:
        """All that is known now, whole or not at all."""
        facts = {
            "level": self._level,
            "machine": surroundings(self._device),
            "kernels": install.status(),
            "traced": len(self._traced),
            "steps": [seconds for _, seconds in sorted(self._bare.items())],
            "operators": self._operators(),
        }
        part = self._path.with_name(f".{self._path.name}.part")
        part.write_text(json.dumps(facts))
        os.replace(part, self._path)

    def _operators(self) -> list[dict[str, Any]]:
        """Of all traced steps. Those that the last one does not have are not of every step: no calls, no time."""
        rows: dict[Key, Row] = {}
        for _, tally in sorted(self._traced.items()):
            for key, row in tally.finished().items():
                known = rows.get(key)
                rows[key] = row
                if known is not None and known.standing.level == "D0":
                    row.standing = known.standing
        last = self._traced[max(self._traced)].rows if self._traced else {}
        timed = [tally.rows for step, tally in sorted(self._traced.items()) if step > min(self._traced)] or [last]

        def seconds(key: Key) -> float:
            return min(rows[key].seconds for rows in timed if key in rows and rows[key].calls == last[key].calls)

        return [
            {
                "module": module, "kind": self._kinds.get(module, ""), "phase": phase, "operator": operator,
                "level": row.standing.level, "family": row.standing.family, "why": row.standing.why, "line": row.line,
                "refused": row.refused,
                "calls": row.calls if (module, phase, operator) in last else 0,
                "seconds": seconds((module, phase, operator)) if (module, phase, operator) in last else 0.0,
            }
            for (module, phase, operator), row in rows.items()
        ]  # fmt: skip

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        """Whole steps of a script with nondeterministic operators are timed as well."""
        if not any(row.standing.level == "D0" for tally in self._traced.values() for row in tally.rows.values()):
            yield
            return
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=f".*{_REFUSED_BY_TORCH}")
                yield
        finally:
            torch.use_deterministic_algorithms(True)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _update_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._updating.append(type(optimizer).__name__)

    def _update_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._updating:
            self._updating.pop()


class Tally:
    """The operators of one global step."""

    def __init__(self, names: dict[int, str], levels: Levels, updating: list[str]) -> None:
        self._names, self._levels, self._updating = names, levels, updating
        self.rows: dict[Key, Row] = {}
        self._modules: list[str] = []
        self._made_at: dict[int, tuple[str, str]] = {}  # autograd's sequence number -> module and line of the forward
        self._events: list[tuple[Row, Any, Any]] = []  # of a GPU, read at the end

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
            self._modules.clear()
            self._updating.clear()
            for hook in hooks:
                hook.remove()

    def finished(self) -> dict[Key, Row]:
        """With the times of a GPU, once it has come so far."""
        if self._events:
            torch.cuda.synchronize()
            for row, begin, end in self._events:
                row.seconds += begin.elapsed_time(end) / 1000.0
            self._events = []
        return self.rows

    def operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator and note its time, unless it is not the script's."""
        place = self._place(torch._C._current_autograd_node())
        if place is None or func._schema.name.startswith(("profiler::", "prim::")):
            return func(*args, **kwargs)
        module, phase, line = place
        device = _device_of(args, kwargs)
        name = str(func).removeprefix("aten.").removesuffix(".default")
        row = self.rows.get((module, phase, name))
        if row is None:
            row = self.rows[module, phase, name] = Row(self._levels.of(func, device), line)
        row.calls += 1
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            output = self._run(row, func, args, kwargs)
            end.record()
            self._events.append((row, begin, end))
            return output
        began = time.perf_counter()
        output = self._run(row, func, args, kwargs)
        row.seconds += time.perf_counter() - began
        return output

    def _run(self, row: Row, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except Refused as refusal:
            row.refused = refusal.what
            row.standing = Standing("D1", row.standing.family, "level D2 refuses it")
            raise
        except RuntimeError as problem:
            if _REFUSED_BY_TORCH not in str(problem):
                raise
        row.standing = Standing("D0", row.standing.family, "torch has no deterministic kernel of it on this device")
        torch.use_deterministic_algorithms(False)
        try:
            return func(*args, **kwargs)
        finally:
            torch.use_deterministic_algorithms(True)

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._modules.append(self._names.get(id(module)) or type(module).__name__)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._modules:
            self._modules.pop()

    def _place(self, node: Any) -> tuple[str, Phase, str] | None:
        """Module, phase and line of an operator; None where it is not the script's."""
        if node is not None:
            if "AccumulateGrad" in node.name():  # buckets are filled here, by us
                return None
            module, line = self._made_at.get(node._sequence_nr(), (LOOP, ""))
            return module, "backward", line
        found = line_of_script(sys._getframe(3))  # whoever called `__torch_dispatch__`
        if found is None:
            return None
        if self._updating:
            return self._updating[-1], "update", found
        module = self._modules[-1] if self._modules else LOOP
        # The newest node of the graph is this operator's, or of one before it, which was here first.
        newest = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        self._made_at.setdefault(newest, (module, found))
        return module, "forward", found


class _Operators(TorchDispatchMode):
    def __init__(self, tally: Tally) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tally = tally

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._tally.operator(func, args, kwargs or {})


def _device_of(args: Any, kwargs: Any) -> DeviceKind:
    for value in tree_iter((args, kwargs)):
        kind = value.device.type if isinstance(value, torch.Tensor) else getattr(value, "type", None)
        if kind == "cuda":
            return "cuda"
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return "cpu"
    return "cpu"
