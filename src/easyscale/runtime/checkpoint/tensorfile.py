"""Files that are hashed while they are written and while they are read, in pieces; safetensors on top of them.

The safetensors format is written here, not by its library, because the library neither hashes what it writes nor
takes two names for one tensor without a copy. Its readers open our files.

Whoever reads trusts nothing before the hash at the end is right: sizes are checked first, so that a damaged header
cannot ask for more memory than the file has bytes. Damage is a ValueError here; `folder` makes a message of it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from easyscale.runtime.codec import SAFETENSORS_DTYPES, flat

# Large enough that hashing and writing spend their time outside the interpreter lock, small beside any model.
PIECE = 8 << 20

_DTYPES = {name: dtype for dtype, name in SAFETENSORS_DTYPES.items()}


@dataclass(frozen=True)
class FileFacts:
    """What a manifest says of a file."""

    size: int  # bytes
    sha256: str


def write_hashed(path: Path, pieces: Iterable[bytes | bytearray | memoryview]) -> FileFacts:
    """Write a new file. On return it is on the disk, not only on its way there."""
    sha, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for piece in pieces:
            file.write(piece)
            sha.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileFacts(size, sha.hexdigest())


class HashedReader:
    """Reads a file once from start to end; made by `reading`."""

    def __init__(self, file: io.FileIO, name: str, size: int) -> None:
        self._file, self._name = file, name
        self.left = size
        self.sha = hashlib.sha256()

    def fill(self, target: memoryview) -> None:
        done = 0
        while done < len(target):
            piece = target[done : done + PIECE]
            count = self._file.readinto(piece)
            if not count:
                raise ValueError(f"{self._name} ends too early")
            self.sha.update(piece[:count])
            done += count
        self.left -= done

    def take(self, count: int) -> bytearray:
        if count > self.left:
            raise ValueError(f"{self._name} ends too early")
        raw = bytearray(count)
        self.fill(memoryview(raw))
        return raw

    def pieces(self) -> Iterator[bytearray]:
        while self.left:
            yield self.take(min(self.left, PIECE))


@contextlib.contextmanager
def reading(path: Path, facts: FileFacts) -> Iterator[HashedReader]:
    """Open a file. Where the block ends without an error, its bytes were those that had been written."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != facts.size:
            raise ValueError(f"{path.name} has {size} bytes instead of {facts.size}")
        reader = HashedReader(file, path.name, size)
        yield reader
        if reader.left or reader.sha.hexdigest() != facts.sha256:
            raise ValueError(f"{path.name} has another sha256 than when it was written")


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> FileFacts:
    """A safetensors file. At most one tensor at a time is copied, and only if it is not C-contiguous on the host."""
    return write_hashed(path, _safetensors(tensors))


def read_tensors(path: Path, facts: FileFacts) -> dict[str, torch.Tensor]:
    """The tensors of a file of ours, each in its own memory, once every byte of the file has been checked."""
    tensors: dict[str, torch.Tensor] = {}
    with reading(path, facts) as reader:
        header = json.loads(reader.take(int.from_bytes(reader.take(8), "little")))
        begin = 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            tensors[name] = _read_tensor(reader, entry, begin)
            begin = entry["data_offsets"][1]
    return tensors


def fsync_folder(path: Path) -> None:
    """Make names in a folder durable. Some network file systems cannot; then there is nothing more to do."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)


def _safetensors(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    # Wide elements first, as the library does: every tensor is then aligned for readers that map the file.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name in order:
        tensor = tensors[name]
        end = begin + tensor.numel() * tensor.dtype.itemsize
        dtype = SAFETENSORS_DTYPES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        raw = flat(tensors[name].detach().cpu().contiguous()).view(torch.uint8).numpy().data
        for start in range(0, len(raw), PIECE):
            yield raw[start : start + PIECE]


def _read_tensor(reader: HashedReader, entry: Any, begin: int) -> torch.Tensor:
    dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
    first, end = entry["data_offsets"]
    size = math.prod(shape) * dtype.itemsize
    if first != begin or end - first != size or not 0 <= size <= reader.left:
        raise ValueError("the header of the file does not fit its data")
    raw = torch.empty(size, dtype=torch.uint8)
    if size:
        reader.fill(raw.numpy().data)
    return raw.view(dtype).reshape(shape)
