"""Members of a plan that share no file meet on a board of the master: with its token, also across its restart."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from easyscale.core.control import Frame, Hello, Meet, Pin, pack
from easyscale.master.boards import MOST_BOARDS, Boards
from easyscale.master.channel import Channel
from easyscale.runtime.board import BoardKeeper, BoardStore
from elasticity import wait_until

SECONDS = timedelta(seconds=30)


class Master:
    """A control channel on a thread, with two workers that it knows."""

    def __init__(self, port: int = 0) -> None:
        self.selector = selectors.DefaultSelector()
        self.channel = Channel(self.selector, "secret", self, "127.0.0.1", port)
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def knows(self, worker: int) -> bool:
        return worker in (0, 1)

    def heard(self, said: Any) -> None:
        pass  # a worker that says hello

    def asked(self, request: Any) -> Any:
        raise AssertionError(request)

    def _run(self) -> None:
        while not self._over:
            for key, mask in self.selector.select(0.01):
                key.data(mask)

    def close(self) -> None:
        self._over = True
        self._thread.join()
        self.channel.close()
        self.selector.close()


@pytest.fixture
def master() -> Iterator[Master]:
    master = Master()
    yield master
    master.close()


def store(master: Master, worker: int, board: str = "1", token: str = "secret") -> BoardStore:
    def address() -> tuple[str, int]:
        return "127.0.0.1", master.channel.port

    return BoardStore(board, BoardKeeper(address=address, token=token, worker=worker))


def test_what_one_pins_the_others_find_before_and_after_they_come(master: Master) -> None:
    one, other = store(master, 0), store(master, 1)
    one.set("a", "early")
    other.wait(["a"], SECONDS)
    assert other.get("a") == b"early"
    one.set("b", b"\x00\xff")
    other.wait(["b"], SECONDS)
    assert other.get("b") == b"\x00\xff"
    assert other.check(["a", "b"])
    assert not other.check(["a", "c"])
    one.close()
    other.close()


def test_boards_of_other_plans_are_not_seen(master: Master) -> None:
    one, other = store(master, 0, "1"), store(master, 1, "2")
    one.set("a", "x")
    with pytest.raises(RuntimeError, match="timed out: a was not on the board"):
        other.wait(["a"], timedelta(seconds=0.3))
    one.close()
    other.close()


@pytest.mark.parametrize(("worker", "token"), [(0, "guess"), (7, "secret")])
def test_a_wrong_token_and_an_unknown_worker_are_sent_away(master: Master, worker: int, token: str) -> None:
    stranger, member = store(master, worker, token=token), store(master, 1)
    stranger.set("a", "x")
    assert not member.check(["a"])
    wait_until(lambda: sum(master.channel.dropped.values()) > 0)
    assert not member.check(["a"])
    stranger.close()
    member.close()


def test_a_note_without_a_board_is_dropped_and_counted(master: Master) -> None:
    with socket.create_connection(("127.0.0.1", master.channel.port)) as link:
        for body in (Hello(worker=0, pid=1), Pin(key="a", value=""), Meet(worker=0, board="1")):
            link.sendall(pack(Frame(body=body, sender=0), "secret"))
        wait_until(lambda: master.channel.dropped["no board"] == 2)


def test_members_that_wait_find_each_other_under_the_next_master() -> None:
    first = Master()
    port = first.channel.port
    one, other = store(first, 0), store(first, 1)
    one.set("a", "x")
    other.wait(["a"], SECONDS)
    first.close()
    second = Master(port)
    assert second.channel.port == port
    other.set("b", "y")  # on a connection that is dead
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: (one.wait(["b"], SECONDS), found.append(one.get("b"))))
    thread.start()
    newcomer = store(second, 0)
    wait_until(lambda: other.check(["never"]) or newcomer.check(["b"]))
    thread.join()
    assert found == [b"y"]
    newcomer.wait(["a"], SECONDS)  # what was pinned under the master before is there again
    for member in (one, other, newcomer):
        member.close()
    second.close()


def test_old_boards_are_forgotten() -> None:
    posted: list[tuple[str, list[Pin]]] = []
    post: Callable[[str, list[Pin]], None] = lambda guest, pins: posted.append((guest, pins))  # noqa: E731
    boards: Boards[str] = Boards(post)
    boards.meet("early", "0")
    assert boards.pin("early", Pin(key="k", value="v"))
    posted.clear()
    for number in range(1, MOST_BOARDS + 1):
        boards.meet(f"guest {number}", str(number))
    boards.meet("late", "0")
    assert posted == [], "the board of the first plan is gone"
    boards.leave("early")
    assert not boards.pin("early", Pin(key="k", value="v"))
