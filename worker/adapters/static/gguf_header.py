"""Reads a GGUF file's header: what llama.cpp's format says of a model, without its weights.

Layout, little-endian: the letters GGUF, a version, the counts of tensors and of key-value pairs; the pairs, each a key,
a type and a value; for each tensor its name, shape, type and place; then, aligned, the tensors' bytes. A header is read
up to HEADER_BYTES_MAX, PAIRS_MAX, TENSORS_MAX and VALUES_MAX, whatever its counts say, and values that nobody asks for
(a vocabulary, say) are passed over.

The places tell how long the file has to be, so that one that was cut is found. Types of tensors that are not known
here have no size, and a file that has some is not measured.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # 1 counted in 32 bits; no such file is left
HEADER_BYTES_MAX = 64 * 1024 * 1024
PAIRS_MAX = 65_536
TENSORS_MAX = 200_000
VALUES_MAX = 4_000_000  # elements of arrays that have to be walked through
DEPTH_MAX = 4  # of arrays in arrays
DIMENSIONS_MAX = 8
NAME_BYTES_MAX = 65_535
TEXT_BYTES_MAX = 4_096  # of a value that is kept
ALIGNMENT = 32
_ALIGNMENT_MAX = 1 << 20

_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# Of each type of tensor: its name, and how many elements take how many bytes together.
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
# `general.file_type`: the mixture of types by the name that people know it by.
_MIXTURES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip

Value = int | float | bool | str


class MalformedGguf(ValueError):
    """The file isn't a whole GGUF file of a known version; the message says what's wrong and names numbers."""


class Header(Struct, frozen=True):
    """`part` counts from 0 where a model lies in several files. None and empty are what the file does not say."""

    version: int
    architecture: str
    tensors: int
    parameters: int
    quantization: str
    context_length: int | None
    dimensions: int | None
    part: int
    parts: int
    file_bytes: int


def read_header(path: Path) -> Header:
    """Raises MalformedGguf; OSError where the file can't be read."""
    with open(path, "rb") as file:
        reader = _Reader(file)
        version, tensors, pairs = _counts(reader)
        values = _pairs(reader, pairs)
        alignment = values.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= _ALIGNMENT_MAX:
            raise MalformedGguf(f"has an alignment of {alignment}")
        weights = [_tensor(reader) for _ in range(tensors)]
    begin = -(-reader.place // alignment) * alignment
    _check_length(weights, begin, reader.size)
    architecture = values.get("general.architecture", "")
    return Header(
        version=version,
        architecture=str(architecture),
        tensors=tensors,
        parameters=sum(weight.elements for weight in weights),
        quantization=_quantization(values, weights),
        context_length=_whole(values, f"{architecture}.context_length"),
        dimensions=_whole(values, f"{architecture}.embedding_length"),
        part=_whole(values, "split.no") or 0,
        parts=_whole(values, "split.count") or 1,
        file_bytes=reader.size,
    )


class _Weight(Struct, frozen=True):
    name: str
    kind: int
    elements: int
    row: int
    offset: int


class _Reader:
    """Reads on within the header's bounds; anything beyond is malformed, and said so."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self.place = 0
        self.walked = 0

    def take(self, count: int) -> bytes:
        self._check(count)
        found = self._file.read(count)
        if len(found) != count:
            raise MalformedGguf(f"ends in its header, at byte {self.place + len(found)}")
        self.place += count
        return found

    def skip(self, count: int) -> None:
        self._check(count)
        self._file.seek(count, os.SEEK_CUR)
        self.place += count

    def _check(self, count: int) -> None:
        if self.place + count > HEADER_BYTES_MAX:
            raise MalformedGguf(f"has a header of more than {HEADER_BYTES_MAX} bytes")
        if self.place + count > self.size:
            raise MalformedGguf(f"ends in its header: it holds {self.size} bytes and says more at byte {self.place}")

    def number(self, kind: str) -> int:
        (value,) = struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))
        return int(value)

    def name(self) -> str:
        length = self.number("Q")
        if length > NAME_BYTES_MAX:
            raise MalformedGguf(f"has a name of {length} bytes at byte {self.place}")
        return self.take(length).decode("utf-8", errors="replace")


def _counts(reader: _Reader) -> tuple[int, int, int]:
    magic = reader.take(4)
    if magic != MAGIC:
        raise MalformedGguf(f"begins with {magic!r}, not with GGUF")
    version = reader.number("I")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in VERSIONS:
            raise MalformedGguf("is big-endian, which is not read here")
        raise MalformedGguf(f"is of version {version}; {' and '.join(map(str, VERSIONS))} are read")
    tensors, pairs = reader.number("Q"), reader.number("Q")
    if tensors > TENSORS_MAX or pairs > PAIRS_MAX:
        raise MalformedGguf(f"says {tensors} tensors and {pairs} pairs; {TENSORS_MAX} and {PAIRS_MAX} are read")
    return version, tensors, pairs


def _pairs(reader: _Reader, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for _ in range(count):
        key = reader.name()
        value = _value(reader, reader.number("I"), depth=0)
        if value is not None:
            values[key] = value
    return values


def _value(reader: _Reader, kind: int, depth: int) -> Value | None:
    """None for what is passed over: arrays, and long texts."""
    if kind == _STRING:
        length = reader.number("Q")
        if depth or length > TEXT_BYTES_MAX:
            reader.skip(length)
            return None
        return reader.take(length).decode("utf-8", errors="replace")
    if kind == _ARRAY:
        _skip_array(reader, depth)
        return None
    if kind not in _NUMBERS:
        raise MalformedGguf(f"has a value of the unknown type {kind} at byte {reader.place}")
    code = _NUMBERS[kind]
    (value,) = struct.unpack(f"<{code}", reader.take(struct.calcsize(f"<{code}")))
    kept: Value = value
    return kept


def _skip_array(reader: _Reader, depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise MalformedGguf(f"has arrays nested deeper than {DEPTH_MAX}")
    kind, count = reader.number("I"), reader.number("Q")
    if kind in _NUMBERS:
        reader.skip(count * struct.calcsize(f"<{_NUMBERS[kind]}"))
        return
    if reader.walked + count > VALUES_MAX:
        raise MalformedGguf(f"says more than {VALUES_MAX} texts in its arrays")
    reader.walked += count
    for _ in range(count):
        _value(reader, kind, depth + 1)


def _tensor(reader: _Reader) -> _Weight:
    name = reader.name()
    dimensions = reader.number("I")
    if dimensions > DIMENSIONS_MAX:
        raise MalformedGguf(f"gives tensor `{name}` {dimensions} dimensions")
    shape = [reader.number("Q") for _ in range(dimensions)]
    kind, offset = reader.number("I"), reader.number("Q")
    return _Weight(name, kind, math.prod(shape), shape[0] if shape else 1, offset)


def _check_length(weights: list[_Weight], begin: int, size: int) -> None:
    needed = begin if weights else 0
    for weight in weights:
        if weight.kind not in _TYPES:
            return
        name, elements, size_of = _TYPES[weight.kind]
        if weight.row % elements:
            raise MalformedGguf(f"gives tensor `{weight.name}` rows of {weight.row}; {name} needs {elements} together")
        needed = max(needed, begin + weight.offset + weight.elements // elements * size_of)
    if needed > size:
        raise MalformedGguf(f"should hold {needed} bytes by its header but holds {size}")


def _quantization(values: dict[str, Value], weights: list[_Weight]) -> str:
    """What the file calls its mixture, else the type of most of its parameters."""
    said = _whole(values, "general.file_type")
    if said in _MIXTURES:
        return _MIXTURES[said]
    counts: dict[int, int] = {}
    for weight in weights:
        counts[weight.kind] = counts.get(weight.kind, 0) + weight.elements
    if not counts:
        return ""
    most = max(counts, key=lambda kind: counts[kind])
    return _TYPES[most][0] if most in _TYPES else f"type {most}"


def _whole(values: dict[str, Value], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
