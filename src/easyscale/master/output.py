"""Cuts the bytes of a pipe into lines, whatever pieces they come in."""

from __future__ import annotations

import re


class Lines:
    """`feed` returns the lines that are complete now; `rest` what is left when the pipe has ended.

    A line longer than `limit` is given out in pieces, so that memory stays bounded. `returns`: a carriage
    return ends a line as well, for progress bars, and what is empty then is dropped.
    """

    def __init__(self, limit: int, *, returns: bool = False) -> None:
        self._limit, self._returns, self._buffer = limit, returns, b""

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer + data
        if self._returns:
            held = b"\r" if buffer.endswith(b"\r") else b""  # it may be the first half of "\r\n"
            pieces = re.split(rb"(\r\n|\n|\r)", buffer.removesuffix(b"\r"))
            lines = [line for line, end in zip(pieces[::2], pieces[1::2], strict=False) if line or end != b"\r"]
            self._buffer = pieces[-1] + held
        else:
            *lines, self._buffer = buffer.split(b"\n")
        if len(self._buffer) > self._limit:
            lines.append(self.rest())
        return lines

    def rest(self) -> bytes:
        rest, self._buffer = self._buffer.rstrip(b"\r") if self._returns else self._buffer, b""
        return rest
