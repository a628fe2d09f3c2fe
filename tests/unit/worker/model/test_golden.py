"""Distances between an expected and a found result, for every kind of result, and how a golden probe is judged."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from schemas.codes import Code
from schemas.profiles import RuntimeProfile
from schemas.tasks.audio import Audio, Spoken, Transcribed
from schemas.tasks.golden import GoldenProbe
from schemas.tasks.image import Classified, ImagesEmbedded, Imagined, Recognised
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import Embedded, EmbedRequest, Generated, Reranked
from worker.model.frames import Refused
from worker.model.golden import Unlike, ask_goldens, distance


def floats(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


def embedded(*numbers: float, **changes: Any) -> Embedded:
    return msgspec.structs.replace(Embedded(floats(*numbers), 1, len(numbers), [3], [False]), **changes)


def png(value: int, size: tuple[int, int] = (2, 2)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (value, 0, 0)).save(file, "PNG")
    return file.getvalue()


def spoken(*samples: float, rate_hz: int = 8_000) -> Spoken:
    return Spoken(Audio(floats(*samples), rate_hz), 1.0, 1, 0, [])


def pictures(*values: int) -> Imagined:
    return Imagined([png(value) for value in values], 2, 2, 1, 0, False)


def sides(images: bytes, texts: bytes) -> ImagesEmbedded:
    return ImagesEmbedded(images, 1, texts, 1, 1, [1], [False], [[]])


@pytest.mark.parametrize(
    ("expected", "found", "far"),
    [
        (embedded(1, 2), embedded(1, 2), 0.0),
        (embedded(1, 2), embedded(1.5, 1), 1.0),
        (Reranked([0.1, 0.9], [1, 0], [1, 1], []), Reranked([0.2, 0.7], [1, 0], [1, 1], []), 0.2),
        (Classified([[0.1], [0.5]], [], [], []), Classified([[0.1], [0.1]], [], [], []), 0.4),
        (Generated("abcd", "stop", 1, 1), Generated("abcd", "length", 1, 1), 0.0),
        (Generated("abcd", "stop", 1, 1), Generated("abxy", "stop", 1, 1), 0.5),
        (Transcribed("abcd", [], 1, 1, False, []), Transcribed("wxyz", [], 1, 1, False, []), 1.0),
        (Recognised(["ab", "ab"], [], [], []), Recognised(["ab", "ax"], [], [], []), 0.5),
        (spoken(0, 0.5), spoken(0, 0.25), 0.25),
        (spoken(0, 0.5), spoken(0.0), 1.0),
        (pictures(0, 255), pictures(0, 204), 0.2),
        (sides(floats(0), floats(0)), sides(floats(0.5), floats(2)), 2.0),
        (embedded(rows=0, dimensions=2, tokens=[]), embedded(rows=0, dimensions=2, tokens=[]), 0.0),
    ],
)
def test_distances(expected: Result, found: Result, far: float) -> None:
    assert distance(expected, found) == pytest.approx(far, abs=1e-6)


@pytest.mark.parametrize(
    ("expected", "found", "word"),
    [
        (embedded(1), embedded(1, 2), "dimensions"),
        (embedded(1), embedded(1, tokens=[4]), "tokens"),
        (embedded(1), Generated("a", "stop", 1, 1), "Generated"),
        (Reranked([0.1], [0], [1], []), Reranked([], [], [], []), "scores"),
        (Recognised(["a"], [], [], []), Recognised([], [], [], []), "texts"),
        (spoken(0.0), spoken(0.0, rate_hz=16_000), "sampling rate"),
        (pictures(1), pictures(1, 2), "images"),
        (pictures(1), Imagined([png(1, (4, 2))], 4, 2, 1, 0, False), "sides"),
    ],
)
def test_what_cannot_be_compared_is_named(expected: Result, found: Result, word: str) -> None:
    with pytest.raises(Unlike, match=word):
        distance(expected, found)


def judged(expected: Result, found: Result | Refused, tolerance: float = 0.1) -> Any:
    probe = GoldenProbe("one", EmbedRequest(["x"]), expected, tolerance)
    profile = RuntimeProfile("sentence_transformers", "embedding", golden=[probe])

    def ask(requests: Sequence[Request]) -> list[Result | Refused]:
        assert requests == [probe.request]
        return [found]

    return ask_goldens(profile, ask)[0]


def test_near_passes_and_far_fails_with_both_numbers() -> None:
    assert judged(embedded(1.0), embedded(1.05)).passed
    missed = judged(embedded(1.0), embedded(1.5))
    assert (missed.passed, missed.distance, missed.tolerance) == (False, 0.5, 0.1)
    assert "0.5" in missed.detail
    assert "0.1" in missed.detail


def test_nan_a_refusal_and_another_kind_fail() -> None:
    assert not judged(embedded(1.0), embedded(math.nan)).passed
    refused = judged(embedded(1.0), Refused(Code.INPUT_TOO_LARGE, "too long"))
    assert (refused.passed, refused.distance) == (False, None)
    assert "too long" in refused.detail
    assert not judged(embedded(1.0), Generated("a", "stop", 1, 1)).passed


def test_a_profile_without_golden_probes_asks_nothing() -> None:
    def ask(requests: Sequence[Request]) -> list[Result | Refused]:
        raise AssertionError("nothing to ask")

    assert ask_goldens(RuntimeProfile("sentence_transformers", "embedding"), ask) == []
