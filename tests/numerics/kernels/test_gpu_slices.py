"""The Triton kernels of exact slices, as far as they can be tried without a GPU (`triton_slices_probe`)."""

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
from tests.numerics.kernels.triton_slices_probe import compiled, interpreted

from easyscale.numerics.kernels.gpu import slices
from easyscale.numerics.kernels.gpu.sliced_convolutions import SMALL, layout_of
from easyscale.numerics.kernels.gpu.slices import MOST_STEPS, TILES, parts_of
from easyscale.numerics.kernels.sliced_convolutions import Correlation

PROBE = Path(__file__).parent / "triton_slices_probe.py"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which is not here")


@functools.cache
def _complaints(kind: str) -> dict[str, str]:
    """A program of its own: Triton decides when it is imported whether it interprets."""
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if kind == "interpreted" else {})
    done = subprocess.run(
        [sys.executable, str(PROBE), kind], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("check", interpreted())
def test_slices_have_the_bits_of_torch_operators_in_the_interpreter(check: str) -> None:
    assert not _complaints("interpreted")[check]


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("check", compiled())
def test_kernels_of_slices_are_compiled_to_the_operations_that_are_written(check: str) -> None:
    assert not _complaints("compiled")[check]


def test_parts_cover_all_steps_and_their_sums_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    for tile in (*TILES, SMALL):
        for busy in (1, 132):
            monkeypatch.setattr(slices, "processors", lambda device, busy=busy: busy)
            for tiles in (1, 7, 5000):
                for k in (1, 255, 256, 1025, 16_384, 16_385, 100_000, 2**24 - 1):
                    number, each = parts_of(tiles, k, tile, torch.device("cpu"))
                    assert each % tile.depth == 0
                    assert (number - 1) * each < k <= number * each
                    assert 4 * 2**14 * each < 2**31
    assert 4 * 2**14 * (MOST_STEPS + 128) < 2**31


def test_what_a_tap_sees_is_the_picture_or_zeros() -> None:
    """The layout on which convolutions are products of shifted blocks, in every place that has a result."""
    for size, taps, low, stride, dilation in [
        (7, 3, 1, 1, 1), (7, 3, 0, 1, 1), (5, 5, 2, 1, 1), (6, 1, 0, 1, 1), (6, 1, 1, 1, 1), (9, 3, 3, 1, 1),
        (9, 3, -2, 1, 1), (9, 2, -1, 1, 3), (8, 3, 1, 2, 1), (8, 1, 0, 2, 1), (11, 3, 2, 3, 2), (12, 3, -1, 2, 1),
        (4, 3, 6, 1, 2), (3, 2, 5, 3, 2),
    ]:  # fmt: skip
        for count in {1, 3, max(1, (size + 2 * low - dilation * (taps - 1) - 1) // stride + 1)}:
            for aligned in (False, True):
                over = Correlation((taps, taps), (low, low), (count, count + 1), (stride,) * 2, (dilation,) * 2)
                _check_layout(torch.Size((3, 1, size, size + 2)), over, aligned)


def _check_layout(shape: torch.Size, over: Correlation, aligned: bool) -> None:
    layout = layout_of(shape, over, aligned)
    assert layout.places >= shape[0] * over.size[0] * over.size[1]
    height, width = over.size
    for image, y, x in [(0, 0, 0), (0, height - 1, width - 1), (1, height // 2, 0), (1, 0, width - 1),
                        (2, 0, 0), (2, height - 1, width - 1)]:  # fmt: skip
        place = image * layout.lines * layout.pitch + y * layout.pitch + x
        for tap_y in range(over.kernel[0]):
            for tap_x in range(over.kernel[1]):
                down, right = tap_y * over.dilation[0], tap_x * over.dilation[1]
                seen = place + down // over.stride[0] * layout.pitch + right // over.stride[1]
                assert seen < layout.places + layout.behind
                within = seen % (layout.lines * layout.pitch)
                row = within // layout.pitch * over.stride[0] + down % over.stride[0] - layout.top
                column = within % layout.pitch * over.stride[1] + right % over.stride[1] - layout.left
                found = (seen // (layout.lines * layout.pitch), row, column)
                real = found[0] < shape[0] and 0 <= row < shape[2] and 0 <= column < shape[3]
                wanted = (
                    image, y * over.stride[0] - over.low[0] + down, x * over.stride[1] - over.low[1] + right
                )  # fmt: skip
                if 0 <= wanted[1] < shape[2] and 0 <= wanted[2] < shape[3]:
                    assert found == wanted
                else:
                    assert not real


def test_layouts_cost_few_places_more_than_there_are_pixels() -> None:
    over = Correlation((3, 3), (1, 1), (28, 28), (1, 1), (1, 1))
    shape = torch.Size((16, 64, 28, 28))
    assert layout_of(shape, over, False).places <= 1.1 * 16 * 28 * 28
    assert layout_of(shape, over, True).pitch == 32
