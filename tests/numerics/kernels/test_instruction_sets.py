"""Every operator of isa_samples.py, under D2, has the same bits under every instruction set of this CPU and with one
thread and two; stock operators that are called safe are among them. `isa_probe` runs them, in a process of its own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from easyscale.numerics.kernels import safe

PROBE = Path(__file__).with_name("isa_probe.py")
Notes = dict[str, dict[str, str]]  # operator -> digest of its inputs -> digest of its outputs
WIDEST = "avx512" if torch.cpu._is_avx512_supported() else "avx2"


def probed(kind: str, capability: str, threads: int) -> Notes:
    done = subprocess.run(
        [sys.executable, str(PROBE), kind, str(threads)], env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert kind == "stock" or not done.stderr, "a sample was not computed"  # stock has no bf16 of some
    found: Notes = json.loads(done.stdout)
    return found


def differing(first: Notes, second: Notes) -> set[str]:
    """Operators with other outputs for the same inputs."""
    return {
        name for name in first.keys() & second.keys()
        if any(first[name][x] != second[name][x] for x in first[name].keys() & second[name].keys())
    }  # fmt: skip


@functools.cache
def oldest() -> Notes:
    return probed("d2", "default", 1)


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "threads"), [("avx2", 2), (WIDEST, 1)])
def test_operators_have_the_same_bits_under_every_instruction_set(capability: str, threads: int) -> None:
    found = probed("d2", capability, threads)
    assert not differing(oldest(), found)
    # From the same start everything has the same bits, so each operator got the same inputs in both.
    assert {name: set(notes) for name, notes in found.items()} == {name: set(n) for name, n in oldest().items()}


@pytest.mark.slow
def test_stock_operators_that_are_not_called_safe_do_differ() -> None:
    """A negative control: the probe sees them."""
    different = differing(probed("stock", "default", 1), probed("stock", WIDEST, 1))
    assert different, "nothing differs between the instruction sets of stock"
    calling = set(safe._CALLING.split())  # made of operators that differ here, and have forms under D2
    assert not {name for name in different - calling if safe.is_safe(name, "cpu")}
