import json
import struct
from pathlib import Path

import pytest

from easyscale.core.errors import UsageError
from easyscale.core.plan import Plan
from easyscale.master.metrics import MetricsLog, prepare_metrics_folder
from easyscale.master.state import StepRecord
from easyscale.master.tensorboard import ScalarWriter, _masked_checksum


def record(step: int, loss: float = 0.5) -> StepRecord:
    metrics: dict[str, list[float | None]] = {"loss": [loss, loss + 1, None]}
    return StepRecord(step=step, epoch=0, time=1000.0 + step, plan=Plan((2, 1)), metrics=metrics, samples=3)


def write(folder: Path, *records: StepRecord) -> None:
    log = MetricsLog(folder)
    for entry in records:
        log.step(entry)
    log.close()


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_each_step_is_one_line(tmp_path: Path) -> None:
    write(tmp_path, record(0), record(1, float("inf")))
    first, second = lines(tmp_path)
    assert first == {"step": 0, "epoch": 0, "time": 1000.0, "plan": "2+1", "metrics": {"loss": [0.5, 1.5, None]}}
    assert second["metrics"] == {"loss": ["Infinity", "Infinity", None]}


def test_a_job_that_resumes_writes_on_and_each_step_stays_one_line(tmp_path: Path) -> None:
    write(tmp_path, record(0), record(1), record(2))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "cut off by a cra')
    write(tmp_path, record(1), record(2), record(3))
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2, 3]


def test_a_new_job_moves_the_old_ones_lines_aside(tmp_path: Path) -> None:
    for loss in (1.0, 2.0, 3.0):
        write(tmp_path, record(0, loss))
    assert [line["metrics"] for line in lines(tmp_path)] == [{"loss": [3.0, 4.0, None]}]
    assert len(list(tmp_path.glob("metrics-*.jsonl"))) == 2


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    prepare_metrics_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError):
        prepare_metrics_folder(tmp_path / "file")


def events(folder: Path) -> list[bytes]:
    """The records of all event files, with their checksums checked."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            body = data[12 : 12 + length]
            assert data[8:12] == _masked_checksum(data[:8])
            assert data[12 + length : 16 + length] == _masked_checksum(body)
            found.append(body)
            data = data[16 + length :]
    return found


def test_the_checksum_is_the_masked_castagnoli_one() -> None:
    crc = 0xE3069283  # of "123456789", from RFC 3720
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert _masked_checksum(b"123456789") == struct.pack("<I", masked)


def test_tensorboard_gets_the_mean_and_each_est(tmp_path: Path) -> None:
    write(tmp_path, record(7))
    version, start, scalars = events(tmp_path)
    assert b"brain.Event:2" in version
    assert start.endswith(bytes([2 << 3, 7, 7 << 3 | 2, 2, 1 << 3, 1]))  # step 7, session log: START
    for tag, value in ((b"loss/mean", 1.0), (b"loss/est0", 0.5), (b"loss/est1", 1.5)):
        assert tag + bytes([2 << 3 | 5]) + struct.pack("<f", value) in scalars
    assert b"est2" not in scalars


def test_a_value_too_large_for_32_bits_is_shown_as_infinite(tmp_path: Path) -> None:
    writer = ScalarWriter(tmp_path, 0.0, 0)
    writer.scalars(0.0, 300, [("loss", -1e300)])
    writer.close()
    assert struct.pack("<f", float("-inf")) in events(tmp_path)[-1]
