"""Boards on which the workers of a plan leave notes for each other: how they find one another across machines.

A board is a list of notes that only grows. Who meets there hears all notes, old and new. Nothing is kept on the disk: a
worker whose connection breaks comes back and pins its own notes again, also to a master that was started anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from easyscale.core.control import Pin

# Of one plan there are two (its groups, and the state that travels). Workers may be one plan apart, and a plan may be
# called off for the next while they meet; older boards are of nobody's use.
MOST_BOARDS = 16

Guest = TypeVar("Guest", bound=Hashable)


@dataclass
class _Board(Generic[Guest]):
    notes: dict[str, Pin] = field(default_factory=dict)
    guests: list[Guest] = field(default_factory=list)


class Boards(Generic[Guest]):
    """`post` sends notes to a guest. Guests are connections; each is at one board."""

    def __init__(self, post: Callable[[Guest, list[Pin]], None]) -> None:
        self._post = post
        self._boards: dict[str, _Board[Guest]] = {}
        self._at: dict[Guest, _Board[Guest]] = {}

    def meet(self, guest: Guest, name: str) -> None:
        board = self._boards.setdefault(name, _Board())
        while len(self._boards) > MOST_BOARDS:
            self._boards.pop(next(iter(self._boards)))  # its guests, if it has any, wait in vain: their plan is over
        self._at[guest] = board
        board.guests.append(guest)
        if board.notes:
            self._post(guest, list(board.notes.values()))

    def pin(self, guest: Guest, note: Pin) -> bool:
        """False: the guest is at no board."""
        board = self._at.get(guest)
        if board is None:
            return False
        if board.notes.get(note.key) != note:
            board.notes[note.key] = note
            for other in list(board.guests):  # one whose connection breaks leaves meanwhile
                self._post(other, [note])
        return True

    def leave(self, guest: Guest) -> None:
        board = self._at.pop(guest, None)
        if board is not None:
            board.guests.remove(guest)

    def guests(self) -> Iterator[Guest]:
        yield from list(self._at)
