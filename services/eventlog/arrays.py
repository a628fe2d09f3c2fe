"""PostgreSQL arrays in the binary wire format, built by hand for the columns of the log.

psycopg's list dumper looks at every element; for batches of hundreds of rows that is most of an append.
Each class is a parameter psycopg sends as it is, with the right type. Elements are never NULL, except in
NullableBigintArray. Format: PostgreSQL source, src/backend/utils/adt/arrayfuncs.c (array_recv).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

_TEXT, _BYTEA, _BIGINT = 25, 17, 20
_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i").pack
_BIGINT_ELEMENT = struct.Struct("!iq").pack
_NULL = struct.pack("!i", -1)


class _Array:
    oid = 0

    def __init__(self, data: bytes) -> None:
        self.data = data


class TextArray(_Array):
    oid = 1009

    def __init__(self, items: Sequence[str]) -> None:
        super().__init__(_bytes_array(_TEXT, len(items), (item.encode() for item in items)))


class ByteaArray(_Array):
    oid = 1001

    def __init__(self, items: Sequence[bytes]) -> None:
        super().__init__(_bytes_array(_BYTEA, len(items), items))


class BigintArray(_Array):
    oid = 1016

    def __init__(self, items: Sequence[int]) -> None:
        body = b"".join([_BIGINT_ELEMENT(8, item) for item in items])
        super().__init__(
            _HEADER.pack(1 if items else 0, 0, _BIGINT, len(items), 1) + body if items else _empty(_BIGINT)
        )


class NullableBigintArray(_Array):
    oid = 1016

    def __init__(self, items: Sequence[int | None]) -> None:
        body = b"".join([_NULL if item is None else _BIGINT_ELEMENT(8, item) for item in items])
        super().__init__(_HEADER.pack(1, 1, _BIGINT, len(items), 1) + body if items else _empty(_BIGINT))


def _bytes_array(element: int, count: int, items: Iterable[bytes]) -> bytes:
    if not count:
        return _empty(element)
    parts = [_HEADER.pack(1, 0, element, count, 1)]
    for item in items:
        parts.append(_LENGTH(len(item)))
        parts.append(item)
    return b"".join(parts)


def _empty(element: int) -> bytes:
    return struct.pack("!iiI", 0, 0, element)


def _dumper(array: type[_Array]) -> type[Dumper]:
    class ArrayDumper(Dumper):
        oid = array.oid
        format = Format.BINARY

        def dump(self, obj: _Array) -> bytes:
            return obj.data

    return ArrayDumper


def register_arrays(context: AdaptContext) -> None:
    """Teach a psycopg connection (or any adapt context) to send these."""
    adapters: Any = context.adapters
    for array in (TextArray, ByteaArray, BigintArray, NullableBigintArray):
        adapters.register_dumper(array, _dumper(array))
