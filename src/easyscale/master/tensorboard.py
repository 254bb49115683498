"""TensorBoard event files, scalars only, on the standard library.

The usual writers import torch, which the launcher must not. The format is small: a file of records
(length, checksum, bytes, checksum), each a protocol buffer `Event` with one `Summary`.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_START = 1  # SessionLog.START: what an older file says from this step on is void


class ScalarWriter:
    """One event file. `first_step` voids the same and later steps of older files in the folder."""

    def __init__(self, folder: Path, time: float, first_step: int) -> None:
        # TensorBoard reads the files of a folder in the order of their names: the time comes first.
        name = f"events.out.tfevents.{int(time):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file: BinaryIO = (folder / name).open("ab")
        self._write(_event(time, 0, _field(3, b"brain.Event:2")))
        self._write(_event(time, first_step, _field(7, _number(1, _START))))

    def scalars(self, time: float, step: int, values: Iterable[tuple[str, float]]) -> None:
        summary = b"".join(_field(1, _field(1, tag.encode()) + _float(2, value)) for tag, value in values)
        self._write(_event(time, step, _field(5, summary)))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked_checksum(length) + data + _masked_checksum(data))


def _event(time: float, step: int, what: bytes) -> bytes:
    return _key(1, _FIXED64) + struct.pack("<d", time) + _number(2, step) + what


def _key(field: int, wire: int) -> bytes:
    return bytes([field << 3 | wire])


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _float(field: int, value: float) -> bytes:
    try:
        return _key(field, _FIXED32) + struct.pack("<f", value)
    except OverflowError:  # finite, but not in 32 bits
        return _float(field, float("inf") if value > 0 else float("-inf"))


def _field(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _table() -> list[int]:
    rows = []
    for byte in range(256):
        row = byte
        for _ in range(8):
            row = row >> 1 ^ (0x82F63B78 if row & 1 else 0)
        rows.append(row)
    return rows


_CASTAGNOLI = _table()


def _masked_checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CASTAGNOLI[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
