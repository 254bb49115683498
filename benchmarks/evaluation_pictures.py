"""The two pictures of docs/evaluation.md, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import pairwise
from math import log2

COLORS = ("#cb181d", "#2171b5", "#238b45", "#74c476", "#6a51a3", "#d94801", "#8c6d31", "#e7298a", "#1b9e77", "#666666",
          "#000000", "#aaaaaa")  # fmt: skip
LEFT, TOP, RIGHT = 130, 60, 150
TICKS = (0.5, 0.7, 1, 1.4, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class Sheet:
    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self.parts: list[str] = []
        self.text(width / 2, 24, title, size=15, anchor="middle")

    def text(self, x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str = "#ddd", width: float = 1) -> None:
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width:g}"/>'
        )

    def dot(self, x: float, y: float, color: str, title: str, *, size: float = 4.5) -> None:
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{color}" fill-opacity="0.85">'
            f"<title>{escape(title)}</title></circle>"
        )

    def key(self, names: list[str], y: float) -> None:
        for number, name in enumerate(names):
            at = y + number * 18
            self.dot(self._size[0] - RIGHT + 24, at - 4, COLORS[number], name)
            self.text(self._size[0] - RIGHT + 34, at, name)

    def svg(self) -> str:
        width, height = self._size
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
        )


def dots(title: str, ratios: Mapping[str, Mapping[str, float | None]], ours: str) -> str:
    """A row a place, a dot a policy, on a logarithmic axis; ours is the line at 1."""
    width, height = 900, TOP + 22 * len(ratios) + 46
    found = [one for row in ratios.values() for one in row.values() if one is not None]
    low, high = log2(min(0.9, *found)), log2(max(2.0, *found))
    policies = list(next(iter(ratios.values())))
    sheet = Sheet(width, height, title)

    def x(ratio: float) -> float:
        return LEFT + (log2(ratio) - low) / (high - low) * (width - LEFT - RIGHT)

    for tick in (tick for tick in TICKS if low <= log2(tick) <= high):
        sheet.line(x(tick), TOP - 14, x(tick), height - 36, "#cb181d" if tick == 1 else "#ddd")
        sheet.text(x(tick), height - 20, f"{tick:g}", anchor="middle")
    for number, (place, row) in enumerate(ratios.items()):
        y = TOP + 22 * number
        sheet.text(LEFT - 10, y + 4, place, anchor="end")
        for policy, ratio in row.items():
            if ratio is not None and policy != ours:
                sheet.dot(x(ratio), y, COLORS[policies.index(policy)], f"{place}, {policy}: {ratio:.2f}")
    sheet.key(policies, TOP)
    return sheet.svg()


def lines(title: str, curves: Mapping[str, Mapping[float, float]], ours: str) -> str:
    """A line a policy over the prices of a switch, on a logarithmic axis."""
    width, height, bottom = 900, 420, 50
    costs = list(curves[ours])
    found = [one for curve in curves.values() for one in curve.values()]
    low, high = log2(min(0.9, *found)), log2(max(found))
    sheet = Sheet(width, height, title)

    def x(cost: float) -> float:
        return LEFT - 60 + costs.index(cost) / (len(costs) - 1) * (width - LEFT + 60 - RIGHT)

    def y(ratio: float) -> float:
        return TOP + (high - log2(ratio)) / (high - low) * (height - TOP - bottom)

    for tick in (tick for tick in TICKS if low <= log2(tick) <= high):
        sheet.line(x(costs[0]), y(tick), x(costs[-1]), y(tick))
        sheet.text(x(costs[0]) - 8, y(tick) + 4, f"{tick:g}", anchor="end")
    for cost in costs:
        sheet.text(x(cost), height - 24, f"{cost:g} s", anchor="middle")
    for number, (policy, curve) in enumerate(curves.items()):
        points = list(curve.items())
        for (one, before), (two, after) in pairwise(points):
            sheet.line(x(one), y(before), x(two), y(after), COLORS[number], 3 if policy == ours else 1.5)
        for cost, ratio in points:
            sheet.dot(x(cost), y(ratio), COLORS[number], f"{policy}, {cost:g} s: {ratio:.2f}", size=3.5)
    sheet.key(list(curves), TOP)
    return sheet.svg()
