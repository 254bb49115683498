"""What a process prints, until someone has taken it: a piece of its output of bounded length."""

from __future__ import annotations

MOST_KEPT = 4 << 20  # bytes; a master that is away for a minute misses less than that of a job that prints sanely


class Tape:
    """`write` what comes, `read` from a place on. What is `taken` is forgotten; of the rest, the oldest goes first."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._kept = bytearray()
        self.begin = 0  # the place of the first byte that is kept
        self._lost = 0  # bytes that nobody took in time, since the last reading

    @property
    def end(self) -> int:
        return self.begin + len(self._kept)

    def write(self, data: bytes) -> None:
        self._kept += data
        surplus = len(self._kept) - self._most
        if surplus > 0:
            self._drop(surplus)
            self._lost += surplus

    def taken(self, place: int) -> None:
        """All before `place` is safe with a reader."""
        if self.begin < place <= self.end:
            self._drop(place - self.begin)

    def read(self, most: int) -> tuple[bytes, int]:
        """What is next, and the place behind it. A gap is told in a line of its own."""
        data = bytes(self._kept[:most])
        behind = self.begin + len(data)
        if self._lost:
            note = f"\n[easyscale: {self._lost} bytes were printed here that nobody took in time]\n"
            data, self._lost = note.encode() + data, 0
        return data, behind

    def _drop(self, count: int) -> None:
        del self._kept[:count]
        self.begin += count
