"""What a user can get wrong about `easyscale verify` is refused before any process starts, in words about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from easyscale.cli.main import app
from easyscale.core.errors import EasyScaleError


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--plan", "9"], "--plan 9 does not fit a job of 4 ESTs"),
        (["--plan", "many"], "--plan many does not fit"),
        (["--plan", "1+9"], "--plan 1+9 does not fit"),
        (["--plan", "5:1"], "--plan 5:1 does not fit"),
        (["--timeout", "-1"], "--timeout -1 is not a time"),
        (["--certificate", "no/such/folder/c.json"], "such as --certificate report.json"),
        (["--twice", "--plan", "1"], "--twice does not go with --plan"),
        (["--negative-control", "--certificate", "c.json"], "--negative-control does not go with --certificate"),
        (["--negative-control", "--plan", "1"], "--negative-control does not go with --plan"),
        (["--twice", "--negative-control"], "--twice does not go with --negative-control"),
    ],
)
def test_a_mistake_is_refused_with_what_to_do(
    options: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit('it was started')")
    done = CliRunner().invoke(app, ["verify", *options, "train.py"])
    assert isinstance(done.exception, EasyScaleError)
    assert what in str(done.exception)
    assert "now:" in str(done.exception)
    assert "--split" not in str(done.exception)
    assert "--workers" not in str(done.exception)
