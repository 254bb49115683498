"""The generator: the same seed gives the same jobs, and jobs look like what they were fitted to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easyscale.core.errors import UsageError
from easyscale.simulator.generate import fit, generate, seconds_of
from easyscale.simulator.generator_spec import HOUR, GeneratorSpec, LogNormal, load_spec, save_spec
from easyscale.simulator.readers import read
from easyscale.simulator.readers.own import write_csv
from easyscale.simulator.workload import Workload

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
real = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces in ../shared/traces, which are not here")

DAY = tuple(0.25 if hour < 12 else 1.75 for hour in range(24))
BUSY = GeneratorSpec(jobs_per_hour=120.0, day=DAY, burst_share=0.2, burst_jobs=6.0, tenants=(("a", 0.75), ("b", 0.25)))


def figures(workload: Workload) -> list[tuple[object, ...]]:
    return [(job.name, job.time, job.requested, job.work, job.needs) for job in workload.arrivals]


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    assert figures(generate(BUSY, 500, seed=3)) == figures(generate(BUSY, 500, seed=3))
    assert figures(generate(BUSY, 500, seed=3)) != figures(generate(BUSY, 500, seed=4))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(0, 2**32), st.floats(0, 1), st.floats(1, 20))
def test_as_many_jobs_come_as_were_asked_for_in_order_with_names_of_their_own(
    jobs: int, seed: int, burst_share: float, burst_jobs: float
) -> None:
    workload = generate(replace(BUSY, burst_share=burst_share, burst_jobs=burst_jobs), jobs, seed=seed)
    times = [job.time for job in workload.arrivals]
    assert len(times) == jobs
    assert times == sorted(times)
    assert times[0] >= 0
    assert len({job.name for job in workload.arrivals}) == jobs
    assert all(job.work > 0 for job in workload.arrivals)


def test_jobs_come_at_the_rate_and_in_the_hours_that_were_asked_for() -> None:
    workload = generate(BUSY, 20_000, seed=1)
    hours = workload.arrivals[-1].time / HOUR
    assert 20_000 / hours == pytest.approx(120.0, rel=0.1)
    night = sum(job.time // HOUR % 24 < 12 for job in workload.arrivals)
    assert night / 20_000 == pytest.approx(0.125, abs=0.03)
    assert generate(BUSY, 20_000, seed=1, load=2.0).arrivals[-1].time < 0.6 * workload.arrivals[-1].time
    assert sum(job.needs.tenant == "a" for job in workload.arrivals) / 20_000 == pytest.approx(0.75, abs=0.02)


def test_a_fit_finds_the_figures_that_the_jobs_were_drawn_from() -> None:
    short, long = LogNormal(weight=0.5, median=60.0, sigma=0.3), LogNormal(weight=0.5, median=36_000.0, sigma=0.5)
    spec = replace(BUSY, durations=((short, long),) * 4, sizes=((1, 0.6), (4, 0.3), (16, 0.1)))
    found = fit(generate(spec, 20_000, seed=2), parts=2)
    assert found.jobs_per_hour == pytest.approx(120.0, rel=0.1)
    assert found.burst_share == pytest.approx(0.2, abs=0.08)
    assert found.burst_jobs == pytest.approx(6.0, rel=0.4)
    assert dict(found.sizes) == pytest.approx(dict(spec.sizes), abs=0.02)
    assert np.corrcoef(found.day, DAY)[0, 1] > 0.95
    for part, wanted in zip(found.durations[0], (short, long), strict=True):
        assert part.median == pytest.approx(wanted.median, rel=0.1)
        assert part.sigma == pytest.approx(wanted.sigma, rel=0.1)
        assert part.weight == pytest.approx(wanted.weight, abs=0.03)


@pytest.mark.parametrize("name", ["spec.yaml", "spec.json"])
def test_a_spec_survives_its_file(tmp_path: Path, name: str) -> None:
    save_spec(BUSY, tmp_path / name)
    assert load_spec(tmp_path / name) == BUSY


def test_a_generated_trace_survives_its_file(tmp_path: Path) -> None:
    workload = generate(BUSY, 200, seed=5)
    write_csv(workload, tmp_path / "t.csv")
    again = read(tmp_path / "t.csv")
    for one, other in zip(workload.arrivals, again.arrivals, strict=True):
        assert (one.name, one.requested, one.needs) == (other.name, other.requested, other.needs)
        assert other.time == pytest.approx(one.time, rel=1e-8)
        assert other.work == pytest.approx(one.work, rel=1e-8)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"jobs_per_hour": 0.0}, "positive rate"),
        ({"sizes": ((0, 1.0),)}, "at least one device"),
        ({"sizes": ((1, 0.0),)}, "there is no size"),
        ({"sizes": ((1, -1.0),)}, "share is negative"),
        ({"burst_share": 1.5}, "0 to 1"),
        ({"day": (1.0,)}, "24 hours"),
        ({"durations": ()}, "durations"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        GeneratorSpec(**wrong)  # type: ignore[arg-type]


def test_a_file_that_is_no_spec_is_refused(tmp_path: Path) -> None:
    for text, said in (("[1]", "no mapping"), ("colour: red", "colour"), ("jobs_per_hour: [", "cannot be read")):
        (tmp_path / "s.yaml").write_text(text)
        with pytest.raises(UsageError, match=said):
            load_spec(tmp_path / "s.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        load_spec(tmp_path / "none.yaml")


def test_one_job_is_too_few_for_a_fit() -> None:
    with pytest.raises(UsageError, match="two jobs"):
        fit(generate(BUSY, 1))


@real
@pytest.mark.slow
def test_jobs_generated_after_philly_ask_for_as_much_as_philly_did() -> None:
    trace = read(TRACES / "philly.csv.gz")
    made = generate(fit(trace), 20_000, seed=0)
    sizes, lengths = [], []
    for of in (made, trace):
        sizes.append(np.mean([job.requested for job in of.arrivals]))
        lengths.append(np.mean(np.log([seconds_of(job) for job in of.arrivals])))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)
    assert lengths[0] == pytest.approx(lengths[1], rel=0.05)
    rate, wanted = (len(of.arrivals) / of.arrivals[-1].time for of in (made, trace))
    assert rate == pytest.approx(wanted, rel=0.15)
