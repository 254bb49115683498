"""What a master that is started again must know: all that its predecessor heard, in a file of one JSON line each.

The first line describes the job. Lines are appended before their effects: one write for all that came in together. The
last line may be torn by a crash; nothing that it says has had an effect, so it is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from easyscale.core.cluster import Slot, slots_of_plain
from easyscale.core.control import Frame, pack, unpack
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import Target, WorkerSpec
from easyscale.core.verdict import Verdict
from easyscale.master.inputs import FACTS, Input, Said
from easyscale.master.launch import Outputs
from easyscale.master.limits import Limits
from easyscale.master.supervisor import Job

MOST_UNWRITTEN = 16 << 20  # bytes kept for a folder that is full; beyond, a restarted master would miss steps


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An input, when it came by a clock that never jumps, and by the clock on the wall."""

    now: float
    wall: float
    given: Input


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The job, as the first line describes it."""

    job: Job
    limits: Limits
    outputs: Outputs
    title: str
    first_step: int
    slots: tuple[Slot, ...] | None = None  # the devices that it begins on, where they have names
    kinds: tuple[str, ...] = ()  # types of devices that it may be given later
    verdict: Verdict | None = None  # of `easyscale scan`, where the script was scanned


class Journal:
    """Open for appending. `write` returns when the lines are with the operating system: a master's own death does
    not take them away."""

    def __init__(self, path: Path) -> None:
        self._unwritten = b""
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._mend(path)

    def head(self, heading: Heading) -> None:
        self._write(json.dumps(_plain_heading(heading)).encode() + b"\n")

    def write(self, entries: Iterable[Entry]) -> None:
        lines = b"".join(map(_line, entries))
        if lines:
            self._write(lines)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, lines: bytes) -> None:
        """A folder that is full costs the job its next master, not its workers: what is missing is kept apart."""
        view = memoryview(self._unwritten + lines)
        self._unwritten = b""
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            self._unwritten = bytes(view[-MOST_UNWRITTEN:])

    def _mend(self, path: Path) -> None:
        """End a torn line, so that the next one stands on its own."""
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    self._write(b"\n")


def read(path: Path) -> tuple[Heading, list[Entry]]:
    """All whole lines of a journal."""
    with path.open("rb") as file:
        heading = _heading(json.loads(file.readline()))
        return heading, list(_entries(file))


def _entries(lines: Iterable[bytes]) -> Iterator[Entry]:
    for line in lines:
        try:
            raw = json.loads(line)
        except ValueError:  # torn
            continue
        given = _given(raw)
        if given is not None:
            yield Entry(now=raw["now"], wall=raw["wall"], given=given)


def _line(entry: Entry) -> bytes:
    given = entry.given
    if isinstance(given, Said):
        frame = Frame(body=given.body, sender=given.worker, seq=given.seq)
        body = b'"frame":' + pack(frame, "").rstrip(b"\n")
    else:
        body = b'"fact":' + json.dumps(asdict(given)).encode()
    return b'{"now":%r,"wall":%r,%s}\n' % (entry.now, entry.wall, body)


def _given(raw: dict[str, Any]) -> Input | None:
    if "frame" in raw:
        frame = unpack(json.dumps(raw["frame"]).encode(), "")
        if frame is None or frame.sender is None:
            return None
        return Said(worker=frame.sender, body=frame.body, seq=frame.seq)
    fact = dict(raw["fact"])
    for name in ("split", "workers"):
        if isinstance(fact.get(name), list):
            fact[name] = tuple(fact[name])
    if fact.get("slots") is not None:
        fact["slots"] = slots_of_plain(fact["slots"])
    given: Input = FACTS[fact["kind"]](**fact)
    return given


def _plain_heading(heading: Heading) -> dict[str, Any]:
    job, outputs = heading.job, heading.outputs
    return {
        "target": asdict(job.target),
        "schedule": [[step, plan.split] for step, plan in job.schedule.entries],
        "template": job.template.to_json(),
        "limits": asdict(heading.limits),
        "report": str(outputs.report) if outputs.report is not None else None,
        "metrics_dir": str(outputs.metrics_dir) if outputs.metrics_dir is not None else None,
        "title": heading.title,
        "first_step": heading.first_step,
        "slots": None if heading.slots is None else [asdict(slot) for slot in heading.slots],
        "kinds": list(heading.kinds),
        "verdict": None if heading.verdict is None else heading.verdict.plain(),
    }


def _heading(raw: dict[str, Any]) -> Heading:
    target, limits = dict(raw["target"]), dict(raw["limits"])
    target["args"] = tuple(target["args"])
    if limits.get("workers") is not None:
        limits["workers"] = tuple(limits["workers"])
    known = {field.name for field in fields(Limits)}
    return Heading(
        job=Job(
            target=Target(**target),
            schedule=Schedule(tuple((step, Plan(tuple(split))) for step, split in raw["schedule"])),
            template=WorkerSpec.from_json(raw["template"]),
        ),
        limits=Limits(**{name: value for name, value in limits.items() if name in known}),
        outputs=Outputs(
            report=Path(raw["report"]) if raw["report"] else None,
            metrics_dir=Path(raw["metrics_dir"]) if raw["metrics_dir"] else None,
        ),
        title=raw["title"],
        first_step=raw["first_step"],
        slots=None if raw.get("slots") is None else slots_of_plain(raw["slots"]),
        kinds=tuple(raw.get("kinds", ())),
        verdict=None if raw.get("verdict") is None else Verdict.of_plain(raw["verdict"]),
    )
