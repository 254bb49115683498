"""Runs operators on fixed inputs and prints a digest of every output, for comparing instruction sets and threads.

    python isa_probe.py stock|d2 THREADS

The inputs are those of isa_samples.py: large, odd and special ones, forward and backward.
Every aten operator that is called is noted below autograd as digest of its inputs -> digest of its outputs, so that an
operator is compared only where it got the same inputs: one with other bits does not accuse those that come after it.
Prints JSON: {operator: {inputs: outputs}}. With d2, the D2 forms are installed and the operators are seen from above.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from isa_samples import samples  # this file runs as a program of its own


def digest(values: Any) -> str:
    """Of all tensors in order: dtype, shape and bytes in row-major order. NaN is NaN whatever its payload."""
    sha = hashlib.sha256()
    for value in pytree.tree_leaves(values):
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_quantized:
                sha.update(b"?")
                continue
            value = value.detach().resolve_conj().resolve_neg()
            sha.update(f"{value.dtype}{tuple(value.shape)}{value.is_contiguous()}".encode())
            if value.is_floating_point():
                value = torch.where(value.isnan(), torch.full((), float("nan"), dtype=value.dtype), value)
            flat = value.contiguous().reshape(-1)
            sha.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        else:
            sha.update(b"generator" if isinstance(value, torch.Generator) else repr(value).encode())
    return sha.hexdigest()[:16]


class Noting(TorchDispatchMode):
    """Notes each aten operator as it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[str, dict[str, str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        overload = f".{func._overloadname}" if func._overloadname != "default" else ""
        name = func._schema.name.removeprefix("aten::") + overload
        inputs = digest((args, kwargs))
        result = func(*args, **kwargs)
        if "empty" not in name:
            self.notes.setdefault(name, {})[inputs] = digest((result, args if func._schema.is_mutable else ()))
        return result


def main(kind: str, threads: int) -> dict[str, dict[str, str]]:
    """Run all samples."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    if kind == "d2":
        from easyscale.numerics.kernels.install import installed

        context: Any = installed()
    else:
        torch._C._set_mkldnn_enabled(False)
        context = nullcontext()
    with context, Noting() as noting:
        for sample in samples():
            try:
                sample()
            except Exception as error:
                print(error, file=sys.stderr)
    return noting.notes


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
