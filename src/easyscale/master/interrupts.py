"""Signals to the launcher, noted instead of obeyed: the supervisor heeds them between two looks."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

_HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered, counts the signals that ask the job to stop. Main thread only, as Python demands."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.count = 0
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in _HEEDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` and `&` in scripts ask for that
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or signal.Signals(number)
        self.count += 1
