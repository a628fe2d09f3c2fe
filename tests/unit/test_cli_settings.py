"""A profile's own settings from the command line, and golden probes that are recorded from a deployment."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import typer

from schemas.profiles import AudioSettings, RuntimeProfile
from schemas.tasks.golden import GoldenProbe
from schemas.tasks.requests import REQUEST_OF
from schemas.tasks.text import Embedded, EmbedRequest, Generated, GenerateRequest
from services.cli.exits import OK
from services.cli.prove.golden import read_goldens
from services.cli.prove.profile import parse_profile
from services.cli.prove.settings import SECTION_OF, sections_of
from tests.fake_wire import FakeWire
from tests.unit.test_cli_invoke import serving
from tests.unit.test_cli_output import tenure, wire

__all__ = ["wire"]  # the fixture


@pytest.mark.parametrize("task", sorted(REQUEST_OF))
def test_every_task_writes_its_section_whole(task: str) -> None:
    profile = parse_profile({"adapter": "some_adapter", "task": task, **sections_of(task, {})})
    own = SECTION_OF.get(task)
    for section in ("image", "audio", "generation", "diffusion"):
        assert (getattr(profile, section) is not msgspec.UNSET) is (section == own)


def test_settings_are_read_as_json_or_words() -> None:
    said = {"audio.chunk": "false", "audio.seconds_max": "60"}
    profile = parse_profile({"adapter": "a_b", "task": "stt", **sections_of("stt", said)})
    assert profile.audio == AudioSettings(chunk=False, seconds_max=60)
    image = sections_of("ocr", {"image.background": "black"})["image"]
    assert image["background"] == "black"


@pytest.mark.parametrize(
    ("task", "path"),
    [
        ("stt", "audio"),
        ("stt", "audio.volume"),
        ("stt", "image.background"),
        ("embedding", "audio.chunk"),
        ("stt", "x.y"),
    ],
)
def test_what_is_no_setting_of_the_task_is_refused(task: str, path: str) -> None:
    with pytest.raises(typer.BadParameter):
        sections_of(task, {path: "1"})


def test_golden_probes_are_recorded_one_by_one(wire: FakeWire, tmp_path: Path) -> None:
    serving(wire, "text_generation", Generated("there", "stop", 1, 1))
    request, out = tmp_path / "request.json", tmp_path / "golden.json"
    request.write_text(json.dumps({"type": "generate", "prompt": "hello"}))
    words = ("golden", "record", "search", "greeting", "--request", str(request), "--out", str(out))
    assert tenure(*words, "--tolerance", "0.1").exit_code == OK
    expected = GoldenProbe("greeting", GenerateRequest(prompt="hello"), Generated("there", "stop", 1, 1), 0.1)
    assert read_goldens(out) == [expected]
    again = tenure(*words)
    assert again.exit_code != OK
    assert "NAME_TAKEN" in again.stderr
    profile = parse_profile(
        {"adapter": "a_b", "task": "text_generation", "golden": msgspec.to_builtins(read_goldens(out))}
    )
    assert profile.golden == [expected]


def test_bytes_of_golden_probes_survive_the_file(tmp_path: Path) -> None:

    probe = GoldenProbe("bytes", EmbedRequest(["x"]), Embedded(bytes(range(8)), 1, 2, [1], [False]))
    path = tmp_path / "golden.json"
    path.write_bytes(msgspec.json.encode([probe]))
    profile = parse_profile({"adapter": "a_b", "task": "embedding", "golden": msgspec.to_builtins(read_goldens(path))})
    assert isinstance(profile, RuntimeProfile)
    assert profile.golden == [probe]
