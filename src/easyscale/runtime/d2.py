"""What a D2 job watches over in its process, besides the operators that `numerics.kernels.install` puts in force.

Ways round those operators are closed or corrected, and said: generated code (`torch.compile`'s Inductor, TorchScript's
optimizer), optimizers' fused updates, kernels of scripts and extensions, flags that the script switches, parameters of
a type that D2 does not have, the model's memory in NumPy's hands. Everything is put back when the job is over.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from easyscale.core.errors import UnsupportedError
from easyscale.numerics.kernels import install, weights
from easyscale.numerics.kernels.refusal import caller, refuse
from easyscale.numerics.kernels.switches import SWITCHES

# Namespaces of operators that torch itself brings: they move data, describe programs, or serve code generators that a
# D2 job does not use. What is computed in them on plain tensors comes from `aten`.
_STOCK = (
    "aten prim prims profiler c10d symm_mem _c10d_functional _c10d_functional_autograd c10d_functional debugprims "
    "rngprims inductor inductor_prims debug_mode_ops export _dtensor _native _test quantized _quantized quantization "
    "static_runtime onednn mkldnn_prepacked sparse mkl mkldnn fsdp streams dist_autograd higher_order"
)
STOCK = frozenset([*_STOCK.split(), "easyscale"])  # and ours
# TorchScript's optimizer rewrites a graph, and its derivative, after the first runs of a function: bits then depend on
# how often a process has called it. Its fusers generate code.
_SCRIPT = (
    ("_get_graph_executor_optimize", "_set_graph_executor_optimize"),
    ("_jit_texpr_fuser_enabled", "_jit_set_texpr_fuser_enabled"),
    ("_jit_can_fuse_on_gpu", "_jit_override_can_fuse_on_gpu"),
    ("_jit_can_fuse_on_cpu", "_jit_override_can_fuse_on_cpu"),
)

_OURS, _TORCH = (f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))


class Guard:
    """One per process, from `es.init()` to the end of the job. `tell` shows a sentence to the user; each once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._show = tell
        self._told: set[str] = set()
        self._model: torch.nn.Module | None = None
        self._refused: set[str] = set()
        self._seen: tuple[int, ...] = ()
        self._libraries: list[torch.library.Library] = []
        self._undo: list[Callable[[], Any]] = []

    def look_before(self) -> None:
        """Before the operators are put in force, which also sets these flags: what the script asked for is said."""
        for switch in SWITCHES:
            value = switch.read()
            if switch.by_wish and value != switch.wanted:
                self._tell(f"{switch.name} is {value}; level D2 makes it {switch.wanted}: {switch.why}.")

    def _tell(self, sentence: str) -> None:
        """Once: a script that switches a flag in its loop does so in every step."""
        if sentence not in self._told:
            self._told.add(sentence)
            self._show(sentence)

    def begin(self) -> None:
        self._compile_without_inductor()
        for read, write in _SCRIPT:
            if hasattr(torch._C, read) and hasattr(torch._C, write):
                self._leave_unoptimized(getattr(torch._C, read)(), getattr(torch._C, write))
        self._watch_numpy()
        self._watch_kernels()
        self.refuse_extensions()

    def prepared(
        self, model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer], shared: bool = False
    ) -> None:
        """`shared`: several ESTs use the model, so slices of its weights are kept during a global step."""
        self._model = model
        refuse_types(model)
        refuse_device_generators(model)
        for optimizer in optimizers:
            for sentence in plain_updates(optimizer):
                self._tell(sentence)
        if shared:
            weights.declare(model.parameters())
        self.check()

    def check(self) -> None:
        """After the script's set-up, and after each global step: flags as they must be, no new extension."""
        weights.forget()
        for sentence in install.correct():
            self._tell(sentence)
        self.refuse_extensions()

    def end(self) -> None:
        weights.end()
        for undo in reversed(self._undo):
            undo()
        for library in self._libraries:
            library._destroy()
        self._undo, self._libraries, self._model = [], [], None

    # ------------------------------------------------------------------ operators of extensions

    def refuse_extensions(self) -> None:
        """Kernels of operators outside torch's own refuse from here on. A composite of torch's operators may stay."""
        if self._seen == _registrations():
            return
        names = torch._C._dispatch_get_all_op_names()
        found = [n for n in names if n.partition("::")[0] not in STOCK and n not in self._refused and _has_kernel(n)]
        for name in found:
            self._refused.add(name)
            space, _, rest = name.partition("::")
            library = torch.library.Library(space, "IMPL")  # kept as long as it is in force
            self._libraries.append(library)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch says that a kernel is replaced: that is the point
                for key in ("CPU", "CUDA"):
                    # torch before 2.13 does not replace a kernel that Python has registered, unless it is told to
                    library.impl(rest, _refusing(name), key, allow_override=True)
        self._seen = _registrations()

    def _watch_kernels(self) -> None:
        """A kernel that the script puts in place of one of ours would be called from then on."""
        library: Any = torch.library.Library
        stock = library.impl

        def impl(self_: Any, name: Any, function: Any, key: str = "", *args: Any, **options: Any) -> Any:
            ours = _is_ours()
            if not ours and self_.ns == "aten" and (key or self_.dispatch_key) in ("CPU", "CUDA"):
                raise UnsupportedError(
                    f"The script registers a kernel of its own for torch's operator {name} ({caller()}).",
                    "at level D2 torch's operators have one definition, and this kernel would take its place.",
                    "leave it out, or use --determinism D1 (one device type).",
                )
            stock(self_, name, function, key, *args, **options)
            if not ours and self_.ns not in STOCK:
                self._refused = {known for known in self._refused if not known.startswith(f"{self_.ns}::")}
                self.refuse_extensions()

        library.impl = impl
        self._undo.append(lambda: setattr(library, "impl", stock))

    # ------------------------------------------------------------------ generated code

    def _leave_unoptimized(self, before: bool, write: Callable[[bool], Any]) -> None:
        write(False)
        self._undo.append(lambda: write(before))

    def _compile_without_inductor(self) -> None:
        """`torch.compile` keeps its graphs and runs them operator by operator: code of its own has other bits."""
        wrapper: Any = torch._TorchCompileInductorWrapper
        stock = wrapper.__call__
        told = False

        def call(compiler: Any, graph: Any, inputs: Any, **options: Any) -> Any:
            nonlocal told
            from torch._dynamo.backends.debugging import aot_eager

            if not told:
                told = True
                self._tell(
                    "torch.compile uses the backend aot_eager instead of inductor: kernels that Inductor generates "
                    "differ between device types, and level D2 promises that bits do not."
                )
            return aot_eager(graph, inputs)

        wrapper.__call__ = call
        self._undo.append(lambda: setattr(wrapper, "__call__", stock))
        if "torch._dynamo" in sys.modules:
            _leave_kernels_to_python()
        compile_ = torch.compile

        def compiling(*args: Any, **options: Any) -> Any:
            _leave_kernels_to_python()
            return compile_(*args, **options)

        torch.compile = compiling
        self._undo.append(lambda: setattr(torch, "compile", compile_))

    # ------------------------------------------------------------------ NumPy

    def _watch_numpy(self) -> None:
        """Its operators are nobody's definition. What it shares memory with is handed out to be read; what it is given
        while the model computes is said."""
        stock = torch.Tensor.numpy

        def numpy(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            array = stock(tensor, *args, **options)
            if self._model is None or not (tensor.is_floating_point() or tensor.is_complex()) or _is_ours():
                return array
            if _shares_memory(tensor, self._model):
                array.flags.writeable = False  # a write then fails at its line, and `failures` says why
                return array
            if _is_computing(self._model):
                self._tell(
                    f"NumPy is given a tensor while the model computes ({caller()}). What NumPy computes may differ "
                    "between device types, and level D2 cannot see it. If the result goes into the model, write it "
                    "with torch's operators; if it is only looked at, all is well."
                )
            return array

        torch.Tensor.numpy = numpy  # type: ignore[assignment,method-assign]
        self._undo.append(lambda: delattr(torch.Tensor, "numpy"))  # it was inherited


def _leave_kernels_to_python() -> None:
    """Our kernels run below the graphs of torch.compile. Before torch 2.13 its tracer looks into them, and gives up."""
    from torch._dynamo import trace_rules

    trace_rules.add("easyscale.numerics")


def refuse_types(model: torch.nn.Module) -> None:
    """D2's products are of fp32, bf16 and fp16."""
    for name, parameter in model.named_parameters():
        if parameter.is_complex() or parameter.dtype == torch.float64:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise UnsupportedError(
                f"The parameter {name} is {kind}, which level D2 does not have.",
                "its products and convolutions are defined for fp32, bf16 and fp16.",
                "train in fp32 (model.float()), or use --determinism D1 (one device type).",
            )


def refuse_device_generators(model: torch.nn.Module) -> None:
    """A generator on a GPU has a state that a worker on a CPU cannot take up."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Generator) and value.device.type != "cpu":
                raise UnsupportedError(
                    f"The generator {f'{name}.{key}'.lstrip('.')} is on {value.device}.",
                    "level D2 draws all random numbers from generators on the CPU, which every device type has.",
                    "make it with torch.Generator() and no device.",
                )


def plain_updates(optimizer: torch.optim.Optimizer) -> list[str]:
    """One update a parameter: `foreach` and `fused` round differently. A sentence for each that was asked for."""
    asked = []
    for settings in (optimizer.defaults, *optimizer.param_groups):
        for name in ("foreach", "fused"):
            if name in settings and settings[name] is not False:
                asked += [name] if settings[name] else []
                settings[name] = False
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]  # else GradScaler leaves it to fused
    kind = type(optimizer).__name__
    return [
        f"{kind}({name}=True) runs with {name}=False: its update rounds differently, and level D2 has one form of each."
        for name in dict.fromkeys(asked)
    ]


def _registrations() -> tuple[int, ...]:
    """Changes whenever an operator may have come: by `torch.library`, by `load_library`, by the import of an extension.
    The names of all operators tell it too, but take milliseconds."""
    by_python = torch.library
    return len(by_python._defs), len(by_python._impls), len(torch.ops.loaded_libraries), len(sys.modules)


def _is_ours() -> bool:
    """Whether `tensor.numpy()` is called by us, or by torch for us."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_OURS)


def _shares_memory(tensor: torch.Tensor, model: torch.nn.Module) -> bool:
    """With a parameter, its gradient or a buffer."""
    place = tensor.untyped_storage().data_ptr()
    parameters = list(model.parameters())
    owners = [*parameters, *model.buffers(), *(p.grad for p in parameters if p.grad is not None)]
    return place != 0 and any(owner.untyped_storage().data_ptr() == place for owner in owners)


def _is_computing(model: torch.nn.Module) -> bool:
    """Whether a forward of the model or one of its parts has called this, or a backward. Transforms of data are modules
    too, often."""
    if torch._C._current_autograd_node() is not None:
        return True
    frame: FrameType | None = sys._getframe(2)
    parts = {id(module) for module in model.modules()}
    while frame is not None:
        if frame.f_code.co_name == "_call_impl" and id(frame.f_locals.get("self")) in parts:
            return True
        frame = frame.f_back
    return False


def _has_kernel(name: str) -> bool:
    keys = ("CPU", "CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def _refusing(name: str) -> Callable[..., Any]:
    def kernel(*_args: Any, **_options: Any) -> NoReturn:
        refuse(
            name,
            "it comes from an extension, whose kernels are not known here: its bits may differ between device types.",
            "write it with torch's operators, or use --determinism D1 (one device type).",
        )

    return kernel
