import json
from pathlib import Path

import pytest

from easyscale.core.errors import EasyScaleError, UsageError
from easyscale.core.messages import Done, Fingerprint, StepDone
from easyscale.core.plan import Plan
from easyscale.master.report import check_report_path, report_of, strict, write_report
from easyscale.master.state import JobState


def small_state() -> JobState:
    state = JobState(2)
    state.begin(Plan((2,)), 0, now=1.0)
    for step, loss in enumerate((0.1, float("nan"), float("-inf"))):
        state.apply(
            StepDone(
                worker=0, step=step, epoch=0, ests=[0, 1], metrics={"loss": [loss, None]}, samples=2, time=2.0 + step
            ),
            now=2.0,
        )
    state.apply(Fingerprint(step=2, sha="two"), now=3.0)
    state.apply(Done(worker=0, steps=3, fingerprint="end", timings={"reduce": 0.5}, bytes_sent=9), now=4.0)
    return state


def test_a_report_has_exactly_the_promised_keys() -> None:
    report = report_of(small_state(), 12.5)
    assert list(report) == [
        "fingerprint", "ests", "steps", "losses", "step_fingerprints", "events", "timings", "plans", "bytes_sent",
    ]  # fmt: skip
    assert (report["fingerprint"], report["ests"], report["steps"], report["bytes_sent"]) == ("end", 2, 3, 9)
    assert report["plans"] == [{"step": 0, "split": [2]}]
    assert report["step_fingerprints"] == {"2": "two"}
    assert report["timings"] == {"total": 12.5, "start": None, "switches": [], "workers": {"reduce": 0.5}}
    assert [list(event) for event in report["events"]] == [["time", "step", "what", "text"]]


def test_a_report_is_strict_json_even_with_losses_that_are_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(path, report_of(small_state(), 1.0))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    losses = json.loads(path.read_text(), parse_constant=refuse)["losses"]
    assert losses == {"0": [0.1, None], "1": ["NaN", None], "2": ["-Infinity", None]}


def test_numbers_keep_all_their_bits() -> None:
    value = 0.1 + 0.2
    assert json.loads(json.dumps(strict([value]))) == [value]


def test_the_report_of_a_failed_job_says_why() -> None:
    assert report_of(small_state(), 1.0, "It broke.")["error"] == "It broke."


def test_a_report_replaces_the_old_one_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    write_report(path, {"new": 1})
    assert json.loads(path.read_text()) == {"new": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_leaves_the_old_one_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.mkdir()
    with pytest.raises(EasyScaleError, match="could not be written") as caught:
        write_report(path, {"new": 1})
    assert caught.value.now
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_in_a_folder_that_does_not_exist_is_refused_before_the_training(tmp_path: Path) -> None:
    check_report_path(tmp_path / "report.json")
    for wrong in (tmp_path, tmp_path / "no" / "report.json"):
        with pytest.raises(UsageError):
            check_report_path(wrong)
