"""State trees without pickle: plain values, containers, tensors and arrays, to JSON plus named tensors and back.

`encode` gives a structure that `json` can write, and tensors of the dtypes that safetensors knows; `decode` is its
inverse, to the bit: strides of dense tensors, NaN payloads, signs of zeros and types of keys included. Neither copies
a dense tensor. Two places that hold the same tensor hold the same tensor again after `decode`; the device is not
part of a tree, and neither are gradients. What cannot be kept this way is refused by its path in the tree, because
reading a pickle runs whatever code its file names.

`to_host` and `to_device` copy a tree; they refuse the same things, so that a snapshot never shares state with its job.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from easyscale.core.errors import CheckpointError

# What a safetensors file can hold by name and every recent reader knows. All else travels as raw bytes (U8).
SAFETENSORS_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip

_INT64 = 1 << 63
_ARRAY_KINDS = "biufcmMSU"  # NumPy's letters for numbers, times and text
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON would join two of them into one character
_LEAVES: frozenset[type] = frozenset(
    (type(None), bool, int, float, str, bytes, complex, torch.dtype, torch.device, torch.Size)
)
_DEEPEST = 200  # containers inside each other; far from where Python's own recursion, and json's, would break
_BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, OverflowError, struct.error)


def encode(tree: Any, path: str = "") -> tuple[Any, dict[str, torch.Tensor]]:
    """A JSON-able structure and the tensors that it names. `path` is where the tree hangs, for names and errors."""
    encoder = _Encoder()
    return encoder.value(tree, path), encoder.tensors


def decode(structure: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The tree of an `encode`. It may share memory with `tensors`."""
    try:
        return _Decoder(tensors).value(structure)
    except _BROKEN as problem:
        raise CheckpointError(
            f"A state tree cannot be rebuilt ({type(problem).__name__}: {problem}).",
            "its structure is not one that this version of EasyScale writes.",
            "use another checkpoint, or the version of EasyScale that wrote this one.",
        ) from problem


def to_host(tree: Any) -> Any:
    """A snapshot in CPU memory that shares nothing with `tree`. CUDA copies overlap; they are complete on return."""
    streams: dict[torch.device, torch.cuda.Stream] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        cuda = tensor.device.type == "cuda"
        shape, strides = tensor.shape, dense_strides(tensor)
        host = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="cpu", pin_memory=cuda)
        if cuda:
            streams.setdefault(tensor.device, torch.cuda.current_stream(tensor.device))
        return host.copy_(tensor, non_blocking=cuda)

    copied = _Copier(copy).value(tree, "")
    for stream in streams.values():
        stream.synchronize()
    return copied


def to_device(tree: Any, device: torch.device | str) -> Any:
    """The tree with its tensors on `device`. Containers are new; tensors that are there already are not copied."""
    return _Copier(lambda tensor: tensor.to(device)).value(tree, "")


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's own strides if it fills its memory without holes or overlaps, else those of C order."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return strides if _is_dense(shape, strides) else torch.empty(shape, device="meta").stride()


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    if math.prod(shape) == 0:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A C-contiguous tensor as a vector. Unlike `view(-1)`, with stride 1 also where there are less than 2 elements."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _physical(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in the order in which they lie in memory: a C-contiguous view of a dense tensor, else a copy."""
    if not _is_dense(tensor.shape, tensor.stride()):
        return tensor.contiguous()
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dim: -strides[dim])).contiguous()


def plain_tensor(tensor: torch.Tensor, path: str) -> torch.Tensor:
    """The tensor without its gradient and its lazy flags; refused where shape, strides and bytes do not say it all."""
    if (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.device.type == "meta"
    ):
        refuse(path, f"{type(tensor).__name__} ({tensor.layout}, {tensor.dtype}, on {tensor.device.type})")
    return tensor.detach().resolve_conj().resolve_neg()


def _check_numpy(value: Any, path: str) -> None:
    """Only dtypes whose bytes and name say it all; of arrays no subclasses (masked arrays, matrices)."""
    if (isinstance(value, np.ndarray) and type(value) is not np.ndarray) or value.dtype.kind not in _ARRAY_KINDS:
        refuse(path, f"{_type_name(value)} of dtype {value.dtype}")


def _check_key(key: Any, path: str) -> None:
    """Tensors are equal as keys only to themselves: after a restart nobody could look them up."""
    if isinstance(key, torch.Tensor):
        refuse(path, "Tensor as a key")


def _same_memory(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """Equal for two tensors only if they are the same view of the same memory. None: has no memory."""
    if tensor.numel() == 0:
        return None
    where = tensor.untyped_storage().data_ptr()
    return where, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def refuse(path: str, kind: str) -> NoReturn:
    raise CheckpointError(
        f"The state at `{path or 'the top'}` is of the type {kind}, which a checkpoint does not hold.",
        "it is not storable without pickle; plain values, containers, tensors and NumPy arrays are.",
        "return plain values from state_dict(), and rebuild this object in load_state_dict().",
    )


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


class _Walk:
    """The containers that are open on the way down, so that one that contains itself is refused, not followed."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def enter(self, value: Any, path: str) -> None:
        if id(value) in self._open:
            refuse(path, f"{_type_name(value)} that contains itself")
        if len(self._open) == _DEEPEST:
            refuse(path, f"{_type_name(value)} inside {_DEEPEST} others")
        self._open.add(id(value))

    def leave(self, value: Any) -> None:
        self._open.discard(id(value))


class _Encoder(_Walk):
    """JSON holds None, booleans, 64-bit integers, finite floats, text and lists as they are. All else is an object of
    one member, {tag: content}; plain objects never occur, so nothing needs escaping."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, torch.Tensor] = {}
        self._leaves: dict[tuple[object, ...], tuple[torch.Tensor, Any]] = {}

    def value(self, value: Any, path: str) -> Any:
        if type(value) in _LEAVES:
            return _encode_leaf(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(plain_tensor(value, path), path)
        if isinstance(value, np.ndarray | np.generic):
            return self._numpy(value, path)
        self.enter(value, path)
        encoded = self._container(value, path)
        self.leave(value)
        return encoded

    def _container(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is list:
            return self._items(value, path)
        if kind in (tuple, set, frozenset):
            return {kind.__name__: self._items(value, path)}
        if kind in _MAPPINGS:
            return {_MAPPINGS[kind]: [self._pair(key, item, path) for key, item in value.items()]}
        if kind is deque:
            return {"deque": [value.maxlen, self._items(value, path)]}
        refuse(path, _type_name(value))

    def _items(self, values: Iterable[Any], path: str) -> list[Any]:
        # Leaves first: a list of a million numbers needs no million paths.
        return [
            _encode_leaf(item) if type(item) in _LEAVES else self.value(item, _below(path, i))
            for i, item in enumerate(values)
        ]

    def _pair(self, key: Any, item: Any, path: str) -> list[Any]:
        below = _below(path, key)
        _check_key(key, below)
        return [self.value(key, below), self.value(item, below)]

    def _tensor(self, tensor: torch.Tensor, path: str) -> Any:
        same = _same_memory(tensor)
        if same is not None and same in self._leaves:
            return self._leaves[same][1]
        stored = _physical(tensor)
        if stored.dtype not in SAFETENSORS_DTYPES:
            stored = flat(stored).view(torch.uint8)
        dtype = str(tensor.dtype).removeprefix("torch.")
        leaf = {"tensor": [self._store(stored, path), dtype, list(tensor.shape), list(dense_strides(tensor))]}
        if same is not None:
            self._leaves[same] = (tensor, leaf)  # the tensor too: its address must not be given to another
        return leaf

    def _numpy(self, value: Any, path: str) -> Any:
        _check_numpy(value, path)
        if isinstance(value, np.str_):
            return {"npstr": _encode_leaf(str(value))}
        if isinstance(value, np.bytes_):
            return {"npbytes": _encode_leaf(bytes(value))}
        if isinstance(value, np.generic):
            return {"scalar": [value.dtype.str, _base64(value.tobytes())]}
        order = "C" if value.flags.c_contiguous or not value.flags.f_contiguous else "F"
        raw = np.array(value.T if order == "F" else value, order="C", copy=True).reshape(-1).view(np.uint8)
        return {"array": [self._store(torch.from_numpy(raw), path), value.dtype.str, list(value.shape), order]}

    def _store(self, tensor: torch.Tensor, path: str) -> str:
        """Under its path, so that a person finds it in the file; numbered where two paths read the same."""
        base = name = path.encode(errors="replace").decode() or "_"
        number = 1
        while name in self.tensors or name == "__metadata__":
            number += 1
            name = f"{base}#{number}"
        self.tensors[name] = tensor
        return name


_MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "odict", defaultdict: "dict", Counter: "counter"}


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _encode_leaf(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:  # hexadecimal has no limit on its length, decimal has
        return value if -_INT64 <= value < _INT64 else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if kind is str:
        return value if not _SURROGATE.search(value) else {"str": _base64(value.encode(errors="surrogatepass"))}
    if kind is bytes:
        return {"bytes": _base64(value)}
    if kind is complex:
        return {"complex": struct.pack(">dd", value.real, value.imag).hex()}
    if kind is torch.Size:
        return {"size": list(value)}
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    return {"device": str(value)}


class _Decoder:
    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._rebuilt: dict[tuple[object, ...], torch.Tensor] = {}
        self._tags: dict[str, Callable[[Any], Any]] = {
            "tensor": self._tensor,
            "array": self._array,
            "tuple": lambda items: tuple(self.value(items)),
            "set": lambda items: set(self.value(items)),
            "frozenset": lambda items: frozenset(self.value(items)),
            "deque": lambda content: deque(self.value(content[1]), content[0]),
            "dict": self._pairs,
            "odict": lambda pairs: OrderedDict(self._pairs(pairs)),
            "counter": lambda pairs: Counter(self._pairs(pairs)),
            "npstr": lambda text: np.str_(self.value(text)),
            "npbytes": lambda raw: np.bytes_(self.value(raw)),
            **_LEAF_TAGS,
        }

    def value(self, structure: Any) -> Any:
        if isinstance(structure, list):
            return [self.value(item) for item in structure]
        if isinstance(structure, dict):
            ((tag, content),) = structure.items()
            return self._tags[tag](content)
        if structure is None or isinstance(structure, bool | int | float | str):
            return structure
        raise TypeError(f"a {type(structure).__name__} is not JSON")

    def _pairs(self, pairs: Any) -> dict[Any, Any]:
        return {self.value(key): self.value(item) for key, item in pairs}

    def _tensor(self, content: Any) -> torch.Tensor:
        name, dtype, shape, strides = content
        leaf = (name, dtype, tuple(shape), tuple(strides))
        if leaf not in self._rebuilt:
            stored, wanted = self._tensors[name].contiguous(), _dtype(dtype)
            if stored.dtype != wanted:
                if stored.dtype != torch.uint8 or wanted in SAFETENSORS_DTYPES:
                    raise ValueError(f"{name} is {stored.dtype}, not {wanted}")
                stored = flat(stored).view(wanted)
            if stored.numel() != math.prod(shape) or not _is_dense(shape, strides):
                raise ValueError(f"{name} does not have the shape {shape} with strides {strides}")
            self._rebuilt[leaf] = stored.as_strided(shape, strides)
        return self._rebuilt[leaf]

    def _array(self, content: Any) -> np.ndarray[Any, Any]:
        name, dtype, shape, order = content
        raw = bytearray(self._tensors[name].numpy().tobytes())
        return np.ndarray(tuple(shape), dtype=_array_dtype(dtype), buffer=raw or None, order=order)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a dtype")
    return dtype


def _array_dtype(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.kind not in _ARRAY_KINDS:  # above all objects: their bytes are addresses
        raise TypeError(f"{text} is not a dtype of plain bytes")
    return dtype


_LEAF_TAGS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": lambda bits: struct.unpack(">d", bytes.fromhex(bits))[0],
    "str": lambda raw: base64.b64decode(raw).decode(errors="surrogatepass"),
    "bytes": base64.b64decode,
    "complex": lambda bits: complex(*struct.unpack(">dd", bytes.fromhex(bits))),
    "size": torch.Size,
    "dtype": _dtype,
    "device": torch.device,
    "scalar": lambda content: np.frombuffer(base64.b64decode(content[1]), dtype=_array_dtype(content[0]))[0],
}


class _Copier(_Walk):
    def __init__(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._copy = copy
        self._copied: dict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def value(self, value: Any, path: str) -> Any:
        if type(value) in _LEAVES:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(plain_tensor(value, path))
        if isinstance(value, np.ndarray | np.generic):
            _check_numpy(value, path)
            return value.copy(order="K") if isinstance(value, np.ndarray) else value
        self.enter(value, path)
        copied = self._container(value, path)
        self.leave(value)
        return copied

    def _container(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind in (list, tuple, set, frozenset):
            return kind(self._items(value, path))
        if kind is deque:
            return deque(self._items(value, path), value.maxlen)
        if kind not in _MAPPINGS:
            refuse(path, _type_name(value))
        pairs = dict(self._pair(key, item, _below(path, key)) for key, item in value.items())
        return defaultdict(value.default_factory, pairs) if kind is defaultdict else kind(pairs)

    def _items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [item if type(item) in _LEAVES else self.value(item, _below(path, i)) for i, item in enumerate(values)]

    def _pair(self, key: Any, item: Any, below: str) -> tuple[Any, Any]:
        _check_key(key, below)
        return self.value(key, below), self.value(item, below)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        same = _same_memory(tensor)
        if same is None:
            return self._copy(tensor)
        if same not in self._copied:
            self._copied[same] = (tensor, self._copy(tensor))
        return self._copied[same][1]
