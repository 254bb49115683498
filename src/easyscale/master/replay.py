"""Runs some global steps of a job again from one of its checkpoints, and compares them with what the job left behind.

The checkpoint's manifest says what ran: script, arguments, ESTs, level. Its steps are compared with the fingerprints of
later checkpoints (their models, and the steps that they have noted), of a report, and of the job's journal. Nothing is
written to the job's folders: the replay has a scratch folder of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easyscale.backends.local import LocalLauncher
from easyscale.core.errors import CheckpointError, EasyScaleError, UnsupportedError, UsageError
from easyscale.core.messages import Fingerprint
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Level, Target, WorkerSpec
from easyscale.master.files import read_json
from easyscale.master.inputs import Said
from easyscale.master.journal import read as read_journal
from easyscale.master.registry import list_jobs
from easyscale.master.resume import MANIFEST
from easyscale.master.retold import retold
from easyscale.master.supervisor import Job, Supervisor
from easyscale.master.verify.stage import QuietScreen
from easyscale.master.workspace import workspace

FINGERPRINTS = (sys.executable, "-m", "easyscale.runtime.checkpoint.fingerprints")
# Records of one run agree in these; a checkpoint of another run in the same folder is no comparison.
_OF_ONE_RUN = ("level", "ests", "seed", "reduction", "d2", "job")


@dataclass(frozen=True, kw_only=True)
class Original:
    """A checkpoint, and what it says about its job. `target`: None: it does not say what ran."""

    path: Path
    step: int
    record: dict[str, Any]
    target: Target | None
    cwd: Path | None
    sha256: str | None  # of the script, as it was then

    @property
    def level(self) -> Level:
        level: Level = self.record["level"]
        return level

    @property
    def device(self) -> str:
        return str(self.record.get("device", "a device that it does not name"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The original's model after a global step: its sha256, and who says so."""

    sha: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    step: int
    original: Point | None
    replayed: str

    @property
    def same(self) -> bool | None:
        """None: there is nothing to compare with."""
        return None if self.original is None else self.original.sha == self.replayed


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What came out. `rows`: one for each step that was run again."""

    original: Original
    rows: tuple[Row, ...]
    asked: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def compared(self) -> int:
        return sum(row.same is not None for row in self.rows)

    @property
    def same(self) -> bool | None:
        """None: no step could be compared."""
        return all(row.same is not False for row in self.rows) if self.compared else None

    @property
    def first_difference(self) -> int | None:
        return next((row.step for row in self.rows if row.same is False), None)


# ---------------------------------------------------------------------------------------- the original


def open_original(path: Path) -> Original:
    """A checkpoint, or the oldest of a folder of them: the most steps can be compared from there."""
    if path.is_dir() and not (path / MANIFEST).exists():
        found = sorted(one for one in path.glob("step-*") if (one / MANIFEST).exists())
        if found:
            path = found[0]
    manifest = _manifest(path)
    record, step = manifest["record"], manifest["step"]
    target, cwd, sha = _target_in(record)
    return Original(path=path.absolute(), step=step, record=record, target=target, cwd=cwd, sha256=sha)


def _manifest(path: Path) -> dict[str, Any]:
    """Workers check the checkpoint to the last byte; here it is enough to know what it is."""
    manifest = read_json(path / MANIFEST)
    if manifest is None:
        raise CheckpointError(
            f"There is no checkpoint at {path}.",
            f"it has no {MANIFEST} that can be read." if path.is_dir() else "there is no such folder.",
            "pass the folder of one checkpoint, such as checkpoints/step-0000000120, or a folder of them.",
        )
    record, step = manifest.get("record"), manifest.get("step")
    facts = record if isinstance(record, dict) else {}
    known = facts.get("level") in ("D0", "D1", "D2") and isinstance(facts.get("ests"), int)
    if not known or not isinstance(step, int):
        raise CheckpointError(
            f"The checkpoint {path} cannot be replayed.",
            "its manifest does not say which job it belongs to.",
            "pass a checkpoint that `easyscale run` has written.",
        )
    return manifest


def _target_in(record: Mapping[str, Any]) -> tuple[Target | None, Path | None, str | None]:
    raw = record.get("target")
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        return None, None, None
    target = Target(raw["name"], tuple(map(str, raw.get("args") or ())), bool(raw.get("module")))
    return target, Path(str(raw.get("cwd") or ".")), raw.get("sha256")


def refuse_other_device(original: Original, device: str) -> None:
    """Below D2 a checkpoint belongs to the device type on which it was written."""
    if original.level == "D2" or (device == "cpu") == original.device.startswith("cpu"):
        return  # the same kind of device: the workers compare the rest of the record
    raise UnsupportedError(
        f"The checkpoint {original.path} cannot be replayed on {device}.",
        f"it was written at level {original.level} on {original.device}, and level {original.level} keeps its bits on "
        "that device type alone: every step would differ, and that would say nothing.",
        f"replay it on {original.device} (--device {'cpu' if device != 'cpu' else 'cuda'}), or run the job at "
        "--determinism D2.",
    )


def place_of(original: Original, given: Target | None) -> tuple[Target, Path, tuple[str, ...]]:
    """What to run, in which folder, and what has to be said about it."""
    if given is None and original.target is None:
        raise UsageError(
            f"The checkpoint {original.path} does not say which script wrote it.",
            "it was written by an older version, or by a session that had no script.",
            f"name the script and its arguments: easyscale replay {original.path} -- SCRIPT ARGS...",
        )
    target = given or original.target
    assert target is not None
    there = original.cwd is not None and original.cwd.is_dir() and os.access(original.cwd, os.X_OK)
    folder = original.cwd if given is None and there and original.cwd is not None else Path.cwd()
    if target.module:
        return target, folder, ()
    if not (folder / target.name).is_file():
        why = f"the checkpoint was written by it, in {original.cwd}." if given is None else f"not from {folder}."
        raise UsageError(
            f"There is no script {target.name}.",
            why,
            f"name the script on this machine: easyscale replay {original.path} -- SCRIPT ARGS...",
        )
    now = hashlib.sha256((folder / target.name).read_bytes()).hexdigest()
    changed = original.sha256 is not None and now != original.sha256
    return target, folder, ("The script is not the one that wrote the checkpoint: it has changed.",) if changed else ()


# ---------------------------------------------------------------------------------------- what to compare with


def points_of(original: Original, report: Path | None) -> tuple[dict[int, Point], tuple[str, ...]]:
    """What is known of the original's steps after the checkpoint, the first source that knows a step; and notes."""
    found: dict[int, Point] = {}
    notes: list[str] = []
    sources = [_in_checkpoints(original, notes), _in_journal(original)]
    if report is not None:
        sources.insert(0, _in_report(report, original.record["ests"]))
    for source in sources:
        for step, point in source.items():
            known = found.setdefault(step, point)
            if known.sha != point.sha:
                notes.append(f"Step {step} has another sha256 in {point.source} than in {known.source}.")
    return {step: point for step, point in sorted(found.items()) if step > original.step}, tuple(notes)


def _in_report(path: Path, ests: int) -> dict[int, Point]:
    raw = read_json(path)
    prints = raw.get("step_fingerprints") if raw is not None else None
    if raw is None or not isinstance(prints, dict):
        raise UsageError(
            f"{path} is not a report.", "it is not what `easyscale run --report FILE` writes.", "check the path."
        )
    if raw.get("ests") != ests:
        raise UsageError(
            f"{path} is the report of another job.",
            f"that job had {raw.get('ests')} ESTs, the checkpoint's has {ests}.",
            "give the report of the run that wrote the checkpoint.",
        )
    found = {int(step): Point(sha=str(sha), source=path.name) for step, sha in prints.items() if step.isdigit()}
    if isinstance(raw.get("fingerprint"), str) and isinstance(raw.get("steps"), int):
        found.setdefault(raw["steps"], Point(sha=raw["fingerprint"], source=path.name))
    return found


def _in_checkpoints(original: Original, notes: list[str]) -> dict[int, Point]:
    """Later checkpoints of the same run: the steps that they have noted, and their own models."""
    found: dict[int, Point] = {}
    later = []
    for path in sorted(original.path.parent.glob("step-*")):
        manifest = read_json(path / MANIFEST)
        if manifest is None or not isinstance(manifest.get("step"), int) or manifest["step"] <= original.step:
            continue
        record = manifest.get("record") or {}
        if any(record.get(name) != original.record.get(name) for name in _OF_ONE_RUN):
            notes.append(f"{path.name} is a checkpoint of another run and was passed by.")
            continue
        later.append((path, manifest["step"]))
        for step, sha in (record.get("fingerprints") or {}).items():
            found.setdefault(int(step), Point(sha=str(sha), source=path.name))
    for (path, step), sha in zip(later, _models([path for path, _ in later]), strict=True):
        if sha is None:
            notes.append(f"{path.name} is damaged and was passed by.")
        else:
            found[step] = Point(sha=sha, source=path.name)
    return found


def _models(paths: Sequence[Path]) -> list[str | None]:
    if not paths:
        return []
    done = subprocess.run((*FINGERPRINTS, *map(str, paths)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EasyScaleError(
            "The checkpoints after the given one could not be read.",
            (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1],
            "see that torch can be imported: python -c 'import torch'.",
        )
    shas = json.loads(done.stdout)
    return [shas[str(path)] for path in paths]


def _in_journal(original: Original) -> dict[int, Point]:
    """Of a job on this machine that has written to the checkpoint's folder."""
    found: dict[int, Point] = {}
    with contextlib.suppress(EasyScaleError, OSError):  # a registry that cannot be read has nothing to say
        for folder in list_jobs():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                heading, entries = read_journal(folder.journal)
                of, record = heading.job.template, original.record
                ours = (str(original.path.parent), record["ests"], record["level"], record.get("job"))
                if (of.checkpoint_dir, of.ests, of.determinism, of.job) != ours:
                    continue
                for entry in entries:
                    if isinstance(entry.given, Said) and isinstance(entry.given.body, Fingerprint):
                        said = entry.given.body
                        found[said.step] = Point(sha=said.sha, source=f"journal of {folder.id}")
    return found


# ---------------------------------------------------------------------------------------- the run


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where and how the replay runs."""

    device: str = "cpu"
    threads: int | None = None  # None: as many as the original had
    workers: int = 1
    timeout: float = 300.0
    quiet: bool = False


def replay(
    original: Original, points: Mapping[int, Point], steps: int, target: Target, folder: Path, around: Surroundings
) -> Replay:
    """Run `steps` global steps from the checkpoint on this machine."""
    record = original.record
    threads = around.threads or (record.get("threads") if original.level != "D2" else None) or 1
    with workspace() as scratch, contextlib.chdir(folder):
        template = WorkerSpec(
            ests=record["ests"], device=around.device, threads=threads, determinism=original.level,
            timeout=around.timeout, job="replay", checkpoint_dir=str(scratch / "checkpoints"),
            resume=str(original.path), max_steps=original.step + steps, fingerprint_every=1,
        )  # fmt: skip
        plan = Plan(tuple(record["split"])) if original.level == "D0" else Plan.even(record["ests"], around.workers)
        job = Job(target=target, schedule=Schedule(((0, plan),)), template=template)
        screen = QuietScreen(quiet=around.quiet, color="NO_COLOR" not in os.environ)
        outcome = Supervisor(job, LocalLauncher(os.environ), screen, title="replay").run()
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.exit_code != 0:
        raise retold(
            f"The script {target.name} failed, so the steps could not be replayed.", outcome.error, list(screen.lines),
            "see that it finds its data here, and that it is the script that wrote the checkpoint.",
        )  # fmt: skip
    prints = outcome.state.step_fingerprints
    rows = tuple(
        Row(step=step, original=points.get(step), replayed=sha)
        for step, sha in sorted(prints.items())
        if step > original.step
    )
    notes = [f"The script ended after step {original.step + len(rows)}."] if len(rows) < steps else []
    return Replay(original=original, rows=rows, asked=steps, seconds=outcome.seconds, notes=tuple(notes))
