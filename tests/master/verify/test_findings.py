"""Made-up traces: each kind of difference is named, the first one wins, and what is harmless is passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from easyscale.master.verify.findings import Finding, Kind, compare, first_finding


def operator(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "what": "operator", "name": name, "module": "body.0", "line": "train.py:7", "backward": None, "values": ["1"],
        "shapes": ["float32[2]"], "tensors": [None], "in": ["i"], "out": ["o"], **changes,
    }  # fmt: skip


def marks(what: str, **digests: str) -> dict[str, Any]:
    return {"what": what, "digests": digests}


def step(**changes: Any) -> list[dict[str, Any]]:
    """A local step with everything in it; `changes` replace lines by name."""
    lines = {
        "batch": marks("batch", x="1", y="2"),
        "buffers": marks("buffers", mean="3"),
        "linear": operator("linear"),
        "dropout": operator("dropout", random="r", **{"in": ["o"], "out": ["p"]}),
        "loss": operator("loss", **{"in": ["p"], "out": ["l"]}),
        "grad": operator("grad", backward="LinearBackward0", **{"in": ["l"], "out": ["g"]}),
        "reduced": marks("reduced", weight="4"),
        "sgd": operator("sgd", tensors=["weight"], **{"in": ["w"], "out": ["v"]}),
        "after": marks("after", weight="5"),
    }
    lines.update(changes)
    return [line for line in lines.values() if line is not None]


def found(other: list[dict[str, Any]], reference: list[dict[str, Any]] | None = None) -> Finding:
    finding = compare(reference or step(), other, 3, 1)
    assert finding is not None
    assert (finding.step, finding.est) == (3, 1)
    assert finding.text
    return finding


def test_equal_traces_have_no_finding() -> None:
    assert compare(step(), step(), 0, 0) is None


def test_the_mini_batch() -> None:
    finding = found(step(batch=marks("batch", x="1", y="?")))
    assert (finding.kind, finding.tensor, finding.phase) == ("batch", "y", 0)


def test_a_buffer_when_the_forward_begins() -> None:
    finding = found(step(buffers=marks("buffers", mean="?")))
    assert (finding.kind, finding.tensor) == ("buffers", "mean")


def test_a_random_state() -> None:
    finding = found(step(dropout=operator("dropout", random="?", **{"in": ["o"], "out": ["?"]})))
    assert (finding.kind, finding.operator, finding.module, finding.line) == (
        "random", "dropout", "body.0", "train.py:7",
    )  # fmt: skip
    assert finding.operators_before == 1


def test_a_python_number() -> None:
    finding = found(step(linear=operator("linear", values=["2"], out=["?"])))
    assert (finding.kind, finding.sides) == ("value", ("1", "2"))


def test_an_input_that_no_operator_gave() -> None:
    finding = found(step(linear=operator("linear", out=["?"], **{"in": ["?"]})))
    assert (finding.kind, finding.tensor) == ("input", "input 0, float32[2]")
    named = operator("linear", tensors=["scale"])
    finding = found(step(linear={**named, "in": ["?"]}), step(linear=named))
    assert finding.tensor == "scale"


def test_an_operator_that_gives_another_output() -> None:
    finding = found(step(loss=operator("loss", **{"in": ["p"], "out": ["?"]}), after=marks("after", weight="?")))
    assert (finding.kind, finding.operator, finding.tensor, finding.phase) == ("operator", "loss", "output 0", 0)
    assert finding.operators_before == 2


def test_an_operator_of_the_backward() -> None:
    line = operator("grad", backward="LinearBackward0", **{"in": ["l"], "out": ["?"]})
    finding = found(step(grad=line))
    assert (finding.kind, finding.backward, finding.phase) == ("operator", "LinearBackward0", 0)
    assert "LinearBackward0" in finding.text


def test_another_operator() -> None:
    backward = operator("grad", backward="LinearBackward0", **{"in": ["?"], "out": ["?"]})
    finding = found(step(loss=operator("other loss", **{"in": ["p"], "out": ["?"]}), grad=backward))
    assert (finding.kind, finding.sides, finding.phase) == ("order", ("loss", "other loss"), 0)


def test_an_operator_more_whose_result_is_used() -> None:
    doubled = [*step()]
    doubled[3:3] = [operator("double", **{"in": ["o"], "out": ["oo"]})]
    doubled[4] = operator("dropout", random="r", **{"in": ["oo"], "out": ["?"]})
    finding = found(doubled)
    assert (finding.kind, finding.sides) == ("order", ("dropout", "double"))
    assert finding.operators_before == 1


def test_an_operator_more_that_nothing_follows_from_is_harmless() -> None:
    """A scaler makes its scale, a cache is filled: once a process, so not for each EST of a worker."""
    more = step()
    more[2:2] = [operator("full"), operator("arange")]
    assert compare(more, step(), 0, 0) is None
    assert compare(step(), more, 0, 0) is None


def test_a_real_difference_after_a_harmless_one_is_found() -> None:
    more = step(loss=operator("loss", **{"in": ["p"], "out": ["?"]}))
    more[2:2] = [operator("full")]
    finding = found(more)
    assert (finding.kind, finding.operator) == ("operator", "loss")


def test_a_script_without_steps_has_no_harmless_operators() -> None:
    lines = [operator("a"), operator("b"), operator("c"), operator("d")]
    assert found([lines[0], *lines[2:]], lines).sides == ("b", "c")
    assert found(lines[:3], lines).sides == ("d", "nothing more")
    assert found([*lines, operator("e")], lines).sides == ("nothing more", "e")


def test_the_sum_of_the_gradients() -> None:
    finding = found(step(reduced=marks("reduced", weight="?"), after=marks("after", weight="?")))
    assert (finding.kind, finding.tensor, finding.phase) == ("reduction", "weight", 1)


def test_a_summed_gradient_that_clipping_reads() -> None:
    def clip(value: str) -> dict[str, Any]:
        return operator("norm", tensors=["gradient of weight"], **{"in": [value], "out": [value]})

    left, right = step(), step(reduced=marks("reduced", weight="?"), after=marks("after", weight="?"))
    left[6:6], right[6:6] = [clip("g")], [clip("?")]
    finding = found(right, left)
    assert (finding.kind, finding.tensor, finding.phase) == ("reduction", "weight", 1)


def test_what_the_optimizer_made_of_it() -> None:
    finding = found(step(after=marks("after", weight="?")))
    assert (finding.kind, finding.tensor, finding.phase) == ("update", "weight", 3)
    finding = found(step(sgd=operator("sgd", values=["2"], tensors=["weight"], **{"in": ["w"], "out": ["?"]})))
    assert (finding.kind, finding.phase) == ("value", 2)


def test_what_follows_the_update_counts_only_where_the_parameters_differ() -> None:
    """An average of the weights copies buffers: EST 0's here, each rank's own in stock DDP."""

    def copy(value: str) -> dict[str, Any]:
        return operator("copy_", tensors=["mean"], **{"in": [value], "out": [value]})

    left, right = step(), step()
    left[8:8], right[8:8] = [copy("a")], [copy("b")]
    assert compare(left, right, 0, 0) is None
    right[-1] = marks("after", weight="?")
    assert found(right, left).kind == "input"


def test_only_one_side_updates() -> None:
    """All but the last EST of a worker leave out clipping and update."""
    idle = step(reduced=None, sgd=None)
    assert compare(step(), idle, 0, 0) is None
    assert compare(idle, step(), 0, 0) is None
    finding = found(step(reduced=None, sgd=None, after=marks("after", weight="?")))
    assert (finding.kind, finding.phase) == ("update", 3)
    broken = step(reduced=None, sgd=None, loss=operator("loss", **{"in": ["p"], "out": ["?"]}))
    assert found(broken).operator == "loss"


def test_a_trace_that_was_cut_is_compared_up_to_there() -> None:
    cut = {"what": "cut", "operators": 9}
    assert compare([*step(), cut], [*step(), cut], 0, 0) is None


def write(folder: Path, step_number: int, est: int, lines: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{step_number}-est-{est}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_an_est_s_own_difference_comes_before_the_sum_that_follows_from_it(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "b"
    summed = {"reduced": marks("reduced", weight="?"), "after": marks("after", weight="?")}
    for est in range(4):
        write(ours, 0, est, step())
        write(ours, 1, est, step())
        write(theirs, 0, est, step())
        broken = {"loss": operator("loss", **{"in": ["p"], "out": ["?"]})} if est in (1, 3) else {}
        write(theirs, 1, est, step(**summed, **broken))
    finding, parted = first_finding(ours, theirs, range(2), 4)
    assert finding is not None
    assert (finding.kind, finding.step, finding.est) == ("operator", 1, 1)
    assert parted == [1, 3]


def test_the_first_step_wins_and_missing_traces_are_passed_over(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "b"
    for number in range(3):
        write(ours, number, 0, step())
        write(theirs, number, 0, step() if number == 0 else step(batch=marks("batch", x="?", y="2")))
    write(ours, 0, 1, step())
    finding, parted = first_finding(ours, theirs, range(3), 2)
    assert finding is not None
    assert (finding.step, parted) == (1, [0])
    assert first_finding(ours, theirs, range(1), 2) == (None, [])


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_has_a_sentence(kind: Any) -> None:
    finding = Finding(
        kind=kind, step=1, est=0, tensor="T", module="M", operator="O", line="L:1", backward="B", sides=("S1", "S2")
    )
    assert {"batch": "T", "buffers": "T", "value": "S1", "order": "S2", "reduction": "T", "update": "T"}.get(
        kind, "O of module M (L:1)"
    ) in finding.text
