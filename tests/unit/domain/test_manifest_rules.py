"""ArtifactSets: which manifests may be registered, under which name, and how often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.artifacts import check_location, path_refusal
from schemas import commands as c
from schemas.artifacts import PICKLE_SUFFIXES, FileEntry, manifest_digest
from schemas.codes import Code
from schemas.tokens import BYTES_MAX, FILES_PER_ARTIFACT_MAX
from tests.unit.domain.story import FILES, Story


def entry(path: str, size: int = 10) -> FileEntry:
    return FileEntry(path, size, "a" * 64)


def refusal(story: Story, *paths: str) -> Code:
    return story.refuse(c.RegisterArtifact, name="mini", files=[entry(path) for path in paths]).code


def test_a_set_is_named_by_its_bytes_and_registered_once(story: Story) -> None:
    first = story.register_artifact(FILES)
    assert first == manifest_digest(FILES)
    assert story.register_artifact(list(reversed(FILES))) == first
    assert len(story.lines) == 1
    other = story.register_artifact([FILES[0], entry("model.safetensors")])
    assert other != first


def test_the_event_has_the_files_sorted_and_their_bytes_summed(story: Story) -> None:
    story.register_artifact([entry("b.json", 3), entry("a.json", 4)])
    event = story.lines[0].event
    assert [file.path for file in event.files] == ["a.json", "b.json"]
    assert event.bytes == 7


def test_an_empty_manifest_is_refused(story: Story) -> None:
    assert refusal(story) is Code.ARTIFACT_EMPTY


def test_a_manifest_has_a_bounded_number_of_files(story: Story) -> None:
    paths = [f"shard-{number}.safetensors" for number in range(FILES_PER_ARTIFACT_MAX + 1)]
    assert refusal(story, *paths) is Code.ARTIFACT_TOO_MANY_FILES
    story.register_artifact([entry(path) for path in paths[:-1]])


def test_a_manifest_fits_a_work_order(story: Story) -> None:
    paths = [f"{number:04}{'x' * 390}" for number in range(2_000)]
    assert refusal(story, *paths) is Code.ARTIFACT_TOO_MANY_FILES
    story.register_artifact([entry(path) for path in paths[:1_000]])


def test_the_bytes_of_a_set_can_be_written_down(story: Story) -> None:
    """Each size may be as large as JSON holds; an event whose sum is larger could never be read again."""
    files = [entry("a.json", BYTES_MAX), entry("b.json", 1)]
    assert story.refuse(c.RegisterArtifact, name="mini", files=files).code is Code.COMMAND_MALFORMED
    story.register_artifact([entry("a.json", BYTES_MAX - 1), entry("b.json", 1)])


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../outside", "a/../../b", "a//b", "./a", "a/.", "a/", "a\\b", "..\\x", "C:/x", "C:x", "a\x00b",
     "a\nb", "a\x7fb", "..", "."],
)  # fmt: skip
def test_paths_that_escape_or_are_not_canonical_are_refused(story: Story, path: str) -> None:
    assert refusal(story, "config.json", path) is Code.ARTIFACT_PATH_ESCAPES
    if path != "C:x":
        assert check_location(path) is not None


@pytest.mark.parametrize(
    "path", ["model.safetensors", "1_Pooling/config.json", "a..b", "...", "naïve/模型.json", "a b", ".hidden"]
)
def test_plain_relative_paths_are_accepted(story: Story, path: str) -> None:
    story.register_artifact([entry(path)])


@pytest.mark.parametrize("suffix", sorted(PICKLE_SUFFIXES))
def test_formats_that_run_code_when_loaded_are_refused(story: Story, suffix: str) -> None:
    assert refusal(story, f"weights/model{suffix}") is Code.ARTIFACT_PICKLE_REFUSED
    assert refusal(story, f"weights/model{suffix.upper()}") is Code.ARTIFACT_PICKLE_REFUSED


def test_an_index_of_pickled_shards_is_only_text(story: Story) -> None:
    story.register_artifact([entry("pytorch_model.bin.index.json")])


def test_a_path_may_be_there_once_whatever_its_case(story: Story) -> None:
    assert refusal(story, "a.json", "a.json") is Code.ARTIFACT_PATH_DUPLICATE
    assert refusal(story, "Config.json", "config.JSON") is Code.ARTIFACT_PATH_DUPLICATE
    assert refusal(story, "straße.json", "STRASSE.json") is Code.ARTIFACT_PATH_DUPLICATE


@given(st.text(min_size=1, max_size=40))
def test_an_accepted_path_stays_below_its_folder(path: str) -> None:
    if path_refusal(path) is None:
        parts = path.split("/")
        assert not path.startswith("/")
        assert ".." not in parts
        assert "" not in parts
        assert "\x00" not in path
