"""The certificate: strict JSON with a checksum, and an honest list of what was not checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from easyscale.master.verify.causes import shown_cause
from easyscale.master.verify.certificate import certificate, checksum, not_checked
from easyscale.master.verify.compare import Difference
from easyscale.master.verify.diagnosis import Diagnosis
from easyscale.master.verify.findings import Finding
from easyscale.master.verify.stage import Run
from easyscale.master.verify.verification import Row, Verification


def row(name: str = "stock DDP", verdict: Any = "reference", **run: Any) -> Row:
    facts: dict[str, Any] = {
        "steps": 2, "epochs": 1, "losses": {0: [float("nan"), 1.0], 1: [float("inf"), None]},
        "fingerprints": {0: "a", 1: "b"}, "witnesses": {0: {0: {"batch": "x"}}, 1: {0: {"batch": "y"}}},
        "record": {"torch": "2"}, **run,
    }  # fmt: skip
    return Row(name=name, kind="stock", plans="1,1", run=Run(name=name, **facts), verdict=verdict)


def verification(**run: Any) -> Verification:
    return Verification(rows=[row(**run), row("2 workers (1,1)", "same", **run)])


def made(result: Verification, script: Path | str = "train.py", **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"args": ["--x"], "mode": "plans", "asked": 2, "ests": 2, "now": "2026-01-01T00:00:00Z"}
    return certificate(result, script=script, **{**facts, **changes})


def broken() -> Verification:
    difference = Difference(step=1, seen={"loss": [1], "parameters": [0, 1]})
    finding = Finding(kind="value", step=1, est=1, tensor="a Python number", line="train.py:3", sides=("1", "2"))
    result = verification()
    result.rows.append(replace(row("1 worker (2)", "different"), difference=difference))
    result.diagnosed = "1 worker (2)"
    result.diagnosis = Diagnosis(
        difference=difference, finding=finding, ests=(1,), began_at=0, causes=(shown_cause("clock", "the clock", []),)
    )
    return result


@pytest.mark.parametrize("result", [verification(), broken()], ids=["same", "different"])
def test_the_checksum_holds_after_a_journey_through_json_and_breaks_with_any_byte(result: Verification) -> None:
    text = json.dumps(made(result), allow_nan=False)
    assert checksum(json.loads(text)) == json.loads(text)["checksum"]
    body = text[: text.index('"checksum"')]
    for place in range(0, len(body), 7):
        if not body[place].isalnum():
            continue
        other = text[:place] + ("0" if body[place] != "0" else "1") + text[place + 1 :]
        try:
            content = json.loads(other)
        except ValueError:
            continue
        if content != json.loads(text):
            assert checksum(content) != content.get("checksum")


def test_numbers_that_json_has_not_are_words() -> None:
    facts = made(verification())
    assert facts["runs"][0]["losses"] == {"0": ["NaN", 1.0], "1": ["Infinity", None]}
    json.dumps(facts, allow_nan=False)


def test_a_difference_is_told_in_full() -> None:
    facts = made(broken())
    assert facts["verdict"] == "different"
    assert facts["runs"][2]["first_difference"] == {"step": 1, "seen": {"loss": [1], "parameters": [0, 1]}}
    diagnosis = facts["diagnosis"]
    assert (diagnosis["run"], diagnosis["step"], diagnosis["ests"]) == ("1 worker (2)", 1, [1])
    assert diagnosis["finding"]["line"] == "train.py:3"
    assert "the number 1 in one run and 2 in the other" in diagnosis["finding"]["text"]
    assert diagnosis["causes"][0]["shown"] is True


def test_a_failed_run_decides_the_verdict() -> None:
    result = broken()
    result.rows.append(row("3 workers", "failed", error="it raised"))
    facts = made(result)
    assert (facts["verdict"], facts["runs"][-1]["error"]) == ("failed", "it raised")


def test_the_script_is_named_with_its_sha256(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    first = made(verification(), script)["script"]
    script.write_text("print(2)")
    assert made(verification(), script)["script"]["sha256"] != first["sha256"]
    module = made(verification(), "package.module")["script"]
    assert module == {"name": "package.module", "sha256": None, "args": ["--x"]}


def sentences(*, mode: str = "plans", asked: int | None = 2, ests: int = 4, **run: Any) -> str:
    return "\n".join(not_checked(verification(**run), mode=mode, asked=asked, ests=ests))


def test_what_was_not_checked_is_said() -> None:
    assert "What happens after step 2." in sentences()
    assert "The script ended after 2 steps." in sentences(asked=8)
    assert "The end of an epoch" in sentences()
    assert "The end of an epoch" not in sentences(epochs=2)
    assert "Raise --steps" in sentences()
    assert "Raise --steps" not in sentences(asked=8), "the script has no more"
    assert "Losses" not in sentences()
    assert "Losses" in sentences(losses={0: [None, None]})
    assert "Uneven splits: 2 ESTs have none." in sentences(ests=2)
    assert "Uneven splits" not in sentences()
    assert "Other device types" in sentences()
    assert "Several machines" in sentences()
    assert "files, prints and plots" in sentences()
    assert "step 2" not in sentences(error="it raised")


def test_a_comparison_of_two_plain_runs_says_other_things() -> None:
    assert "Other machines" in sentences(mode="twice")
    assert "epoch" not in sentences(mode="twice")
    assert "no optimizer stepped" in sentences(mode="twice", steps=0)
    assert "no optimizer stepped" not in sentences(mode="twice")
