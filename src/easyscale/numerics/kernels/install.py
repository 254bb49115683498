"""Puts the D2 forms under the user's model, through torch's dispatcher, while a D2 job runs.

Below autograd and autocast, the kernels of the CPU and CUDA keys are replaced: stock formulas of derivatives then call
our backward forms, and nothing of the user's code changes. An operator that has neither a form nor a place in the list
of safe stock operators gets a kernel that refuses it by name. Recurrent layers are replaced above autograd: stock takes
them apart differently on CPUs and CUDA. Autocast gets one policy for all devices. Stock paths that would go round these
kernels (oneDNN, cuDNN, fused attention, TF32) are switched off; `correct` finds out if a script has switched them on
again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from easyscale.numerics.kernels import attention, autocast, primitives, safe, updates
from easyscale.numerics.kernels.catalogue import FORMS
from easyscale.numerics.kernels.gpu import replay, workspace
from easyscale.numerics.kernels.native import library
from easyscale.numerics.kernels.recurrent import COMPOSITES
from easyscale.numerics.kernels.refusal import refusing_kernel
from easyscale.numerics.kernels.registry import DeviceKind, Form
from easyscale.numerics.kernels.switches import SWITCHES

# Counts up whenever a definition changes its bits: part of a D2 job's record.
DEFINITION = 4

_KEYS: dict[DeviceKind, str] = {"cpu": "CPU", "cuda": "CUDA"}
# Tensors of other layouts have keys, and kernels, of their own: they are refused where they are made.
_OTHER_LAYOUTS: dict[str, tuple[str, ...]] = {
    "": ("_nested_tensor_from_tensor_list",),
    "Sparse": ("_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors"),
    "SparseCsr": ("_sparse_compressed_tensor_with_dims", "sparse_compressed_tensor.comp_plain_value_size"),
}


class _Installation:
    """What is in force: the registrations, and the settings to put back."""

    def __init__(self) -> None:
        self.library = torch.library.Library("aten", "IMPL")  # kept as long as it is in force
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # older torches say once that there is a newer interface
            self.before = [switch.read() for switch in SWITCHES]
        self.split: Callable[[], None] = lambda: None  # torch's loops of optimizers as they were

    def register(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch says that a kernel is replaced: that is the point
            for name, function in {**COMPOSITES, **attention.COMPOSITES}.items():
                self.library.impl(name, function, "CompositeImplicitAutograd")
            autocast.register(self.library)
            for device, key in _KEYS.items():
                if device == "cuda" and not torch.cuda.is_available():
                    continue
                known = kernels(device)
                for name, function in known.items():
                    self.library.impl(name, function, key)
                for name in refused(device, set(known)):
                    self.library.impl(name, refusing_kernel(name), key)
                for layout, names in _OTHER_LAYOUTS.items():
                    for name in names:
                        self.library.impl(name, refusing_kernel(name), f"{layout}{key}")
        self.split = updates.join()

    def remove(self) -> None:
        self.library._destroy()
        self.split()
        for switch, value in zip(SWITCHES, self.before, strict=True):
            switch.set(value)


_installation: _Installation | None = None


def install() -> None:
    """Compute by D2 forms from here on, in this process. Does nothing where it is so already."""
    global _installation
    if _installation is None:
        _installation = _Installation()
        _installation.register()
        correct()


def uninstall() -> None:
    """Stock kernels again, and the settings that were in force before; memory of GPUs that was kept is given back."""
    global _installation
    if _installation is not None:
        _installation.remove()
        _installation = None
        workspace.release()
        replay.forget()


@contextmanager
def installed() -> Iterator[None]:
    """D2 forms inside the block."""
    install()
    try:
        yield
    finally:
        uninstall()


def is_installed() -> bool:
    return _installation is not None


def correct() -> list[str]:
    """Switch off what would go round the D2 forms; a sentence for each setting that was found switched on."""
    before = [switch.read() for switch in SWITCHES]  # all first: torch changes some of them together
    found = []
    for switch, value in zip(SWITCHES, before, strict=True):
        if switch.read() != switch.wanted:
            switch.set(switch.wanted)
            found.append(f"{switch.name} was {value}, is {switch.wanted} again: {switch.why}.")
    return found


def status() -> dict[str, Any]:
    """What computes here, as plain values."""
    cuda = None
    if torch.cuda.is_available():
        cuda = "triton" if primitives.implementation(torch.device("cuda")).__name__.endswith(".gpu") else "portable"
    return {"version": DEFINITION, "cpu": library.which() if library.available() else "portable", "cuda": cuda}


# ---------------------------------------------------------------------------------------------- which kernels


def kernels(device: DeviceKind) -> dict[str, Callable[..., Any]]:
    """Every overload that is computed by us on this device: the forms, and the variants derived from them."""
    given = {name: form for name, form in FORMS.items() if device in form.devices}
    found: dict[str, Callable[..., Any]] = {name: form.function for name, form in given.items()}
    for form in given.values():
        for name, function in variants(form).items():
            found.setdefault(name, function)
    if device == "cuda":
        found = {name: replay.replayed(name, function) for name, function in found.items()}
    return found


def refused(device: DeviceKind, known: set[str]) -> list[str]:
    """Every overload with a stock kernel of its own on this device that is neither ours nor safe."""
    key = _KEYS[device]
    names = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return [
        name for name in names
        if name not in known and not safe.is_safe(name, device)
        and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    ]  # fmt: skip


def variants(form: Form) -> dict[str, Callable[..., Any]]:
    """The in-place and `out=` overloads with the arguments of a functional form, computed by it."""
    packet, _, overload = form.name.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
    if schema.is_mutable:
        return {}
    wanted = _signature(schema.arguments)
    found: dict[str, Callable[..., Any]] = {}
    operator = getattr(torch.ops.aten, packet)
    for other in operator.overloads():
        arguments = getattr(operator, other)._schema.arguments
        outs = [a.name for a in arguments if a.is_out]
        if outs and _signature([a for a in arguments if not a.is_out]) == wanted:
            found[_joined(packet, other)] = _into(form.function, outs)
    in_place = getattr(torch.ops.aten, f"{packet}_", None)
    if in_place is not None:
        for other in in_place.overloads():
            arguments = getattr(in_place, other)._schema.arguments
            if _signature(arguments) == wanted and arguments[0].alias_info is not None:
                found[_joined(f"{packet}_", other)] = _over_first(form.function)
    return found


def _joined(packet: str, overload: str) -> str:
    return packet if overload == "default" else f"{packet}.{overload}"


def _signature(arguments: list[Any]) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in arguments]


def _into(function: Callable[..., Any], outs: list[str]) -> Callable[..., Any]:
    def kernel(*args: Any, **options: Any) -> Any:
        targets = [options.pop(name) for name in outs]
        results = function(*args, **options)
        for target, result in zip(targets, results if len(outs) > 1 else (results,), strict=True):
            if target.shape != result.shape:
                target.resize_(result.shape)
            target.copy_(result)
        return tuple(targets) if len(outs) > 1 else targets[0]

    return kernel


def _over_first(function: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(first: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        return first.copy_(function(first, *args, **options))

    return kernel
