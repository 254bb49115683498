"""The report: one file, nothing loaded, all names escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from easyscale.simulator.compare import Outcome
from easyscale.simulator.engine import simulate
from easyscale.simulator.html import page
from easyscale.simulator.options import Options
from easyscale.simulator.plots import clock, nice_ticks, time_ticks
from simulated import Eager, cluster, job, workload


@pytest.fixture(scope="module")
def report() -> str:
    jobs = [job(f"j{n}", n * 20.0, level="D2", work=50.0 * (n + 1)) for n in range(12)]
    outcomes = []
    for label in ("one", "<two>"):
        outcome = Outcome(label)
        for seed in (0, 1):
            outcome.add(seed, simulate(workload(*jobs), cluster("v100:4,t4:2"), Eager(), Options(seed=seed)))
        outcomes.append(outcome)
    return page(outcomes, [arrival.name for arrival in jobs], ["v100", "t4"], {"trace": "a & b.csv"}, "someone")


def drawings(report):
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", report, re.DOTALL)]


def test_it_loads_nothing_from_elsewhere(report):
    assert not re.search(r"(src|href)=|@import|url\(|<script|https?://", report)


def test_it_has_each_drawing(report):
    names = [drawing.attrib["aria-label"] for drawing in drawings(report)]
    assert names.count("distribution of job completion times") == 1
    assert names.count("utilization by policy and type") == 1
    assert names.count("devices in use over time, by type") == 2
    assert names.count("timeline of allocations") == 2


def test_drawings_stay_within_their_frame(report):
    for drawing in drawings(report):
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        for line in drawing.iter("polyline"):
            for point in line.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height
        for box in drawing.iter("rect"):
            assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width + 1
            assert 0 <= float(box.attrib["y"]) <= height


def test_names_are_escaped(report):
    assert "<two>" not in report
    assert "&lt;two&gt;" in report
    assert "a &amp; b.csv" in report


def test_it_is_made_for_light_and_dark(report):
    assert "prefers-color-scheme: dark" in report


def test_ticks_are_round_and_few():
    assert nice_ticks(0, 64, 4) == [0, 20, 40, 60]
    assert len(time_ticks(0, 123_456)) <= 9
    assert clock(7200) == "2 h"
    assert clock(90) == "1.5 min"
