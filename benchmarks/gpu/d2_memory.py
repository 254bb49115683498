"""The memory of one training step at D2, counted without a GPU: tensors without data, and no kernel is launched.

    python benchmarks/gpu/d2_memory.py [--models vgg19,resnet50] [--bound MIB]

Every tensor of a step, those of the forms of D2 and the workspace of their kernels included, is made on torch's device
`meta`; what is alive at a time is added up. Twice: by stock operators, without the workspace that cuDNN takes, which
nobody can count here; and by D2's. The second step counts: optimizers have made their state by then.
"""

from __future__ import annotations

import argparse
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "src")]

# ruff: noqa: E402  the line above comes first
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from easyscale.numerics.kernels import stock


def of_stock(name: str) -> Any:
    """`stock.stock` for tensors without data: the operator itself, past the forms."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def call(*args: Any, **options: Any) -> Any:
        with _disable_current_modes():
            return operator(*args, **options)

    return call


stock.stock = of_stock  # before the forms ask for it
from benchmarks.gpu.d2_models import ALL
from benchmarks.gpu.d2_timing import Row, show

from easyscale.numerics.kernels import gpu, install, primitives
from easyscale.numerics.kernels.gpu import launch, sliced_convolutions, slices, workspace
from easyscale.runtime.d2 import plain_updates

ROUNDED = 512  # bytes: torch's allocator gives multiples of it
SMS = 132  # of an H200


class Counted(TorchDispatchMode):
    """Bytes of storages that are alive, and the most that were at a time; by D2's forms if there are any."""

    def __init__(self, forms: dict[str, Any]) -> None:
        super().__init__()
        self.forms = forms
        self.now = self.most = 0
        self.where = ""
        self.alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::")
        if name == "_local_scalar_dense":
            return args[0].dtype is not torch.bool  # there is no value: steps are the first one, and nothing holds
        form = self.forms.get(name.removesuffix(".default"))
        if form is None:
            made = func(*args, **(kwargs or {}))
        else:
            with self:
                made = form(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor, name)
        return made

    def count(self, tensor: torch.Tensor, name: str = "") -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // ROUNDED) * ROUNDED
        if key in self.alive:
            return

        def gone(_: object) -> None:
            self.alive.pop(key)
            self.now -= size

        self.alive[key] = weakref.ref(storage, gone)
        self.now += size
        if self.now > self.most:
            self.most, self.where = self.now, name


@contextmanager
def without_a_gpu() -> Iterator[None]:
    """D2's forms take the way of a GPU, up to the launches."""
    nothing = lambda *args, **named: None  # noqa: E731
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith(gpu.__name__):
                for what, value in (("launch", nothing), ("processors", lambda device: SMS)):
                    if callable(getattr(module, what, None)):
                        stack.enter_context(patch.object(module, what, value))
        stack.enter_context(patch.object(launch.Launch, "__call__", nothing))
        stack.enter_context(patch.object(primitives, "implementation", lambda device: gpu))
        for module in (slices, sliced_convolutions):
            stack.enter_context(patch.object(module, "tile_for", lambda device: slices.TILES[0]))
        yield


def step_of(name: str, d2: bool) -> Counted:
    work = ALL[name]
    size, batch = "full", work.batch_of("full")
    part = next(iter(torch.utils.data.DataLoader(work.data(size, batch), batch_size=batch)))
    with torch.device("meta"):
        model = work.build(size)
    part = pytree.tree_map(lambda x: x.to("meta"), part)
    optimizer = work.optimizer(model)
    plain_updates(optimizer)
    counted = Counted(install.kernels("cuda") if d2 else {})
    workspace.release()
    with without_a_gpu(), counted:
        for tensor in (*model.parameters(), *model.buffers(), *pytree.tree_leaves(part)):
            counted.count(tensor)
        for _ in range(2):
            counted.most = 0
            loss = work.loss(model, part)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del loss
    return counted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="vgg19,resnet50")
    parser.add_argument("--bound", type=int, help="MiB of slices at a time, instead of MOST_BYTES")
    chosen = parser.parse_args()
    import torchvision_shim  # noqa: F401  torchvision beside a CPU build of torch

    if chosen.bound is not None:
        workspace.MOST_KEPT = sliced_convolutions.MOST_BYTES = chosen.bound * 2**20
    rows: list[Row] = []
    for name in chosen.models.split(","):
        stock, ours = step_of(name, False), step_of(name, True)
        row: Row = {"model": name, "stock_mib": stock.most >> 20, "d2_mib": ours.most >> 20}
        rows.append({**row, "d2 - stock": (ours.most - stock.most) >> 20, "held_mib": workspace.held() >> 20,
                     "most at": ours.where})  # fmt: skip
    show("memory of a step", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
