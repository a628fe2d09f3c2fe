"""Whether a sound file is whole, by its container: libsndfile plays what is there of a cut file and tells nobody.

| container | whole where                                                                                           |
|-----------|-------------------------------------------------------------------------------------------------------|
| WAV       | the bytes that its data chunk declares are there                                                      |
| Ogg       | all pages up to the end-of-stream mark are there, with their right checksums, and no other stream     |
| FLAC      | libsndfile itself refuses a cut one                                                                   |

A WAV file that is written as a stream declares 0 or 0xFFFFFFFF bytes: then nobody can tell where it should end. It is
read to the end of the file, and that is told. So it is where more follows than was declared, other than chunks.
"""

from __future__ import annotations

import struct
import zlib

from msgspec import Struct

from schemas.codes import Code, Refusal

UNKNOWN_LENGTHS = (0, 0xFFFFFFFF)
_CHUNK_HEAD_BYTES = 8  # a name and a length
_PAGE_HEAD = struct.Struct("<4s B B q I I I B")  # mark, version, flags, position, stream, number, checksum, segments
_PAGE_MARK = b"OggS"
_LAST_PAGE = 0x04
_CHECKSUM_AT = slice(22, 26)
# Ogg's checksum has zlib's polynomial, with the bits of each byte the other way round and without the inversions.
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_NOT_INVERTED = 0xFFFFFFFF


class _Page(Struct, frozen=True):
    size: int
    flags: int
    stream: int
    number: int


def check_whole(data: bytes, conversions: list[str]) -> bytes:
    """The file as it is to be decoded. What is none of these is left to the decoder. Raises Refusal."""
    if _is_wav(data):
        return _check_wav(data, "<I" if data[:4] == b"RIFF" else ">I", conversions)
    if data[:4] == _PAGE_MARK:
        _check_ogg(data)
    return data


def has_container(data: bytes) -> bool:
    """Whether it begins as one of those that are looked into here."""
    return _is_wav(data) or data[:4] == _PAGE_MARK


def _is_wav(data: bytes) -> bool:
    return data[:4] in (b"RIFF", b"RIFX") and data[8:12] == b"WAVE"


def _check_wav(data: bytes, length: str, conversions: list[str]) -> bytes:
    """`length` is how the file writes a length."""
    at = 12
    while data[at : at + 4] != b"data":
        if at + _CHUNK_HEAD_BYTES > len(data):
            raise _damaged(f"ends at byte {len(data)}, before its data")
        at = _next_chunk(data, at, length)
    begin = at + _CHUNK_HEAD_BYTES
    if begin > len(data):
        raise _damaged(f"ends at byte {len(data)}, before its data")
    (declared,) = struct.unpack_from(length, data, at + 4)
    there = len(data) - begin
    if declared in UNKNOWN_LENGTHS and there and not (declared == 0 and _are_chunks(data, begin, length)):
        conversions.append("the file was written as a stream and says no length: read to its end")
        return data[: at + 4] + struct.pack(length, there) + data[begin:]
    if declared > there:
        raise _damaged(f"is cut short: it declares {declared} bytes of sound and {there} are there")
    if declared + declared % 2 < there and not _are_chunks(data, begin + declared + declared % 2, length):
        conversions.append(f"{there - declared} bytes after the sound that the file declares left out")
    return data


def _next_chunk(data: bytes, at: int, length: str) -> int:
    (size,) = struct.unpack_from(length, data, at + 4)
    return int(at + _CHUNK_HEAD_BYTES + size + size % 2)


def _are_chunks(data: bytes, at: int, length: str) -> bool:
    """Whether chunks with names fill the rest: it is no sound then. Some writers leave out the last padding byte."""
    while at + _CHUNK_HEAD_BYTES <= len(data) and all(0x20 <= byte < 0x7F for byte in data[at : at + 4]):
        at = _next_chunk(data, at, length)
    return at - len(data) in (0, 1)


def _check_ogg(data: bytes) -> None:
    at = 0
    stream: int | None = None
    number, last = 0, False
    while not last:
        if at == len(data):
            raise _damaged("has no end-of-stream mark: it is cut short, or was never closed")
        page = _page(data, at)
        if stream is None:
            stream, number = page.stream, page.number
        if page.stream != stream:
            raise _several_streams()
        if page.number != number:
            raise _damaged(f"is damaged: page {page.number} follows where page {number} should")
        at, number, last = at + page.size, number + 1, bool(page.flags & _LAST_PAGE)
    if data.find(_PAGE_MARK, at) >= 0:
        raise _several_streams()


def _page(data: bytes, at: int) -> _Page:
    """The page that begins here, whole. Raises Refusal."""
    if at + _PAGE_HEAD.size > len(data):
        raise _damaged(f"is cut short: it ends within a page, at byte {len(data)}")
    mark, _, flags, _, stream, number, checksum, segments = _PAGE_HEAD.unpack_from(data, at)
    begin = at + _PAGE_HEAD.size
    size = _PAGE_HEAD.size + segments + sum(data[begin : begin + segments])
    if mark != _PAGE_MARK:
        raise _damaged(f"is damaged: no page begins at byte {at}")
    if at + size > len(data):
        raise _damaged(f"is cut short: it ends within a page, at byte {len(data)}")
    if _checksum(data[at : at + size]) != checksum:
        raise _damaged(f"is damaged: the page at byte {at} has another checksum")
    return _Page(size, flags, stream, number)


def _checksum(page: bytes) -> int:
    zeroed = page[: _CHECKSUM_AT.start] + bytes(4) + page[_CHECKSUM_AT.stop :]
    mirrored = zlib.crc32(zeroed.translate(_MIRRORED), _NOT_INVERTED) ^ _NOT_INVERTED
    return int(f"{mirrored:032b}"[::-1], 2)


def _damaged(what: str) -> Refusal:
    return Refusal(Code.INPUT_INVALID, f"the audio file {what}")


def _several_streams() -> Refusal:
    return Refusal(Code.INPUT_INVALID, "the audio file holds more than one stream; send each by itself")
