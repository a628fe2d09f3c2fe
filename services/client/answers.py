"""Answers: what arrives from workers and from the event copy, believed only as far as it can be checked.

Bytes that are not what they should be are no answer (None); an invocation's answer must name exactly the
artifact, profile and generation that were asked, or it is refused.
"""

from __future__ import annotations

import msgspec

from projections.rows import DeploymentRow
from schemas import subjects
from schemas.codes import Code, Refusal
from schemas.live import LiveAnswer
from schemas.serving import Answer, Failure, ServeAnswer
from schemas.tasks.image import ImagesEmbedded
from schemas.tasks.requests import RESULT_OF
from schemas.tasks.text import Embedded
from services.client.wire import Published

BYTES_PER_NUMBER = 4  # float32


def checked(data: bytes) -> ServeAnswer:
    """What the worker said, decoded; a Failure is raised as its Refusal."""
    try:
        answer: ServeAnswer = msgspec.msgpack.decode(data, type=ServeAnswer)
    except msgspec.DecodeError as error:
        raise Refusal(Code.INTERNAL_ERROR, f"the worker's answer cannot be read: {error}") from error
    if isinstance(answer, Failure):
        raise Refusal(answer.code, answer.message, {"advice": answer.advice} if answer.advice else {})
    return answer


def answer_of(deployment: DeploymentRow, generation: str, answer: ServeAnswer) -> Answer:
    """The answer, if it comes from exactly what was deployed and is a result of its task."""
    if not isinstance(answer, Answer):
        raise Refusal(Code.INTERNAL_ERROR, f"the worker answered with a {type(answer).__name__}")
    answered = (answer.artifact_id, answer.profile_id, answer.generation)
    if answered != (deployment.artifact_id, deployment.profile_id, generation):
        raise Refusal(Code.INTERNAL_ERROR, f"the answer comes from {answered}, which is not what was deployed")
    wanted = RESULT_OF.get(deployment.capability)
    if wanted is not None and not isinstance(answer.result, wanted):
        raise Refusal(Code.INTERNAL_ERROR, f"the result is a {type(answer.result).__name__}, not a {wanted.__name__}")
    if isinstance(answer.result, Embedded):
        _check_rows(answer.result.vectors, answer.result.rows, answer.result.dimensions)
    if isinstance(answer.result, ImagesEmbedded):
        _check_rows(answer.result.image_vectors, answer.result.images, answer.result.dimensions)
        _check_rows(answer.result.text_vectors, answer.result.texts, answer.result.dimensions)
    return answer


def _check_rows(vectors: bytes, rows: int, dimensions: int) -> None:
    if len(vectors) != rows * dimensions * BYTES_PER_NUMBER:
        raise Refusal(Code.INTERNAL_ERROR, f"{len(vectors)} bytes for {rows} x {dimensions}")


def live_of(data: bytes) -> LiveAnswer | None:
    try:
        return msgspec.json.decode(data, type=LiveAnswer)
    except msgspec.DecodeError:
        return None


def position_of(hint: Published) -> int:
    """The log position a published event carries, 0 where it carries none."""
    text = hint.headers.get(subjects.HEADER_POSITION, "0")
    return int(text) if text.isdecimal() else 0


def stage_of(hint: Published) -> str | None:
    """The stage a progress event names, so that a short stage is told even between two looks at the table."""
    if not hint.subject.endswith(".work-progressed"):
        return None
    try:
        stage = msgspec.json.decode(hint.data).get("stage")
    except (msgspec.DecodeError, AttributeError):
        return None
    return stage if isinstance(stage, str) else None
