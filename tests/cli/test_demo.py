import subprocess
import sys
from pathlib import Path

import pytest
import typer

from easyscale.cli import demo as command
from easyscale.core.errors import UsageError
from easyscale.core.messages import Done, StepDone
from easyscale.core.plan import Plan
from easyscale.master.state import JobState
from easyscale.master.supervisor import Outcome


def outcome(fingerprint: str | None, loss: float = 0.5, splits: tuple[tuple[int, ...], ...] = ((1, 1),)) -> Outcome:
    state = JobState(2)
    for step, split in enumerate(splits):
        plan = Plan(split)
        state.begin(plan, step, now=float(step))
        for worker in range(plan.workers):
            ests = list(plan.range_of(worker))
            losses: list[float | None] = [loss] * len(ests)
            state.apply(
                StepDone(
                    worker=worker, step=step, epoch=0, ests=ests, metrics={"loss": losses}, samples=1, time=float(step)
                ),
                now=float(step),
            )
    state.apply(Done(worker=0, steps=len(splits), fingerprint=fingerprint), now=9.0)
    return Outcome(exit_code=0, state=state, seconds=1.0)


def run_demo(monkeypatch: pytest.MonkeyPatch, picture: Path, stock: Outcome, ours: Outcome) -> int:
    outcomes = iter((stock, ours))
    monkeypatch.setattr(command, "_train", lambda *_: next(outcomes))
    with pytest.raises(typer.Exit) as caught:
        command.demo(picture)
    return caught.value.exit_code


def test_the_demo_ends_well_only_if_every_loss_and_the_model_are_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "demo.png"
    plans = ((1, 1), (2,))
    reference = outcome("a" * 64, splits=((1, 1), (1, 1)))
    assert run_demo(monkeypatch, picture, reference, outcome("a" * 64, splits=plans)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "a" * 12 in shown
    assert str(picture) in shown
    for other in (outcome("b" * 64, splits=plans), outcome("a" * 64, 0.25, plans), outcome(None, splits=plans)):
        assert run_demo(monkeypatch, picture, reference, other) == 1
        assert "differ" in capsys.readouterr().err
    assert run_demo(monkeypatch, picture, outcome(None), outcome(None)) == 1


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sklearn" else object())
    with pytest.raises(UsageError, match="sklearn") as caught:
        command.demo(Path("unused.png"))
    assert "easyscale-torch[demo]" in caught.value.now


@pytest.mark.slow
def test_the_demo_keeps_the_promise(tmp_path: Path) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "easyscale", "demo"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 → 2 → 1 → 3" in done.stdout
    assert (tmp_path / "easyscale-demo.png").read_bytes().startswith(b"\x89PNG")
