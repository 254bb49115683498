"""Draws switch.svg and recovery.svg, the sequence diagrams of docs/elasticity.md, beside this file.

    python3 docs/img/elasticity.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

HERE = Path(__file__).parent
TOP, ROW = 84, 34
GREY, BLUE, RED, GREEN = "#555", "#2171b5", "#cb181d", "#238b45"
FILLS = {"train": "#deebf7", "state": "#fdd0a2", "wait": "#eeeeee", "ghost": "#dadaeb", "dead": "#fcbba1"}


class Sequence:
    """Lifelines from left to right, time from top to bottom, one row a happening."""

    def __init__(self, title: str, lives: dict[str, int], rows: int, width: int) -> None:
        self._lives, self._width, self._height = lives, width, TOP + rows * ROW + 16
        self._parts: list[str] = []
        self.text(width / 2, 24, title, size=16, bold=True)
        for name, x in lives.items():
            self._parts.append(
                f'<line x1="{x}" y1="62" x2="{x}" y2="{self._height - 10}" stroke="#bbb" stroke-dasharray="3 3"/>'
            )
            self._box(x - 62, 38, 124, 26, "#f7f7f7")
            self.text(x, 56, name, bold=True)

    def say(self, row: float, start: str, end: str, text: str, color: str = GREY) -> None:
        """A message. Its text stands above the arrow."""
        y, x1, x2 = TOP + row * ROW, self._lives[start], self._lives[end]
        tip = -7 if x2 > x1 else 7
        self._parts.append(f'<line x1="{x1}" y1="{y}" x2="{x2}" y2="{y}" stroke="{color}" stroke-width="1.5"/>')
        self._parts.append(f'<path d="M{x2} {y} L{x2 + tip} {y - 4} L{x2 + tip} {y + 4} z" fill="{color}"/>')
        self.text((x1 + x2) / 2, y - 5, text, size=11, fill=color, halo=True)

    def do(self, row: float, life: str, text: str, *, rows: float = 1, kind: str = "train") -> None:
        """What one does, for some rows."""
        x, y, height = self._lives[life], TOP + row * ROW, rows * ROW - 6
        self._box(x - 74, y - 10, 148, height, FILLS[kind])
        lines = text.split("\n")
        for i, line in enumerate(lines):
            self.text(x, y - 10 + height / 2 + 4 + (i - (len(lines) - 1) / 2) * 13, line, size=11)

    def together(self, row: float, first: str, last: str, text: str, color: str = GREEN) -> None:
        """What several do with each other."""
        x1, x2, y = self._lives[first] - 74, self._lives[last] + 74, TOP + row * ROW
        self._box(x1, y - 12, x2 - x1, 24, "#e5f5e0", color)
        self.text((x1 + x2) / 2, y + 4, text, size=11, fill="#00441b")

    def text(
        self, x: float, y: float, text: str, *, size: float = 13, bold: bool = False, fill: str = "#222",
        halo: bool = False,
    ) -> None:
        weight = "bold" if bold else "normal"
        around = ' stroke="white" stroke-width="4" paint-order="stroke"' if halo else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="middle" font-weight="{weight}"'
            f' fill="{fill}"{around}>{escape(text)}</text>'
        )

    def _box(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = GREY) -> None:
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{fill}" stroke="{stroke}"/>'
        )

    def write(self, path: Path) -> None:
        w, h = self._width, self._height
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif">'
        back = f'<rect width="{w}" height="{h}" fill="white"/>'
        path.write_text("\n".join([head, back, *self._parts, "</svg>"]) + "\n")


def switch() -> Sequence:
    lives = {"command": 80, "master": 250, "worker 0": 450, "worker 1": 640, "worker 2 (new)": 830}
    s = Sequence("A switch: from 2 workers (2+2) to 3 (2+1+1)", lives, 16, 920)
    s.do(0, "worker 0", "global steps\non plan 0", rows=7)
    s.do(0, "worker 1", "global steps\non plan 0", rows=7)
    s.say(0.2, "command", "master", "scale --workers 3")
    s.say(1.1, "master", "command", "accepted")
    s.say(1.8, "master", "worker 2 (new)", "start", BLUE)
    s.do(2.4, "worker 2 (new)", "imports, builds the\nmodel, warms up", rows=2.4, kind="wait")
    s.say(5.2, "worker 2 (new)", "master", "Ready", BLUE)
    s.say(6.2, "master", "worker 2 (new)", "Order: epoch 1, switch, to 0, 1 and 2", BLUE)
    s.together(7.4, "worker 0", "worker 1", "a round begins: exchange says \"I have order 1\"")
    s.do(8.2, "worker 0", "the last global step\non plan 0", rows=1.6)
    s.do(8.2, "worker 1", "the last global step\non plan 0", rows=1.6)
    s.together(10.2, "worker 0", "worker 1", "boundary: contexts of all ESTs, to all")
    s.say(11.4, "worker 0", "worker 2 (new)", "model, optimizer, contexts (state)", RED)
    s.together(12.4, "worker 0", "worker 2 (new)", "the group of plan 1 is formed (file named by the order)")
    s.say(13.5, "worker 2 (new)", "master", "Joined (from all three)", BLUE)
    s.do(14.2, "worker 0", "ESTs 0-1", rows=2)
    s.do(14.2, "worker 1", "EST 2", rows=2)
    s.do(14.2, "worker 2 (new)", "EST 3", rows=2)
    s.say(15, "master", "command", "plan 1 (scale --wait)", BLUE)
    return s


def recovery() -> Sequence:
    lives = {"master": 100, "worker 0": 310, "worker 1": 530, "worker 2": 750}
    s = Sequence("A recovery: worker 2 is killed in the middle of round 312", lives, 18, 850)
    s.together(0.2, "worker 0", "worker 2", "round 312 begins: exchange (contexts as of boundary 312)")
    s.do(1.1, "worker 0", "local steps\nESTs 0-1", rows=2)
    s.do(1.1, "worker 1", "local step EST 2", rows=2)
    s.do(1.1, "worker 2", "EST 3: SIGKILL", rows=1.2, kind="dead")
    s.say(3.6, "worker 2", "master", "the process has ended (the kernel says so)", RED)
    s.do(4.1, "master", "worker 2 is lost:\nnothing it says\ncounts any more", rows=1.9, kind="wait")
    s.say(6.5, "master", "worker 1", "Halt (epoch 1), to 0 and 1", BLUE)
    s.do(6.9, "worker 0", "severs its group,\nkeeps its gradients", rows=1.5, kind="wait")
    s.do(6.9, "worker 1", "severs its group,\nkeeps its gradients", rows=1.5, kind="wait")
    s.say(8.8, "worker 1", "master", "Status (from both)", BLUE)
    s.say(9.8, "master", "worker 1", "Order: epoch 2, recover: 0 keeps 0-1, 1 gets 2-3", BLUE)
    s.together(10.8, "worker 0", "worker 1", "new group; who is how far? whose contexts are newest?")
    s.say(11.9, "worker 1", "master", "Joined (from both)", BLUE)
    s.do(12.4, "worker 0", "waits for the sum", rows=2.8, kind="wait")
    s.do(12.4, "worker 1", "EST 3: ghost turn,\nif its context is one\nround old", rows=1.6, kind="ghost")
    s.do(14, "worker 1", "EST 3: round 312", rows=1.2)
    s.together(15.4, "worker 0", "worker 1", "the sum of the SAME round, over all 4 ESTs")
    s.do(16.2, "worker 0", "optimizer step", rows=1)
    s.do(16.2, "worker 1", "optimizer step", rows=1)
    s.say(17.4, "worker 1", "master", "step 312 is done: \"0 steps lost\"", BLUE)
    return s


if __name__ == "__main__":
    switch().write(HERE / "switch.svg")
    recovery().write(HERE / "recovery.svg")
