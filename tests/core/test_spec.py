import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.cluster import Slot
from easyscale.core.errors import UsageError
from easyscale.core.plan import Plan
from easyscale.core.spec import ESTS_VARIABLE, WORKER_VARIABLE, Bounds, WorkerSpec, spec_from_environment

text = st.none() | st.text(max_size=20)


@given(
    st.builds(
        WorkerSpec,
        ests=st.integers(1, 64),
        split=st.lists(st.integers(1, 4), max_size=4).map(tuple),
        worker=st.integers(0, 63),
        engine=st.sampled_from(["est", "ddp"]),
        rendezvous=text,
        timeout=st.floats(0.1, 1e6),
        checkpoint_dir=text,
        checkpoint_every=st.none() | st.integers(1),
        resume=text,
        stop_at=st.none() | st.integers(0),
        events_fd=st.none() | st.integers(0, 1024),
    )
)
def test_a_spec_crosses_the_process_boundary_unchanged(spec: WorkerSpec) -> None:
    assert spec_from_environment({WORKER_VARIABLE: spec.to_json()}, None) == spec


def test_a_spec_of_a_newer_launcher_is_read_without_what_is_unknown() -> None:
    raw = json.loads(WorkerSpec(ests=2).to_json()) | {"invented_later": 1}
    assert WorkerSpec.from_json(json.dumps(raw)) == WorkerSpec(ests=2)


@pytest.mark.parametrize("broken", ["", "{", "[]", "{}", "3", '{"ests": 2, "split": 3}'])
def test_a_spec_that_something_else_changed_is_refused(broken: str) -> None:
    with pytest.raises(UsageError, match=WORKER_VARIABLE):
        WorkerSpec.from_json(broken)


def test_a_script_without_the_launcher_is_one_worker_with_all_ests() -> None:
    assert spec_from_environment({}, None).plan == Plan((1,))
    assert spec_from_environment({}, 3).plan == Plan((3,))
    assert spec_from_environment({ESTS_VARIABLE: "4"}, None).plan == Plan((4,))


def test_a_script_and_its_launcher_must_agree_on_the_ests() -> None:
    environment = {WORKER_VARIABLE: WorkerSpec(ests=4, split=(2, 2)).to_json()}
    assert spec_from_environment(environment, 4).ests == 4
    with pytest.raises(UsageError, match="started with 4 ESTs"):
        spec_from_environment(environment, 3)


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5"])
def test_a_number_of_ests_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(UsageError):
        spec_from_environment({ESTS_VARIABLE: number}, None)


def test_init_without_an_est_is_refused() -> None:
    with pytest.raises(UsageError):
        spec_from_environment({}, 0)


def test_a_device_and_limits_cross_the_process_boundary() -> None:
    spec = WorkerSpec(ests=2, slot=Slot(id="a", kind="t4", node="n", uuid="GPU-1"), bounds=Bounds(memory=5, files=7))
    assert WorkerSpec.from_json(spec.to_json()) == spec
    with pytest.raises(UsageError):
        WorkerSpec.from_json('{"ests": 2, "slot": {"id": 7}}')
    with pytest.raises(UsageError):
        WorkerSpec.from_json('{"ests": 2, "bounds": {"unheard": 7}}')
