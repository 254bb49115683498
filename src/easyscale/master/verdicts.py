"""Verdicts of `easyscale scan`, kept for whoever runs the same script with the same arguments later.

    <runtime directory>/verdicts/<sha256 of script and arguments>.json

A script that has changed has another name there, and so has one that another version has scanned, so an old verdict is
not used for it; modules that it imports are not looked at. Losing a verdict costs a scan.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.core.spec import Target
from easyscale.core.verdict import Verdict
from easyscale.master.files import jobs_directory, read_json, write_json


def keep_verdict(target: Target, verdict: Verdict) -> None:
    """A folder that cannot be written to is no reason to fail: the verdict was shown."""
    with contextlib.suppress(OSError, EasyScaleError):
        path = _path(target)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(path, verdict.plain())


def find_verdict(target: Target) -> Verdict | None:
    """None: nobody has scanned this script, as it is now, with these arguments."""
    try:
        raw = read_json(_path(target))
        return None if raw is None else Verdict.of_plain(raw)
    except (OSError, ValueError, EasyScaleError):
        return None


def read_verdict(path: Path) -> Verdict:
    """The verdict in a file of `easyscale scan --write`, or in what `--json` printed."""
    try:
        raw = json.loads(path.read_bytes())
        return Verdict.of_plain(raw["verdict"] if isinstance(raw, dict) and "verdict" in raw else raw)
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"{path} holds no verdict ({problem}).",
            "it is not a file that `easyscale scan` has written.",
            "write one with `easyscale scan --write FILE SCRIPT`.",
        ) from None


def _path(target: Target) -> Path:
    what = json.dumps([_version(), target.module, list(target.args)]).encode()
    source = f"{os.getcwd()}\0{target.name}".encode() if target.module else Path(target.name).read_bytes()
    return jobs_directory().parent / "verdicts" / f"{hashlib.sha256(what + source).hexdigest()}.json"


def _version() -> str:
    try:
        return version("easyscale-torch")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ""
