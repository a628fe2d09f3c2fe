"""Reads a safetensors file's header: tensor names, types and shapes, without the tensors.

Layout: 8 bytes little-endian header length, that many bytes of JSON, then the tensors' bytes. The header
says where each tensor lies, so a truncated or padded file is found without reading the weights.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

HEADER_BYTES_MAX = 100_000_000  # the format's own bound
TENSORS_MAX = 100_000

_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
_FLOATS = frozenset({"F8_E5M2", "F8_E4M3", "F16", "BF16", "F32", "F64"})


class Header(Struct, frozen=True):
    """`parameters` counts the elements of floating-point tensors; integer buffers are not parameters."""

    tensors: int
    parameters: int
    file_bytes: int
    names: frozenset[str] = frozenset()


class MalformedHeader(ValueError):
    """The file isn't whole safetensors; the message says what's wrong and names numbers."""


def read_header(path: Path) -> Header:
    """Raises MalformedHeader; OSError where the file can't be read."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            raise MalformedHeader(f"holds {size} bytes; a safetensors file has at least 8")
        (length,) = struct.unpack("<Q", prefix)
        if length > HEADER_BYTES_MAX or 8 + length > size:
            raise MalformedHeader(f"declares a header of {length} bytes but holds {size} bytes in all")
        raw = file.read(length)
    try:
        entries: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise MalformedHeader(f"has a header that is no JSON object: {error}") from error
    entries.pop("__metadata__", None)
    if not entries or len(entries) > TENSORS_MAX:
        raise MalformedHeader(f"holds {len(entries)} tensors; 1 to {TENSORS_MAX} are expected")
    end, parameters = 0, 0
    for name, entry in entries.items():
        tensor_end, count = _tensor(name, entry)
        end = max(end, tensor_end)
        parameters += count
    if 8 + length + end != size:
        raise MalformedHeader(f"should hold {8 + length + end} bytes by its header but holds {size}")
    return Header(len(entries), parameters, size, frozenset(entries))


def _tensor(name: str, entry: Any) -> tuple[int, int]:
    """Where the tensor ends, and its parameters."""
    try:
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        elements = math.prod(shape)
        declared = elements * _BITS[kind] // 8
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedHeader(f"describes tensor `{name}` in a way that can't be read: {error!r}") from error
    if begin < 0 or end - begin != declared:
        raise MalformedHeader(f"gives tensor `{name}` {end - begin} bytes where its shape needs {declared}")
    return end, elements if kind in _FLOATS else 0
