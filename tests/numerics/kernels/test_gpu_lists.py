"""The Triton kernels for lists of tensors, as far as they can be tried without a GPU (see `triton_lists_probe`), and
how torch's loops are gone round."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.numerics.kernels.triton_lists_probe import compiled, interpreted
from torch.optim import adam as torch_adam
from torch.optim import sgd as torch_sgd

from easyscale.numerics.kernels import updates
from easyscale.numerics.kernels.gpu import lists
from easyscale.numerics.kernels.install import installed

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@functools.cache
def _complaints(kind: str) -> dict[str, str]:
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if kind == "interpreted" else {})
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "triton_lists_probe.py"), kind],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("check", interpreted())
def test_a_kernel_gives_the_bits_of_torchs_loop_in_the_interpreter(check: str) -> None:
    assert not _complaints("interpreted")[check]


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("check", compiled())
def test_a_kernel_is_compiled_to_the_operations_that_are_written(check: str) -> None:
    assert not _complaints("compiled")[check]


def test_torchs_loops_are_replaced_while_installed_and_put_back() -> None:
    """They have the arguments that we know: else updates are right, but slow on a GPU."""
    before = torch_adam._single_tensor_adam, torch_sgd._single_tensor_sgd
    with installed():
        assert torch_adam._single_tensor_adam.__wrapped__ is before[0]  # type: ignore[attr-defined]
        assert torch_sgd._single_tensor_sgd.__wrapped__ is before[1]  # type: ignore[attr-defined]
    assert (torch_adam._single_tensor_adam, torch_sgd._single_tensor_sgd) == before


def test_loops_with_other_arguments_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(params: list[torch.Tensor], something_new: bool) -> None: ...

    monkeypatch.setattr(torch_adam, "_single_tensor_adam", other)
    back = updates.join()
    assert torch_adam._single_tensor_adam is other
    back()
    assert torch_adam._single_tensor_adam is other


def test_tensors_of_one_dense_layout_go_together() -> None:
    x = torch.empty(4, 6)
    image = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert updates._one_layout(x, [torch.empty(4, 6)])
    assert updates._one_layout(image, [torch.empty_like(image)])
    assert updates._one_layout(x.t(), [x.t()])
    for first, other in (
        (x, torch.empty(24)), (x, x.double()), (x, torch.empty(6, 4).t()), (x.t(), torch.empty(6, 4)),
        (x[:, ::2], x[:, ::2]), (image, image.contiguous()), (torch.empty(1).expand(4), torch.empty(1).expand(4)),
    ):  # fmt: skip
        assert not updates._one_layout(first, [other])


def test_chunks_cover_each_tensor_once() -> None:
    found = lists._chunks([10, 0, 4, 1], 4)
    assert [(entry >> 40, entry & (1 << 40) - 1) for entry in found] == [(0, 0), (0, 4), (0, 8), (2, 0), (3, 0)]
