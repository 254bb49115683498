"""One checkpoint: a folder that describes itself.

    step-0000000120/
        model.safetensors      the plain state_dict: anyone with safetensors can load it
        shared.safetensors     tensors of what all ESTs share: optimizers, schedulers, registered state
        contexts.safetensors   tensors of the EST contexts
        extra.safetensors      only where a state_dict entry is not a tensor that safetensors knows
        checkpoint.json        the manifest: step, record, structures, names in order, size and sha256 of the others

The manifest is written last and ends with the sha256 of itself without that field. Hence a folder is whole if its
manifest is, and if its files are what the manifest says; each flipped bit is noticed. Later format versions keep
that rule, so that an older EasyScale can tell a newer checkpoint from a damaged one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from easyscale.core.errors import CheckpointError
from easyscale.runtime.checkpoint.tensorfile import (
    FileFacts,
    fsync_folder,
    read_tensors,
    reading,
    write_hashed,
    write_tensors,
)
from easyscale.runtime.codec import SAFETENSORS_DTYPES, decode, dense_strides, encode, plain_tensor

FORMAT = 1
MANIFEST = "checkpoint.json"
WEIGHTS = "model.safetensors"

_DAMAGE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, OverflowError)


@dataclass(frozen=True)
class Snapshot:
    """The state of a job between two global steps. It must not change while it is being saved: see `codec.to_host`."""

    step: int  # completed global steps
    record: dict[str, Any]  # facts of the job, JSON-able
    model: dict[str, Any]  # the plain state_dict in its order: tensors, but for the extra state of some modules
    shared: Any  # state tree: optimizers, schedulers, registered shared objects, epoch
    contexts: list[Any]  # one state tree per EST, by virtual rank


class OtherFormatError(CheckpointError):
    """Whole, but written by a version of EasyScale whose format this one does not read."""


def write_folder(path: Path, snapshot: Snapshot) -> int:
    """Write a checkpoint into an empty folder and make it durable. Returns its size in bytes."""
    weights = {name: value for name, value in snapshot.model.items() if _is_weight(name, value)}
    extra = {name: value for name, value in snapshot.model.items() if name not in weights}
    weights = {name: plain_tensor(tensor, f"model.{name}") for name, tensor in weights.items()}
    sections = {"shared": encode(snapshot.shared), "contexts": encode(snapshot.contexts, "contexts")}
    if extra:
        sections["extra"] = encode(extra, "model")
    record = _json_able(snapshot.record)

    files = {WEIGHTS: write_tensors(path / WEIGHTS, weights)}
    for section, (_, tensors) in sections.items():
        files[_file_of(section)] = write_tensors(path / _file_of(section), tensors)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "step": snapshot.step,
        "record": record,
        "model": [[name, list(dense_strides(weights[name])) if name in weights else None] for name in snapshot.model],
        "structures": {section: structure for section, (structure, _) in sections.items()},
        "files": {name: asdict(facts) for name, facts in files.items()},
    }
    manifest["sha256"] = _digest(manifest)
    written = write_hashed(path / MANIFEST, [_render(manifest)])
    fsync_folder(path)
    return written.size + sum(facts.size for facts in files.values())


def read_folder(path: Path) -> Snapshot:
    """The snapshot of a checkpoint whose every byte has been checked."""
    manifest = read_manifest(path)
    with _damage(path):
        facts = _facts(manifest)
        weights = read_tensors(path / WEIGHTS, facts[WEIGHTS])
        trees = {
            section: decode(structure, read_tensors(path / _file_of(section), facts[_file_of(section)]))
            for section, structure in manifest["structures"].items()
        }
        model = {
            name: _laid_out(weights[name], strides) if strides is not None else trees["extra"][name]
            for name, strides in manifest["model"]
        }
        return Snapshot(manifest["step"], manifest["record"], model, trees["shared"], trees["contexts"])


def verify_folder(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose every byte has been checked, without its tensors in memory."""
    manifest = read_manifest(path)
    with _damage(path):
        for name, facts in _facts(manifest).items():
            with reading(path / name, facts) as reader:
                for _ in reader.pieces():
                    pass
    return manifest


def looks_whole(path: Path) -> bool:
    """A cheap look: the manifest is right and the files have their sizes. Does not read them."""
    try:
        facts = _facts(read_manifest(path))
        return all((path / name).stat().st_size == file.size for name, file in facts.items())
    except (CheckpointError, *_DAMAGE):
        return False


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, checked against its own sha256 and byte for byte against what we would write."""
    with _damage(path):
        try:
            raw = (path / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(path) from None
        manifest: dict[str, Any] = json.loads(raw)
        claimed = manifest.pop("sha256", None)
        if claimed != _digest(manifest) or _render({**manifest, "sha256": claimed}) != raw:
            raise ValueError(f"{MANIFEST} is not as it was written")
    if manifest.get("format") != FORMAT:
        raise OtherFormatError(
            f"The checkpoint {path} has the format {manifest.get('format')}, and this EasyScale reads format {FORMAT}.",
            "it was written by another version of EasyScale.",
            "use that version, or resume from a checkpoint of this one.",
        )
    return manifest


def facts_of(manifest: dict[str, Any], name: str) -> FileFacts:
    return _facts(manifest)[name]


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as problem:
        raise CheckpointError(
            f"The checkpoint {path} is damaged or cannot be read.",
            f"{problem}." if isinstance(problem, OSError | ValueError) else f"{type(problem).__name__}: {problem}.",
            "resume from another checkpoint, and look at the disk that holds this one.",
        ) from problem


def _missing(path: Path) -> CheckpointError:
    return CheckpointError(
        f"There is no checkpoint at {path}.",
        f"it has no {MANIFEST}, which is written last: the path is wrong, or the checkpoint was never complete.",
        "pass the folder of one checkpoint, such as DIR/step-0000000120.",
    )


def _facts(manifest: dict[str, Any]) -> dict[str, FileFacts]:
    facts = {name: FileFacts(**fields) for name, fields in manifest["files"].items()}
    if set(facts) != {WEIGHTS, *map(_file_of, manifest["structures"])}:
        raise ValueError(f"{MANIFEST} names other files than its content needs")
    return facts


def _file_of(section: str) -> str:
    return f"{section}.safetensors"


def _is_weight(name: str, value: Any) -> bool:
    """Whether safetensors can hold the entry under its own name ("__metadata__" is taken by the format)."""
    return isinstance(value, torch.Tensor) and value.dtype in SAFETENSORS_DTYPES and name != "__metadata__"


def _laid_out(tensor: torch.Tensor, strides: list[int]) -> torch.Tensor:
    if tuple(strides) == tensor.stride():
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _json_able(record: dict[str, Any]) -> Any:
    """The record as it will be read back, so that the manifest's sha256 is over that."""
    try:
        return json.loads(json.dumps(record, allow_nan=False))
    except (TypeError, ValueError) as problem:
        raise CheckpointError(
            f"The job's record cannot be written as JSON ({problem}).",
            "a record holds plain facts: text, numbers, lists, and objects with text as keys.",
            "leave out of the record what is not a plain fact.",
        ) from problem


def _render(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, separators=(",", ":"), allow_nan=False).encode()


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(_render(manifest)).hexdigest()
