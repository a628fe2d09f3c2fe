"""Golden probes that a profile may not carry: of another task, under one name, or too many bytes."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from domain.goldens import refuse_goldens
from schemas import commands as c
from schemas.codes import Code
from schemas.profiles import RuntimeProfile, profile_digest
from schemas.tasks.golden import GOLDEN_BYTES_MAX, GoldenProbe, GoldenSeen
from schemas.tasks.text import Embedded, EmbedRequest, Generated, GenerateRequest
from tests.unit.domain import statements as says
from tests.unit.domain.story import PROFILE, Story

VECTOR = Embedded(b"\0" * 4, 1, 1, [1], [False])
PROBE = GoldenProbe("greeting", EmbedRequest(["hello"]), VECTOR, 0.01)


def profile(*probes: GoldenProbe, **changes: Any) -> RuntimeProfile:
    return msgspec.structs.replace(PROFILE, golden=list(probes), **changes)


def test_sound_ones_are_recorded_and_part_of_the_digest() -> None:
    story = Story()
    assessment_id = story.assessment()
    told = story.accept(c.CreateProfile, assessment_id=assessment_id, profile=profile(PROBE)).result["profile_id"]
    assert told == profile_digest(profile(PROBE)) != profile_digest(PROFILE)
    again = msgspec.json.decode(msgspec.json.encode(profile(PROBE)), type=RuntimeProfile)
    assert profile_digest(again) == told


def test_unsound_ones_are_refused_by_the_gate() -> None:
    story = Story()
    refused = story.refuse(c.CreateProfile, assessment_id=story.assessment(), profile=profile(PROBE, PROBE))
    assert refused.code is Code.COMMAND_MALFORMED
    assert "greeting" in refused.message


def test_each_rule() -> None:
    other = GoldenProbe("other", GenerateRequest(prompt="x"), Generated("y", "stop", 1, 1))
    mixed = GoldenProbe("mixed", EmbedRequest(["x"]), Generated("y", "stop", 1, 1))
    large = GoldenProbe("large", EmbedRequest(["x" * GOLDEN_BYTES_MAX]), VECTOR)
    cases = [
        (profile(other), Code.COMMAND_MALFORMED),
        (profile(mixed), Code.COMMAND_MALFORMED),
        (profile(large), Code.MESSAGE_TOO_LARGE),
        (profile(PROBE, task="unheard_of"), Code.COMMAND_MALFORMED),
    ]
    for wrong, code in cases:
        refused = refuse_goldens(wrong)
        assert refused is not None
        assert refused.code is code
    assert refuse_goldens(profile(PROBE)) is None
    assert refuse_goldens(PROFILE) is None


def seen(distance: float | None, name: str = "greeting") -> list[GoldenSeen]:
    return [GoldenSeen(name, True, distance, 9.0, "refused: too long" if distance is None else "")]


@pytest.mark.parametrize(
    ("health", "word"),
    [
        ({}, "not asked"),
        ({"golden": []}, "not asked"),
        ({"golden": seen(0.0, "another")}, "not asked"),
        ({"golden": seen(0.02)}, "0.02"),
        ({"golden": seen(math.nan)}, "at most"),  # JSON has no NaN: it arrives as no distance
        ({"golden": seen(None)}, "too long"),
    ],
)
def test_a_probe_that_misses_makes_no_candidate_whatever_the_worker_calls_it(health: dict[str, Any], word: str) -> None:
    story = Story()
    work_id = story.probe(profile=profile(PROBE))
    statement = msgspec.structs.replace(says.probed(story.fingerprint()), health=says.health(**health))
    story.finish(work_id, statement)
    work = story.work(work_id)
    assert (work.stage, work.code) == ("failed", Code.GOLDEN_MISSED)
    assert word in work.message
    assert f"candidate-{work_id}" not in {line.stream for line in story.lines}


def test_a_probe_that_comes_near_enough_makes_one() -> None:
    story = Story()
    work_id = story.probe(profile=profile(PROBE))
    statement = msgspec.structs.replace(says.probed(story.fingerprint()), health=says.health(golden=seen(0.01)))
    story.finish(work_id, statement)
    assert story.work(work_id).stage == "completed"
    assert f"candidate-{work_id}" in {line.stream for line in story.lines}
