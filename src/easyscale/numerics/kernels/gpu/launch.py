"""Where Triton kernels can run, and how they are launched.

Triton finds the compiled kernel for its arguments anew in each launch, which takes longer than most kernels run.
`launch` keeps what was found, by the same facts (`facts`), and from then on calls the kernel's C launcher itself.
Relies on the C launcher of Triton 3.6, which is recognized by its text; with any other, each launch is Triton's own.
Guarantees the launch that `kernel[grid](...)` would make, on the device of the first argument and its current stream.
"""

from __future__ import annotations

import importlib.util
import inspect
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from easyscale.numerics.kernels.watching import not_a_launch, tell_launch, watchers

# The order of what Triton's C launcher takes, as its source has it; other versions have other orders.
_ORDER = (
    "&gridX, &gridY, &gridZ, &_stream, &_function, &launch_cooperative_grid, &launch_pdl, &global_scratch_obj, "
    "&profile_scratch_obj, &kernel_metadata, &launch_metadata, &launch_enter_hook, &launch_exit_hook"
)
_DOUBLE, _WHOLE = struct.Struct("<d"), struct.Struct("<q")
_AS_THEY_ARE = (bool, float, type(None))  # Triton looks at the type of these only; of None there is one

_watchers = watchers()

# From the facts of a launch: the kernel (kept, since its id is one of the facts), and what calls it directly, if there
# is. One table for all threads: entries are only added, and two that add the same one add equals.
_known: dict[tuple[Any, ...], tuple[Any, Callable[..., None] | None, tuple[Any, ...], tuple[Any, ...]]] = {}
Entry = tuple[Callable[..., None], tuple[Any, ...], tuple[Any, ...]]  # what launches it, its settings, the numbers
_NONE = -2  # no device: -1 is the CPU's
_MOST_MAPS = 8192  # kept for a kernel
_current: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)
_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: 0)


@cache
def available() -> bool:
    """Whether there are a CUDA device and Triton here."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


@cache
def processors(device: torch.device) -> int:
    """Number of SMs: how many tiles it takes to keep the device busy. Tiles change no bits, so this may decide them."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def current_stream(device: torch.device) -> int:
    """A number for the stream that launches on this device go to."""
    return _stream(_current() if device.index is None else device.index) if device.type == "cuda" else 0


def current_device() -> int:
    return _current()


def stream_of(device: int) -> int:
    """The current one of the device with this number."""
    return _stream(device)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def is_aligned(x: Tensor) -> bool:
    """Whether it begins at a multiple of 16 bytes: Triton compiles other kernels where it does not."""
    return x.data_ptr() & 15 == 0


def bits(value: float) -> int:
    """An fp64 as the whole number of its bits, for a kernel: Triton makes fp32 of a Python float."""
    found: int = _WHOLE.unpack(_DOUBLE.pack(value))[0]
    return found


# ---------------------------------------------------------------------------------------------------------- launches


@dataclass(frozen=True, slots=True)
class Tiles:
    """An argument that a kernel loads blocks of: a dense matrix, as a descriptor for the copy engine."""

    parts: Tensor
    block: tuple[int, ...]

    def get_device(self) -> int:
        return self.parts.get_device()

    def data_ptr(self) -> Tiles:
        """The launcher takes it as it is."""
        return self


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
    """`kernel[grid](*args, **named)` on the device of `args[0]`, a tensor.

    `args` are the kernel's arguments in its order, without its constants; `named` are its constants (tl.constexpr), all
    of them, and options (num_warps, enable_fp_fusion, ...).
    """
    device = args[0].get_device()
    if device >= 0 and device != _current():
        with torch.cuda.device(device):
            return launch(kernel, grid, *args, **named)
    known, passed = facts(args, named)
    key = (id(kernel), device, *known)
    entry = _known.get(key)
    if entry is None:
        _known[key] = entry = (kernel, *_first(kernel, grid, args, named))
        if _watchers:
            tell_launch(entry[1], grid, entry[2], args, entry[3])
        return None
    _, run, settings, constants = entry
    if _watchers:
        tell_launch(run, grid, settings, args, constants)
    if run is None:
        kernel[grid](*map(_as_triton_takes_it, args), **named)
    else:
        size = len(grid)
        second, third = grid[1] if size > 1 else 1, grid[2] if size > 2 else 1
        run(grid[0], second, third, _stream(device), *settings, *passed, *constants)
    return None


class Launch:
    """Launches that differ in their tensors only: `kernel[grid](*tensors, *numbers, **named)`.

    Whoever keeps one vouches that the tensors of all calls have the dtypes of the first; and, if some are `Tiles`, that
    those beside them are at multiples of 16 bytes where those of the first were. Without `Tiles` this looks itself.
    """

    __slots__ = ("_device", "_entry", "_grid", "_kernel", "_named", "_numbers", "_others", "_tiled")

    def __init__(self, kernel: Any, grid: tuple[int, ...], numbers: tuple[int, ...], **named: Any) -> None:
        self._kernel, self._numbers, self._named = kernel, numbers, named
        self._grid = (*grid, *(1,) * (3 - len(grid)))
        self._entry: Entry | None = None
        self._others: dict[tuple[bool, ...], Entry] = {}  # where some addresses are not multiples of 16, by which are
        self._tiled = False
        self._device = _NONE  # of the entries

    def __call__(self, *tensors: Tensor | Tiles) -> None:
        device = self._device
        if device != _current():
            return self._slowly(tensors)
        entry = self._entry
        places: list[Any] = [x.data_ptr() for x in tensors]
        if not self._tiled:
            low = 0
            for place in places:
                low |= place
            if low & 15:
                entry = self._others.get(tuple([place & 15 == 0 for place in places]))
        if entry is None:
            return self._slowly(tensors)
        run, settings, rest = entry
        if _watchers:
            tell_launch(run, self._grid, settings, tensors, rest)
        run(*self._grid, _stream(device), *settings, *places, *rest)
        return None

    def drawing(self, key: int, *tensors: Tensor) -> None:
        """With a number behind the tensors that differs in each call, and that the kernel is not specialized on."""
        not_a_launch()  # it is another one each time
        device, entry = self._device, self._entry
        places = [x.data_ptr() for x in tensors]
        low = 0
        for place in places:
            low |= place
        # a number of 32 bits has another type in Triton: as rare as a key of that size
        if entry is None or device != _current() or low & 15 or not 0x7FFFFFFF < key < 1 << 63:
            return self._slowly(tensors, (key,), low & 15 == 0 and 0x7FFFFFFF < key < 1 << 63)
        run, settings, rest = entry
        run(*self._grid, _stream(device), *settings, *places, key, *rest)
        return None

    def _slowly(
        self, tensors: tuple[Tensor | Tiles, ...], more: tuple[int, ...] = (), keeps: bool = True
    ) -> None:
        """The first time, and on other devices."""
        args = (*tensors, *more, *self._numbers)
        launch(self._kernel, self._grid, *args, **self._named)
        if not keeps:
            return
        device = tensors[0].get_device()
        found = _known.get((id(self._kernel), device, *facts(args, self._named)[0]))
        if self._device not in (_NONE, device) or found is None or found[1] is None:
            return
        entry = (found[1], found[2], (*self._numbers, *found[3]))
        even = tuple([not isinstance(x, Tensor) or x.data_ptr() & 15 == 0 for x in tensors])
        self._tiled = Tiles in map(type, tensors)
        if all(even) or self._tiled:
            self._entry = self._entry or entry
        else:
            self._others[even] = entry
        self._device = device  # last: another thread looks at it first


def facts(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """All that Triton's choice of a compiled kernel depends on, and the arguments as its C launcher takes them fastest.

    Of a tensor: the dtype, and whether its address is a multiple of 16. Of a whole number: whether it is 1, whether it
    is a multiple of 16, and whether it fits into 32 or 64 bits. Of a constant or an option: its value.
    """
    known: list[Any] = []
    passed: list[Any] = []
    for arg in args:
        kind = type(arg)
        if kind is int:
            passed.append(arg)
            if -0x80000000 <= arg <= 0x7FFFFFFF:
                known.append(1 if arg == 1 else 16 if arg & 15 == 0 else 0)
            else:
                known.append((arg & 15 == 0, arg < 1 << 63))
        elif isinstance(arg, Tensor):
            address = arg.data_ptr()
            passed.append(address)
            known += (arg.dtype, address & 15 == 0)
        elif kind in _AS_THEY_ARE:
            passed.append(arg)
            known.append(kind)
        elif kind is Tiles:
            passed.append(arg)
            known += (arg.parts.dtype, arg.block)
        else:
            raise TypeError(f"a kernel is given a {kind.__name__}")
    known += named
    known += named.values()
    return known, passed


def _first(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Callable[..., None] | None, tuple[Any, ...], tuple[Any, ...]]:
    """The first launch with these facts, by Triton; and how later ones go round it, or None if they cannot."""
    compiled = kernel[grid](*map(_as_triton_takes_it, args), **named)
    run = getattr(compiled, "run", None)
    if run is None or not _c_launcher_is_known(run.__class__):
        return None, (), ()
    direct = run.launch if inspect.isbuiltin(run.launch) else _with_maps(run.launch)
    parameters = kernel.params
    rest = parameters[len(args) :]
    assert not any(p.is_constexpr for p in parameters[: len(args)]), f"constants of {kernel.__name__} go by name"
    assert all(p.is_constexpr and p.name in named for p in rest), f"{kernel.__name__} lacks arguments"
    if run.global_scratch_size or run.profile_scratch_size or direct is None:
        return None, (), ()  # needs memory of its own, or its arguments rearranged, for each launch
    memory, hooks = (None, None), (None, None, None)
    settings = (compiled.function, run.launch_cooperative_grid, run.launch_pdl, *memory, compiled.packed_metadata)
    return direct, (*settings, *hooks), tuple(named[p.name] for p in rest)


def _as_triton_takes_it(arg: Any) -> Any:
    if type(arg) is not Tiles:
        return arg
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(arg.parts, list(arg.parts.shape), list(arg.parts.stride()), list(arg.block))


def _with_maps(launcher: Any) -> Callable[..., None] | None:
    """Triton's launcher that makes a map for the copy engine of each descriptor, but keeping the maps: memory comes
    back at the same addresses step after step."""
    known = inspect.getclosurevars(launcher).nonlocals
    make = getattr(inspect.getmodule(launcher), "make_tensordesc_arg", None)
    if set(known) != {"launcher", "tensordesc_indices", "tensordesc_meta"} or make is None:
        return None
    run, metas = known["launcher"], known["tensordesc_meta"]
    return _WithMaps(run, metas, make)


class _WithMaps:
    def __init__(self, run: Callable[..., None], metas: Any, make: Callable[..., Any]) -> None:
        self.run, self._metas, self._make = run, metas, make
        self._maps: dict[tuple[Any, ...], list[Any]] = {}

    def __call__(self, *args: Any) -> None:
        self.run(*self.final(args))

    def final(self, args: Sequence[Any]) -> list[Any]:
        """The arguments with maps for `Tiles`."""
        final: list[Any] = []
        number = 0
        for arg in args:
            if type(arg) is Tiles:
                final += self.of(number, arg)
                number += 1
            else:
                final.append(arg)
        return final

    def of(self, number: int, tiles: Tiles) -> list[Any]:
        """The map of descriptor `number`, and what Triton's launcher wants beside it. They hold no memory."""
        key = (number, tiles.parts.data_ptr(), tiles.parts.shape)
        found = self._maps.get(key)
        if found is None:
            if len(self._maps) >= _MOST_MAPS:
                self._maps.clear()
            made = self._make(_as_triton_takes_it(tiles), self._metas[number])
            # where the device has no copy engine, a descriptor is its address and sizes
            found = self._maps[key] = [x.data_ptr() if isinstance(x, Tensor) else x for x in made]
        return found


def apart(run: Callable[..., None]) -> tuple[Callable[..., None], Callable[[int, Tiles], list[Any]] | None]:
    """What launches with maps that are there already; and what makes them, where it needs any."""
    return (run.run, run.of) if isinstance(run, _WithMaps) else (run, None)


@cache
def _c_launcher_is_known(kind: Any) -> bool:
    """Whether this is Triton's launcher for CUDA, whose C code takes what it takes in the order of `_ORDER`."""
    writer = getattr(inspect.getmodule(kind), "make_launcher", None)
    if kind.__name__ != "CudaLauncher" or writer is None:
        return False
    text = " ".join(inspect.getsource(writer).split())
    return _ORDER in text and text.count("PyLong_Check(obj)") == 1  # and takes an address as a number
