"""The directory of a user's jobs, files that survive a crash, processes told apart from later ones with their pid."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from easyscale.core.errors import EasyScaleError


def jobs_directory(environment: Mapping[str, str] | None = None) -> Path:
    """$XDG_RUNTIME_DIR/easyscale/jobs or, without that, easyscale-<uid>/jobs in the temporary directory."""
    runtime = (os.environ if environment is None else environment).get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and _is_ours(runtime):
        top = Path(runtime) / "easyscale"
    else:
        top = Path(tempfile.gettempdir()) / f"easyscale-{os.getuid()}"
    for folder in (top, top / "jobs"):
        _own_folder(folder)
    return top / "jobs"


def _is_ours(runtime: str) -> bool:
    """After `sudo -E` it is another user's, who would find our folder in the way of theirs."""
    try:
        return os.stat(runtime).st_uid == os.getuid() and os.access(runtime, os.W_OK | os.X_OK)
    except OSError:
        return False


def _own_folder(folder: Path) -> None:
    """Make it, or see that nobody else could have: tokens lie in there, and commands act on what they read."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        facts = folder.lstat()
    except OSError as problem:
        raise EasyScaleError(
            f"The runtime directory {folder} cannot be made.",
            f"{problem.strerror or problem}.",
            "set XDG_RUNTIME_DIR to a folder of yours.",
        ) from None
    if not stat.S_ISDIR(facts.st_mode):
        why = "it is a symbolic link or a file, and could lead anywhere."
    elif facts.st_uid != os.getuid():
        why = f"it belongs to the user with number {facts.st_uid}, who could read and change your jobs there."
    elif facts.st_mode & 0o077:
        why = f"others may read or write it (mode {stat.S_IMODE(facts.st_mode):o}), and tokens lie in there."
    else:
        return
    raise EasyScaleError(
        f"The runtime directory {folder} is not safe.", why, "remove it, or set XDG_RUNTIME_DIR to a folder of yours."
    )


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all, also if the machine stops in the middle."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    file = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as out:
            json.dump(value, out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """None: not there, not whole, or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_Record = TypeVar("_Record")
_PLAIN: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}


def fold(kind: type[_Record], raw: dict[str, Any] | None) -> _Record | None:
    """The record, if all its fields are there and plain ones have their type; unknown fields are left out."""
    if raw is None:
        return None
    facts = fields(kind)  # type: ignore[arg-type]
    known = {fact.name: raw[fact.name] for fact in facts if fact.name in raw}
    types = {fact.name: _PLAIN.get(str(fact.type)) for fact in facts}
    if any(wanted and not isinstance(known.get(name, wanted[0]()), wanted) for name, wanted in types.items()):
        return None
    try:
        return kind(**known)
    except TypeError:
        return None


def process_start(pid: int) -> str | None:
    """When a process began, as a word that no later process with its pid has. None: it does not run."""
    try:
        # The name in the second field may hold anything, brackets and spaces included.
        after = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if after[0] in "ZX" else f"{after[19]}@{boot}"


def is_alive(pid: int, started: str) -> bool:
    """The process lives and is the same one, not a later one with its pid."""
    return pid > 0 and process_start(pid) == started
