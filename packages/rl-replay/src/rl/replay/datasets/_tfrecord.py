"""TFRecord files and the `tf.train.Example` messages in them, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from rl.core.errors import RLError

__all__ = ["Values", "examples", "parse_example"]

Values = list[bytes] | np.ndarray
"""Values of a feature: byte strings, float32 or int64."""

_POLYNOMIAL = 0x82F63B78  # CRC-32C
_MASK = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _table() -> tuple[int, ...]:
    rows: list[int] = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


def masked_crc(data: bytes) -> int:
    """The checksum of a TFRecord file.

    Example:
        >>> crc = (masked_crc(b"123456789") - _MASK) & 0xFFFFFFFF
        >>> hex((crc << 15 | crc >> 17) & 0xFFFFFFFF)  # the check value of CRC-32C
        '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + _MASK) & 0xFFFFFFFF


def examples(owner: str, path: Path) -> Iterator[dict[str, Values]]:
    """The messages of a file.

    The checksums of the lengths are verified; those of the messages, which may be large, are not.

    Raises:
        RLError: if the file is damaged, or no TFRecord file.
    """
    try:
        with path.open("rb") as file:
            while (record := _record(file)) is not None:
                yield parse_example(record)
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise RLError(f"{owner} cannot read {path}: {error}. It takes complete TFRecord files of examples") from error


def _record(file: IO[bytes]) -> bytes | None:
    head = file.read(12)
    if not head:
        return None
    if len(head) < 12:
        raise ValueError("it ends within the length of a record")
    length, checksum = struct.unpack("<QI", head)
    if masked_crc(head[:8]) != checksum:
        raise ValueError("the checksum of a length differs")
    record = file.read(length)
    if len(record) < length or len(file.read(4)) < 4:
        raise ValueError("it ends within a record")
    return record


def parse_example(data: bytes) -> dict[str, Values]:
    """The features of a `tf.train.Example` by name.

    Raises:
        ValueError: if it is none.
    """
    found: dict[str, Values] = {}
    for field, features in _fields(memoryview(data)):
        for entry, pair in _fields(features) if field == 1 else ():
            if entry == 1:
                parts = dict(_fields(pair))
                found[bytes(parts[1]).decode()] = _values(parts.get(2, memoryview(b"")))
    return found


def _values(feature: memoryview) -> Values:
    for kind, values in _fields(feature):
        if kind == 1:
            return [bytes(value) for _, value in _fields(values)]
        if kind == 2:
            return np.concatenate([np.empty(0, "<f4"), *(np.frombuffer(part, "<f4") for _, part in _fields(values))])
        if kind == 3:
            return np.array([number for _, part in _fields(values) for number in _integers(part)], np.int64)
    return []


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message of protocol buffers, by number; a single integer as its bytes."""
    at = 0
    while at < len(data):
        tag, at = _integer(data, at)
        kind, start = tag & 7, at
        if kind == _BYTES:
            length, start = _integer(data, at)
            at = start + length
        elif kind == _VARINT:
            _, at = _integer(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"no message of protocol buffers: wire type {kind}")
        if at > len(data):
            raise ValueError("a message of protocol buffers ends early")
        yield tag >> 3, data[start:at]


def _integers(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _integer(data, at)
        yield value - (1 << 64) if value >> 63 else value


def _integer(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("no message of protocol buffers: an integer of more than 64 bits")
