"""`easyscale store`: the copy, the way back, and what `check` says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from easyscale.cli.main import app
from easyscale.core.errors import EasyScaleError
from easyscale.service.paths import data_dir
from easyscale.service.records import News
from easyscale.service.store import open_store


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default data folder, with a store of three records."""
    monkeypatch.setenv("EASYSCALE_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("EASYSCALE_STORE", raising=False)
    with open_store(tmp_path / "data") as store:
        store.append([News(time=1.0, kind="job-told") for _ in range(3)])
    return tmp_path / "data"


def easyscale(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["store", *map(str, args)])


def test_a_copy_is_made_and_brought_back(tmp_path: Path) -> None:
    done = easyscale("backup", tmp_path / "copy.db")
    assert done.exit_code == 0
    assert done.output.startswith(f"Wrote {tmp_path / 'copy.db'} (0.")
    done = easyscale("restore", tmp_path / "copy.db", "--data-dir", tmp_path / "other")
    assert done.exit_code == 0
    assert "easyscale up" in done.output
    with open_store(tmp_path / "other") as store:
        assert store.last() == 3


def test_backup_says_what_it_wrote_as_json(tmp_path: Path) -> None:
    facts = json.loads(easyscale("backup", tmp_path / "copy.db", "--json").output)
    assert facts["bytes"] == (tmp_path / "copy.db").stat().st_size
    assert (tmp_path / "copy.db.sha256").read_text() == f"{facts['sha256']}  copy.db\n"


def test_restore_does_not_overwrite(tmp_path: Path) -> None:
    easyscale("backup", tmp_path / "copy.db")
    done = easyscale("restore", tmp_path / "copy.db")
    assert isinstance(done.exception, EasyScaleError)
    assert "nothing is overwritten" in done.exception.why


def test_a_copy_without_checksum_needs_a_word(tmp_path: Path) -> None:
    easyscale("backup", tmp_path / "copy.db")
    (tmp_path / "copy.db.sha256").unlink()
    assert easyscale("restore", tmp_path / "copy.db", "--data-dir", tmp_path / "other").exit_code == 1
    done = easyscale("restore", tmp_path / "copy.db", "--data-dir", tmp_path / "other", "--without-checksum")
    assert done.exit_code == 0


def test_check_says_what_is_there(data: Path) -> None:
    done = easyscale("check")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].split() == ["store", str(data / "easyscale.db")]
    assert ["records", "3"] in [line.split() for line in lines]
    assert lines[-1] == "The store is whole."
    facts = json.loads(easyscale("check", "--json").output)
    assert facts["whole"]
    assert facts["revision"] == facts["newest_revision"] == "0002"
    assert facts["counts"]["records"] == 3


def test_check_finds_damage(data: Path) -> None:
    with open_store(data) as store:
        store.append([News(time=1.0, kind="job-told", body={"n": n}) for n in range(3000)])
    raw = bytearray((data / "easyscale.db").read_bytes())
    raw[-4096 * 4 : -4096 * 3] = b"\xa5" * 4096
    (data / "easyscale.db").write_bytes(raw)
    done = easyscale("check")
    assert done.exit_code == 1
    assert "damaged" in done.output
    assert not json.loads(easyscale("check", "--json").output)["whole"]


def test_a_store_that_is_not_there_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    for args in (("check",), ("backup", str(tmp_path / "copy.db"))):
        done = easyscale(*args, "--data-dir", tmp_path / "nothing")
        assert isinstance(done.exception, EasyScaleError)
        assert "no store" in done.exception.what
    assert not (tmp_path / "nothing").exists()


def test_the_data_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert data_dir(Path("here")) == Path.cwd() / "here"
    assert data_dir() == tmp_path / "data"
    monkeypatch.delenv("EASYSCALE_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert data_dir() == tmp_path / "xdg" / "easyscale"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_dir() == tmp_path / "home" / ".local" / "share" / "easyscale"


def test_help_loads_no_database_library() -> None:
    code = """
import sys
sys.argv = ["easyscale", "store", "check", "--help"]
from easyscale.cli.main import main
try:
    main()
finally:
    print("loaded:", sorted({"sqlalchemy", "alembic", "psycopg"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--data-dir" in done.stdout
    assert done.stderr.strip() == "loaded: []"
