"""Drawings as SVG text, for a page that must work without any other file. Colours are the page's, by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from easyscale.simulator.compare import duration
from easyscale.simulator.result import Segment
from easyscale.simulator.usage import Curve

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 900.0, 62.0, 14.0, 10.0, 38.0
PALETTE = 10  # the page has colours c0 to c9


class Frame:
    """A plot area with axes. Data go in through `x` and `y`; what is drawn is a list of elements."""

    def __init__(self, height: float, xs: tuple[float, float], ys: tuple[float, float], *, log_x: bool = False) -> None:
        self.height, self.log_x = height, log_x
        self.x0, self.x1 = (log10(xs[0]), log10(xs[1])) if log_x else xs
        self.y0, self.y1 = ys
        self.x1 = self.x1 if self.x1 > self.x0 else self.x0 + 1
        self.y1 = self.y1 if self.y1 > self.y0 else self.y0 + 1
        self.parts: list[str] = []

    def x(self, value: float) -> float:
        at = log10(max(value, 1e-9)) if self.log_x else value
        return LEFT + (min(max(at, self.x0), self.x1) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.height - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (self.height - TOP - BOTTOM)

    def grid(self, xs: Iterable[float], ys: Iterable[float], x_text: Callable[[float], str], label: str) -> None:
        for value in ys:
            at = self.y(value)
            self.parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            self.text(LEFT - 8, at + 4, f"{value:g}", "end")
        for value in xs:
            self.text(self.x(value), self.height - BOTTOM + 17, x_text(value), "middle")
        self.text((LEFT + WIDTH - RIGHT) / 2, self.height - 4, label, "middle")

    def text(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, points: Iterable[tuple[float, float]], style: str, title: str = "") -> None:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        name = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(f'<polyline class="{style}" points="{path}">{name}</polyline>')

    def area(self, upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], style: str) -> None:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in [*upper, *reversed(lower)])
        self.parts.append(f'<polygon class="{style}" points="{path}"/>')

    def box(self, x0: float, x1: float, y0: float, y1: float, style: str, title: str) -> None:
        left, right, top, bottom = self.x(x0), self.x(x1), self.y(y1), self.y(y0)
        self.parts.append(
            f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 0.5):.1f}" '
            f'height="{max(bottom - top, 0.5):.1f}"><title>{escape(title)}</title></rect>'
        )

    def svg(self, name: str) -> str:
        """`name` is what a screen reader says of it."""
        body = "\n".join(self.parts)
        return f'<svg viewBox="0 0 {WIDTH:g} {self.height:g}" role="img" aria-label="{escape(name)}">\n{body}\n</svg>'


def nice_ticks(least: float, most: float, count: int = 6) -> list[float]:
    """Round numbers in a range."""
    step = 10.0 ** floor(log10(max(most - least, 1e-9) / count))
    step *= next((factor for factor in (1, 2, 5, 10) if (most - least) / (step * factor) <= count), 10)
    return [step * n for n in range(ceil(least / step), floor(most / step + 1e-9) + 1)]


TIMES = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 345600, 604800)


def time_ticks(least: float, most: float, count: int = 7) -> list[float]:
    step = next((float(size) for size in TIMES if (most - least) / size <= count), (most - least) / count or 1.0)
    return [step * n for n in range(ceil(least / step), floor(most / step) + 1)]


def clock(seconds: float) -> str:
    """A time on an axis: `30 s`, `10 min`, `4 h`, `2 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def distribution(curves: Mapping[str, Sequence[float]]) -> str:
    """The share of jobs that are done within a time, a line a policy."""
    least = max(1.0, min(values[0] for values in curves.values()))
    most = max(values[-1] for values in curves.values())
    frame = Frame(320, (least, max(most, least * 1.1)), (0, 1), log_x=True)
    decades = [10.0**n * factor for n in range(floor(log10(least)), ceil(log10(most)) + 1) for factor in (1, 3)]
    shown = [moment for moment in decades if least <= moment <= most]
    frame.grid(shown, (0, 0.25, 0.5, 0.75, 1), duration, "job completion time (log)")
    for number, (label, values) in enumerate(curves.items()):
        points = [(value, n / (len(values) - 1)) for n, value in enumerate(values)]
        frame.line(points, f"line c{number % PALETTE}", label)
    return frame.svg("distribution of job completion times")


def devices_over_time(curve: Curve, end: float, kinds: Sequence[str]) -> str:
    """Devices in use, by type, stacked, under the line of those that are there."""
    times = [curve.start + curve.width * n for n in range(len(next(iter(curve.used.values()), [])) + 1)]
    times = [min(t, end) for t in times]
    there = [sum(curve.capacity[kind][n] for kind in kinds) for n in range(len(times) - 1)]
    frame = Frame(220, (curve.start, end), (0, max(there, default=1) * 1.05))
    ticks = time_ticks(0, end - curve.start)
    levels = nice_ticks(0, max(there, default=1), 4)
    frame.grid([curve.start + t for t in ticks], levels, lambda t: clock(t - curve.start), "time")
    base = [0.0] * len(there)
    for number, kind in enumerate(kinds):
        top = [low + used for low, used in zip(base, curve.used[kind], strict=True)]
        frame.area(_steps(times, top), _steps(times, base), f"area c{number % PALETTE}")
        base = top
    frame.line(_steps(times, there), "line there", "devices there")
    return frame.svg("devices in use over time, by type")


def _steps(times: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    return [point for n, value in enumerate(values) for point in ((times[n], value), (times[n + 1], value))]


def bars(values: Mapping[str, Mapping[str, float]]) -> str:
    """Shares between 0 and 1: a group a policy, a bar a type."""
    groups, height = list(values), 200.0
    frame = Frame(height, (0, max(1, len(groups))), (0, 1))
    frame.grid((), (0, 0.25, 0.5, 0.75, 1), str, "")
    for place, label in enumerate(groups):
        of = values[label]
        width = 0.8 / max(1, len(of))
        for number, (kind, share) in enumerate(of.items()):
            left = place + 0.1 + number * width
            frame.box(left, left + width * 0.92, 0, share, f"area c{number % PALETTE}", f"{label}, {kind}: {share:.1%}")
        frame.text(frame.x(place + 0.5), height - BOTTOM + 17, label, "middle")
    return frame.svg("utilization by policy and type")


def timeline(segments: Sequence[Segment], names: Sequence[str], kinds: Sequence[str], start: float, end: float) -> str:
    """A row a job: when it held how many devices of which type. Mixed ones share the height of the row."""
    jobs = sorted({segment.job for segment in segments})
    row = {job: n for n, job in enumerate(jobs)}
    most = max((sum(segment.devices.values()) for segment in segments), default=1)
    frame = Frame(TOP + BOTTOM + max(60.0, 7.0 * len(jobs)), (start, end), (0, max(1, len(jobs))))
    ticks = time_ticks(0, end - start)
    frame.grid([start + t for t in ticks], (), lambda t: clock(t - start), f"time; a row is one of {len(jobs)} jobs")
    for segment in segments:
        held = sum(segment.devices.values())
        low = len(jobs) - 1 - row[segment.job] + 0.08
        shown = ", ".join(f"{count} {kind}" for kind, count in segment.devices.items())
        for kind, count in segment.devices.items():
            high = low + 0.84 * count / held
            depth = 1 + min(3, int(4 * held / (most + 1)))
            title = f"{names[segment.job]}: {shown}, {duration(segment.end - segment.start)}"
            frame.box(segment.start, segment.end, low, high, f"area c{kinds.index(kind) % PALETTE} d{depth}", title)
            low = high
    return frame.svg("timeline of allocations")
