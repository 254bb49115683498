import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.core.messages import (
    MAX_LINE,
    Done,
    Event,
    Failed,
    Fingerprint,
    HandedOver,
    Message,
    Ready,
    StepDone,
    decode,
    encode,
)

number = st.integers(0, 1 << 40)
value = st.none() | st.floats(allow_nan=False)
name = st.text(max_size=10)
messages = st.one_of(
    st.builds(Ready, worker=number, pid=number, step=number, seconds=st.floats(0, 1e6)),
    st.builds(
        StepDone,
        worker=number,
        step=number,
        epoch=number,
        ests=st.lists(number, max_size=3),
        metrics=st.dictionaries(name, st.lists(value, max_size=3), max_size=3),
        samples=number,
        time=st.floats(0, 1e12),
        local=st.floats(0, 1e6),
    ),
    st.builds(Fingerprint, step=number, sha=name),
    st.builds(Event, worker=number, step=number, what=name, text=st.text()),
    st.builds(HandedOver, step=number, worker=number, timings=st.dictionaries(name, st.floats(0, 1e9), max_size=2)),
    st.builds(Done, worker=number, steps=number, fingerprint=st.none() | name, bytes_sent=number),
    st.builds(Failed, worker=number, step=number, ours=st.booleans(), text=st.text(), lost_peer=st.booleans()),
)


@given(messages)
def test_a_message_arrives_as_it_was_sent_on_one_line(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


def test_a_loss_that_is_not_a_number_arrives_as_such() -> None:
    sent = StepDone(worker=0, step=0, epoch=0, ests=[0], metrics={"loss": [float("nan")]}, samples=1, time=0.0)
    got = decode(encode(sent))
    assert isinstance(got, StepDone)
    (loss,) = got.metrics["loss"]
    assert loss is not None
    assert loss != loss


@given(st.binary(max_size=200))
def test_a_line_that_is_no_message_is_dropped(line: bytes) -> None:
    assert decode(line) is None


@pytest.mark.parametrize("line", [b"", b"null", b"[]", b'"ready"', b'{"kind":"unknown"}', b'{"kind":"ready"}', b"\xff"])
def test_a_line_that_is_nearly_a_message_is_dropped(line: bytes) -> None:
    assert decode(line) is None


def test_a_line_that_is_too_long_is_dropped() -> None:
    assert decode(encode(Fingerprint(step=1, sha="x" * MAX_LINE))) is None


def test_words_of_workers_that_measure_nothing_are_understood() -> None:
    """Journals of earlier versions have no such fields."""
    step = b'{"kind":"step","worker":0,"step":0,"epoch":0,"ests":[0],"metrics":{},"samples":1,"time":0.0}'
    ready = b'{"kind":"ready","worker":0,"pid":1,"step":0,"seconds":1.0}'
    assert decode(step) == StepDone(worker=0, step=0, epoch=0, ests=[0], metrics={}, samples=1, time=0.0, local=0.0)
    assert decode(ready) == Ready(worker=0, pid=1, step=0, seconds=1.0, device="")
