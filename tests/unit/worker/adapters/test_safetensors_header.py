"""Whatever a safetensors header says, it is read or refused at once, and inspection tells why as a reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from schemas.artifacts import FileEntry
from worker.adapters.folder import ModelFolder
from worker.adapters.folder_rules import pickle_reasons
from worker.adapters.safetensors_header import HEADER_BYTES_MAX, TENSORS_MAX, MalformedHeader, read_header

NAME = "model.safetensors"
DEEP = "[" * 100_000 + "]" * 100_000


def file_of(folder: Path, header: str, data: bytes = b"") -> Path:
    raw = header.encode()
    path = folder / NAME
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def tensor(**changes: Any) -> str:
    return json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}})


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    entries: dict[str, Any] = {
        "__metadata__": {"format": "pt"},
        "weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "count": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]},
        "none": {"dtype": "BF16", "shape": [0, 2**40], "data_offsets": [32, 32]},
    }
    header = read_header(file_of(tmp_path, json.dumps(entries), bytes(32)))
    assert (header.tensors, header.parameters) == (3, 6)
    assert header.names == {"weight", "count", "none"}


MALFORMED = {
    "sides without end": tensor(shape=[2**62] * 40_000),
    "a side over 63 bits": tensor(shape=[2**63]),
    "a product over any file": tensor(shape=[2**63 - 1] * 8),
    "more than eight sides": tensor(shape=[1] * 9),
    "a negative side": tensor(shape=[-4]),
    "a side that is a text": tensor(shape=["4"]),
    "a side that is true": tensor(shape=[True, 4]),
    "offsets that are texts": tensor(data_offsets=["a", "b"]),
    "offsets that are fractions": tensor(data_offsets=[0.0, 16.0]),
    "one offset": tensor(data_offsets=[16]),
    "negative offsets": tensor(data_offsets=[-16, 0]),
    "an unknown type": tensor(dtype="Q9" * 10_000),
    "a type that is none": tensor(dtype=["F32"]),
    "a long name": json.dumps({"n" * 100_000: 7}),
    "a deep tensor": f'{{"a": {DEEP}}}',
    "a deep header": DEEP,
    "too many tensors": json.dumps(dict.fromkeys(map(str, range(TENSORS_MAX + 1)), 0)),
}


@pytest.mark.parametrize("header", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_wrong_is_told_in_few_words(tmp_path: Path, header: str) -> None:
    path = file_of(tmp_path, header, bytes(16))
    with pytest.raises(MalformedHeader) as caught:
        read_header(path)
    assert len(str(caught.value)) < 1_000
    assert pickle_reasons(tmp_path, {NAME}) == []
    look = ModelFolder(tmp_path, [FileEntry(NAME, 0, "")])
    look.check_weights()
    assert [str(caught.value) in reason.message for reason in look.reasons] == [True]


def test_a_header_over_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", HEADER_BYTES_MAX + 1))
        file.truncate(HEADER_BYTES_MAX + 100)
    with pytest.raises(MalformedHeader, match=f"up to {HEADER_BYTES_MAX} are read"):
        read_header(path)


@pytest.mark.parametrize("content", [f'{{"a": {DEEP}}}', "{", "[]", '{"a": 1e999}', '{"a": ' + "1" * 5_000 + "}"])
def test_a_configuration_that_cannot_be_read_is_a_reason(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    look = ModelFolder(tmp_path, [FileEntry("config.json", 0, "")])
    assert look.read_object("config.json", needed=True) == {}
    assert ["`config.json` is not what is expected" in reason.message for reason in look.reasons] == [True]
