"""Every example keeps the promise: one worker, an uneven split and stock DDP print the same last line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*/train.py"))


def printed_by(script: Path, *flags: str, folder: Path) -> str:
    command = (sys.executable, "-m", "easyscale", "run", "--ests", "4", *flags, "-q", str(script))
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found = re.fullmatch(r"\[(?:worker|rank) 0[^]]*\] ([0-9a-f]{64})\n", done.stdout)
    assert found, done.stdout
    return found.group(1)


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_prints_the_same_fingerprint_however_it_runs(script: Path, tmp_path: Path) -> None:
    runs = (("--engine", "ddp"), ("--workers", "1"), ("--split", "3,1"))
    printed = {" ".join(flags): printed_by(script, *flags, folder=tmp_path) for flags in runs}
    assert len(set(printed.values())) == 1, printed
