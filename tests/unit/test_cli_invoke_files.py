"""The files of `tenure invoke`: nothing is computed that could not be written, and what was computed is written."""

from __future__ import annotations

import array
import errno
import io
import os
import wave
from pathlib import Path
from typing import Any

import pytest

from schemas.codes import Code, Refusal
from schemas.tasks.audio import Audio, Spoken
from schemas.tasks.image import Imagined
from schemas.tasks.requests import Result
from services.cli.exits import CONFLICT, OK, REFUSED, USAGE
from services.cli.invoke.files import save, wave_of
from tests.fake_wire import FakeWire
from tests.unit.test_cli_invoke import serving
from tests.unit.test_cli_output import tenure, wire

__all__ = ["wire"]  # the fixture
THREE = Imagined([b"one", b"two", b"three"], 8, 8, 2, 7, False)
SAID = Spoken(Audio(array.array("f", [0.0]).tobytes(), 16_000), 1 / 16_000, 5, 9, [])


def test_several_images_get_numbers(wire: FakeWire, tmp_path: Path) -> None:
    serving(wire, "image_generation", THREE)
    (tmp_path / "a.png").write_bytes(b"of before")  # not one of the names
    ran = tenure("invoke", "search", "a door", "--count", "3", "-o", str(tmp_path / "a.png"))
    assert ran.exit_code == OK, ran.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a.png": b"of before",
        "a-1.png": b"one",
        "a-2.png": b"two",
        "a-3.png": b"three",
    }


def test_every_name_is_looked_at_before_anything_is_asked(wire: FakeWire, tmp_path: Path) -> None:
    asked = serving(wire, "image_generation", THREE)
    taken = tmp_path / "a-2.png"
    taken.write_bytes(b"of before")
    command = ("invoke", "search", "a door", "--count", "3", "-o", str(tmp_path / "a.png"))
    ran = tenure(*command)
    assert ran.exit_code == CONFLICT
    assert "a-2.png" in ran.stderr
    assert (asked, [path.name for path in tmp_path.iterdir()]) == ([], ["a-2.png"])
    assert tenure(*command, "--force").exit_code == OK
    assert taken.read_bytes() == b"two"


@pytest.mark.parametrize(("task", "result"), [("tts", SAID), ("image_generation", THREE)])
def test_a_task_that_makes_files_is_asked_only_with_a_place_for_them(wire: FakeWire, task: str, result: Result) -> None:
    asked = serving(wire, task, result)
    ran = tenure("invoke", "search", "words")
    assert (ran.exit_code, asked) == (REFUSED, [])
    assert "--out" in ran.stderr
    assert tenure("invoke", "search", "words", "--json").exit_code == OK


@pytest.mark.parametrize("wrong", ["folder", "no folder", "not allowed"])
def test_a_place_that_takes_no_file_is_refused_before(
    wire: FakeWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    asked = serving(wire, "tts", SAID)
    out = {"folder": tmp_path, "no folder": tmp_path / "gone" / "a.wav", "not allowed": tmp_path / "a.wav"}[wrong]
    if wrong == "not allowed":
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    ran = tenure("invoke", "search", "words", "--out", str(out), "--force")
    assert (ran.exit_code, asked) == (REFUSED, [])
    assert "INPUT_INVALID" in ran.stderr


@pytest.mark.parametrize("task", ["embedding", "text_generation", "ocr"])
def test_out_is_refused_where_nothing_would_be_written(wire: FakeWire, tmp_path: Path, task: str) -> None:
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"picture")
    asked = serving(wire, task, THREE)
    said = ["--image", str(picture)] if task == "ocr" else ["words"]
    assert tenure("invoke", "search", *said, "--out", str(tmp_path / "a")).exit_code == USAGE
    asked += serving(wire, "tts", SAID)
    assert tenure("invoke", "search", "words", "--json", "--out", str(tmp_path / "a")).exit_code == USAGE
    assert asked == []


def test_a_name_taken_meanwhile_keeps_the_others(tmp_path: Path) -> None:
    (tmp_path / "a-2.png").write_bytes(b"of another")
    with pytest.raises(Refusal) as caught:
        save(THREE, tmp_path / "a.png", False)
    assert caught.value.code is Code.NAME_TAKEN
    told = caught.value.message.partition("written: ")[2]
    assert ["a-2.png" in told.partition("; written: ")[0], "a-2.png" in told.partition("; written: ")[2]] == [
        True,
        False,
    ]
    assert "a-1.png" in told
    assert "--seed 7" in caught.value.detail["advice"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a-1.png": b"one",
        "a-2.png": b"of another",
        "a-3.png": b"three",
    }


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    class Full(io.BufferedWriter):
        def write(self, content: Any) -> int:
            super().write(content[:1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full(path: Path, mode: str = "r", *more: Any) -> Any:
        file: Any = opened(path, mode, *more)
        return Full(file.detach()) if path.name == "a-2.png" else file

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(Refusal) as caught:
        save(THREE, tmp_path / "a.png", False)
    assert caught.value.code is Code.INPUT_INVALID
    assert os.strerror(errno.ENOSPC) in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-1.png", "a-3.png"]


def test_a_wave_file_says_what_is_in_it() -> None:
    with wave.open(io.BytesIO(wave_of(Audio(array.array("f", [0.0, 0.5, -2.0, 0.0]).tobytes(), 8_000, 2)))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (8_000, 2, 2)
        assert array.array("h", file.readframes(2)).tolist() == [0, 16_383, -32_767, 0]
