"""What a person sees of a running job: the workers' lines with their label, and one line of progress.

Lines keep their stream (stdout, stderr). The progress line is redrawn in place on a terminal; elsewhere
it is printed every ten seconds.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from typing import TextIO

from easyscale.core.plan import Plan
from easyscale.master.state import StepRecord

REDRAW_SECONDS = 0.1
REPORT_SECONDS = 10.0
_DIM, _PLAIN, _ERASE = "\x1b[2m", "\x1b[0m", "\r\x1b[2K"


class Progress:
    """The facts behind the progress line. The rate is that of the last steps of the plan in force."""

    def __init__(self, title: str = "") -> None:
        self._title, self._plan = title, ""
        self._in_force: Plan | None = None
        self._last: StepRecord | None = None
        self._recent: deque[StepRecord] = deque(maxlen=50)

    def begin(self, plan: Plan) -> None:
        self._in_force = plan
        self._plan = f"{plan.workers} worker{'s' if plan.workers > 1 else ''} ({plan})"
        self._recent.clear()

    def enter(self, plan: Plan) -> None:
        """The plan that is in force now, which may be the same as before."""
        if self._in_force != plan:
            self.begin(plan)

    @property
    def last(self) -> StepRecord | None:
        return self._last

    def step(self, record: StepRecord) -> None:
        self._last = record
        self._recent.append(record)

    def rate(self) -> float | None:
        """Samples a second."""
        if len(self._recent) < 2:
            return None
        seconds = self._recent[-1].time - self._recent[0].time
        samples = sum(record.samples for record in list(self._recent)[1:])
        return samples / seconds if seconds > 0 and samples else None

    def text(self) -> str:
        parts = [self._title] if self._title else []
        record = self._last
        if record is None:
            return " · ".join([*parts, "starting", self._plan])
        parts += [f"step {record.step + 1}", f"epoch {record.epoch}"]
        name = record.loss_name
        mean = record.mean(name) if name is not None else None
        if mean is not None:
            parts.append(f"{name} {mean:.4f}")
        rate = self.rate()
        if rate is not None:
            parts.append(f"{rate:,.0f} samples/s")
        return " · ".join([*parts, self._plan])


class Screen:
    """Both streams of the launcher, and the progress line at the bottom of a terminal."""

    def __init__(self, stdout: TextIO, stderr: TextIO, *, quiet: bool = False, color: bool = True) -> None:
        self._stdout, self._stderr, self._quiet, self._color = stdout, stderr, quiet, color
        self._live = not quiet and stderr.isatty()
        self._drawn = ""
        self._next = 0.0
        self._broken: set[TextIO] = set()

    def worker_line(self, label: str, text: str, *, error: bool) -> None:
        stream = self._stderr if error else self._stdout
        dim = self._color and stream.isatty()
        prefix = f"{_DIM}[{label}]{_PLAIN} " if dim else f"[{label}] "
        self._print(stream, prefix + text)

    def notice(self, text: str) -> None:
        """Something of ours that is no error."""
        if not self._quiet:
            self._print(self._stderr, text)

    def error(self, text: str) -> None:
        self._print(self._stderr, text)

    def show(self, progress: Progress, now: float) -> None:
        """Redraw or report, if it is time."""
        if self._quiet or now < self._next:
            return
        first, self._next = self._next == 0.0, now + (REDRAW_SECONDS if self._live else REPORT_SECONDS)
        if self._live:
            text = progress.text()[: shutil.get_terminal_size().columns - 1]
            if text != self._drawn:
                self._drawn = text
                self._write(self._stderr, _ERASE + text)
        elif not first:
            self._write(self._stderr, progress.text() + "\n")

    def close(self) -> None:
        """Take the progress line away."""
        self._erase()

    def _print(self, stream: TextIO, text: str) -> None:
        drawn = self._drawn
        self._erase()
        self._write(stream, text + "\n")
        if drawn:
            self._drawn = drawn
            self._write(self._stderr, drawn)

    def _erase(self) -> None:
        if self._drawn:
            self._write(self._stderr, _ERASE)
            self._drawn = ""

    def _write(self, stream: TextIO, text: str) -> None:
        if stream in self._broken:
            return
        encoding = stream.encoding or "utf-8"
        try:
            stream.write(text.encode(encoding, "replace").decode(encoding))
            stream.flush()
        except BrokenPipeError:  # the reader left (`| head`); the training goes on
            self._broken.add(stream)
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
