"""Asks the model a profile's golden probes and measures how far its answers are from the expected ones.

The distances are defined in `schemas.tasks.golden`. What is not a number (counts, dimensions, sides) must be equal;
a difference there, another kind of result and a refusal have no distance and fail with the difference named.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import UnsetType

from schemas.profiles import RuntimeProfile
from schemas.tasks.audio import Audio, Spoken, Transcribed
from schemas.tasks.golden import GoldenProbe, GoldenSeen
from schemas.tasks.image import Classified, ImagesEmbedded, Imagined, Recognised
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import Embedded, Generated, Reranked
from worker.model.frames import Refused


class Unlike(Exception):
    """The results cannot be compared; the message names the difference."""


class Asks(Protocol):
    def __call__(self, requests: Sequence[Request]) -> list[Result | Refused]: ...


def ask_goldens(profile: RuntimeProfile, ask: Asks) -> list[GoldenSeen]:
    """One by one: a golden probe is a request by itself, never part of a batch."""
    if isinstance(profile.golden, UnsetType):
        return []
    return [_seen(probe, ask([probe.request])[0]) for probe in profile.golden]


def _seen(probe: GoldenProbe, result: Result | Refused) -> GoldenSeen:
    if isinstance(result, Refused):
        return GoldenSeen(
            probe.name, False, tolerance=probe.tolerance, detail=f"refused: {result.code}: {result.message}"
        )
    try:
        found = distance(probe.expected, result)
    except Unlike as unlike:
        return GoldenSeen(probe.name, False, tolerance=probe.tolerance, detail=str(unlike))
    passed = found <= probe.tolerance  # False for NaN as well
    detail = "" if passed else f"distance {found:.6g} is over the tolerance {probe.tolerance:.6g}"
    return GoldenSeen(probe.name, passed, found, probe.tolerance, detail)


def distance(expected: Result, result: Result) -> float:
    """How far `result` is from `expected`; raises Unlike."""
    match expected, result:
        case Embedded(), Embedded():
            _equal("dimensions", expected.dimensions, result.dimensions)
            _equal("rows", expected.rows, result.rows)
            _equal("tokens", expected.tokens, result.tokens)
            return _floats(expected.vectors, result.vectors)
        case ImagesEmbedded(), ImagesEmbedded():
            _equal("dimensions", expected.dimensions, result.dimensions)
            _equal("images", expected.images, result.images)
            _equal("texts", expected.texts, result.texts)
            return max(
                _floats(expected.image_vectors, result.image_vectors),
                _floats(expected.text_vectors, result.text_vectors),
            )
        case Reranked(), Reranked():
            return _scores([expected.scores], [result.scores])
        case Classified(), Classified():
            return _scores(expected.scores, result.scores)
        case Generated(), Generated():
            return _texts([expected.text], [result.text])
        case Transcribed(), Transcribed():
            return _texts([expected.text], [result.text])
        case Recognised(), Recognised():
            return _texts(expected.texts, result.texts)
        case Spoken(), Spoken():
            _equal("sampling rate", expected.audio.rate_hz, result.audio.rate_hz)
            return _sound(expected.audio, result.audio)
        case Imagined(), Imagined():
            _equal("images", len(expected.images), len(result.images))
            pairs = zip(expected.images, result.images, strict=True)
            return max((_pixels(one, other) for one, other in pairs), default=0.0)
    raise Unlike(f"the result is a {type(result).__name__}, not a {type(expected).__name__}")


def _equal(what: str, expected: object, found: object) -> None:
    if expected != found:
        raise Unlike(f"{what}: {found} where {expected} is expected")


def _floats(expected: bytes, found: bytes) -> float:
    import numpy as np

    _equal("bytes", len(expected), len(found))
    left, right = np.frombuffer(expected, "<f4"), np.frombuffer(found, "<f4")
    return float(np.abs(left - right).max()) if len(left) else 0.0


def _scores(expected: list[list[float]], found: list[list[float]]) -> float:
    _equal("numbers of scores", [len(row) for row in expected], [len(row) for row in found])
    pairs = [
        pair
        for one, other in zip(expected, found, strict=True)
        for pair in zip(one, other, strict=True)
    ]  # fmt: skip
    return max((abs(left - right) for left, right in pairs), default=0.0)


def _texts(expected: list[str], found: list[str]) -> float:
    _equal("texts", len(expected), len(found))
    return max((_text(one, other) for one, other in zip(expected, found, strict=True)), default=0.0)


def _text(expected: str, found: str) -> float:
    if expected == found:
        return 0.0
    return 1.0 - difflib.SequenceMatcher(None, expected, found, autojunk=False).ratio()


def _sound(expected: Audio, found: Audio) -> float:
    return 1.0 if len(expected.data) != len(found.data) else _floats(expected.data, found.data)


def _pixels(expected: bytes, found: bytes) -> float:
    import numpy as np

    left, right = _array(expected), _array(found)
    _equal("sides", left.shape, right.shape)
    return float(np.abs(left.astype("int16") - right.astype("int16")).max()) / 255.0 if left.size else 0.0


def _array(file: bytes) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image.convert("RGB"))
