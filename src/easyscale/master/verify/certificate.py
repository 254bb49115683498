"""What a verification leaves behind: what was run, on what, with which result, and what was not checked."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from easyscale.master.report import strict
from easyscale.master.verify.diagnosis import Diagnosis
from easyscale.master.verify.verification import Row, Verification

FORMAT = 1


def certificate(
    result: Verification, *, script: Path | str, args: list[str], mode: str, asked: int | None, ests: int, now: str
) -> dict[str, Any]:
    """Plain JSON. `checksum` is the sha256 of all else, in canonical form."""
    judge = result.rows[0].run
    content: dict[str, Any] = {
        "format": FORMAT,
        "easyscale": _version(),
        "time": now,
        "mode": mode,
        "verdict": result.verdict,
        "script": {"name": str(script), "sha256": _sha(script), "args": args},
        "ests": ests,
        "steps": judge.steps,
        "machine": judge.record,
        "runs": [_run(row) for row in result.rows],
        "diagnosis": None if result.diagnosis is None else _diagnosis(result.diagnosis, result.diagnosed),
        "depends_on": [asdict(cause) for cause in result.depends_on],
        "not_checked": not_checked(result, mode=mode, asked=asked, ests=ests),
    }
    content = strict(content)
    return {**content, "checksum": checksum(content)}


def checksum(content: dict[str, Any]) -> str:
    bare = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def not_checked(result: Verification, *, mode: str, asked: int | None, ests: int) -> list[str]:
    """Sentences, most important first."""
    judge = result.rows[0].run
    known = [loss for losses in judge.losses.values() for loss in losses if loss is not None]
    limits = []
    ended = asked is None or judge.steps < asked
    if judge.error is None:
        limits.append(
            f"The script ended after {judge.steps} steps." if ended else f"What happens after step {judge.steps}."
        )
    if mode == "plans":
        if judge.epochs < 2:
            more = "" if ended else " Raise --steps to pass it."
            limits.append(f"The end of an epoch: all steps lie in the first one.{more}")
        if not known:
            limits.append("Losses: the script logs none with es.log(); data, random states and weights were compared.")
        if ests < 3:
            limits.append(f"Uneven splits: {ests} ESTs have none.")
        limits.append("Other device types, torch versions and thread counts: level D1 does not promise them.")
        limits.append("Several machines: all workers ran on this one.")
    else:
        limits.append("Other machines, versions and thread counts: all runs were made here.")
        if judge.steps == 0:
            limits.append("Steps: no optimizer stepped; the operators of the whole script were compared.")
    limits.append("What the script writes itself: files, prints and plots are not compared.")
    return limits


def _run(row: Row) -> dict[str, Any]:
    run = row.run
    return {
        "name": row.name,
        "kind": row.kind,
        "plans": row.plans,
        "verdict": row.verdict,
        "steps": run.steps,
        "seconds": round(run.seconds, 3),
        "fingerprints": {str(step): sha for step, sha in sorted(run.fingerprints.items())},
        "losses": {str(step): losses for step, losses in sorted(run.losses.items())},
        "witnesses": {
            str(step): {str(est): digests for est, digests in sorted(ests.items())}
            for step, ests in sorted(run.witnesses.items())
        },
        "first_difference": None if row.difference is None else asdict(row.difference),
        "error": run.error,
    }


def _diagnosis(diagnosis: Diagnosis, name: str) -> dict[str, Any]:
    finding = diagnosis.finding
    return {
        "run": name,
        "step": diagnosis.difference.step if finding is None else finding.step,
        "differs": diagnosis.difference.seen,
        "finding": None if finding is None else {**asdict(finding), "text": finding.text},
        "ests": list(diagnosis.ests),
        "re_run_began_at": diagnosis.began_at,
        "unsaved_state": diagnosis.unsaved,
        "causes": [asdict(cause) for cause in diagnosis.causes],
    }


def _version() -> str:
    try:
        return version("easyscale-torch")
    except PackageNotFoundError:
        return "from source"


def _sha(script: Path | str) -> str | None:
    path = Path(script)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
