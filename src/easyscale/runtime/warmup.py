"""A worker that joins a running job warms up before it is counted on, while the others train.

The first worker leaves the arguments of one forward in the job's folder. A newcomer runs that forward and a backward:
kernels are loaded, libraries have their handles, `torch.compile` has compiled. What this changes (gradients, buffers,
random states) is put back. It is help, not duty: where it fails, the first step is slower, and an event says why.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch.nn.parallel import DistributedDataParallel

from easyscale.core.errors import CheckpointError
from easyscale.numerics.buckets import bucket_limits
from easyscale.numerics.rng import RngState
from easyscale.runtime import codec

if TYPE_CHECKING:
    from easyscale.runtime.session import EstSession

SAMPLE = "sample"  # the name of the file beside the master's
LARGEST = 256 << 20  # bytes; the folder may lie in memory


class Sample:
    """The arguments of the first forward, kept once."""

    def __init__(self, session: EstSession) -> None:
        control = session.spec.control
        endpoint = control.endpoint if control is not None else None
        self._path = Path(endpoint).parent / SAMPLE if endpoint is not None else None
        self._wanted = self._path is not None

    def look(self, session: EstSession, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """At each forward; all but the first cost nothing."""
        if not self._wanted or session.turns.current is None or not torch.is_grad_enabled():
            return
        self._wanted = False
        if session.talk.worker != 0:
            return
        kind = session.device.type
        facts = {"autocast": torch.is_autocast_enabled(kind), "dtype": str(torch.get_autocast_dtype(kind))}
        try:
            tree = codec.to_host({"args": list(args), "kwargs": dict(kwargs), **facts})
        except CheckpointError:  # something that has no plain form: no warm-up then
            return
        threading.Thread(target=self._write, args=(tree,), name="easyscale-sample", daemon=True).start()

    def _write(self, tree: Any) -> None:
        assert self._path is not None
        structure, tensors = codec.encode(tree)
        if sum(tensor.nbytes for tensor in tensors.values()) > LARGEST:
            return
        part = self._path.with_suffix(".part")
        try:
            text = json.dumps(structure).encode()
            part.write_bytes(len(text).to_bytes(8, "little") + text + safetensors.torch.save(tensors))
            part.replace(self._path)
        except OSError:  # a full folder costs a newcomer its warm-up
            part.unlink(missing_ok=True)

    def read(self) -> dict[str, Any] | None:
        if self._path is None or not self._path.exists():
            return None
        raw = self._path.read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        tree: dict[str, Any] = codec.decode(json.loads(raw[8:end]), safetensors.torch.load(raw[end:]))
        return tree


def warm_up(session: EstSession, model: torch.nn.Module) -> None:
    """Before anything of ours hangs on the model."""
    random = RngState.capture(session.random_device)
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        sample = session.sample.read()
        if sample is not None:
            _run(session, model, sample)
    except Exception as problem:
        text = f"The warm-up of worker {session.spec.worker} failed ({type(problem).__name__}: {problem})."
        session.journal.event("warm-up-failed", text.replace("\n", " "), session.step)
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter in model.parameters():
            parameter.grad = None
        random.restore(session.random_device)


def _run(session: EstSession, model: torch.nn.Module, sample: dict[str, Any]) -> None:
    kind = session.device.type
    dtype = getattr(torch, str(sample["dtype"]).removeprefix("torch."))
    args, kwargs = codec.to_device((sample["args"], sample["kwargs"]), session.device)
    hint: Any = SimpleNamespace(bucket_bytes_cap=bucket_limits(session.options.bucket_cap_mb)[-1])
    DistributedDataParallel._active_ddp_module = hint
    try:
        with torch.autocast(kind, dtype) if sample["autocast"] else nullcontext():
            output = model(*args, **kwargs)
    finally:
        DistributedDataParallel._active_ddp_module = None
    losses = [tensor.float().sum() for tensor in _tensors(output) if tensor.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    if kind == "cuda":
        torch.cuda.synchronize(session.device)


def _tensors(output: Any) -> list[torch.Tensor]:
    """What a model may return: tensors in containers and in records such as those of Hugging Face."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return [tensor for part in output for tensor in _tensors(part)]
    return []
