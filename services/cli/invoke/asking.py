"""From what a person said on the command line to the request of the deployment's task.

An option that the task has no use for is refused, not dropped: it would have meant something to who wrote it. A
request file is the request itself as JSON (`docs/reference/bus.md`, bytes in base64), for programs and for what has no
option of its own.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer
from msgspec import Struct

from schemas.codes import Code, Refusal
from schemas.serving import PAYLOAD_BYTES_MAX
from schemas.tasks.audio import Audio, SpeakRequest, TranscribeRequest
from schemas.tasks.image import ClassifyRequest, EmbedImagesRequest, ImagineRequest, OcrRequest
from schemas.tasks.requests import REQUEST_OF, Request
from schemas.tasks.text import ChatMessage, GenerateRequest, RerankRequest


class Said(Struct, frozen=True, kw_only=True):
    """The options of one call. What was not said is None or empty."""

    texts: Sequence[str] = ()
    query: str | None = None
    images: Sequence[Path] = ()
    labels: Sequence[str] = ()
    audio: Path | None = None
    rate_hz: int | None = None
    channels: int | None = None
    language: str | None = None
    translate: bool = False
    system: str | None = None
    new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: Sequence[str] = ()
    speaker: int | None = None
    negative: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    count: int | None = None
    seed: int | None = None
    deadline_ms: int | None = None


# The options each task takes; `texts` is the arguments.
TAKES: dict[str, frozenset[str]] = {
    "rerank": frozenset({"texts", "query"}),
    "text_generation": frozenset({"texts", "system", "new_tokens", "temperature", "top_p", "stop", "seed"}),
    "ocr": frozenset({"images"}),
    "image_embedding": frozenset({"images", "texts"}),
    "zero_shot_image": frozenset({"images", "labels"}),
    "image_generation": frozenset(
        {"texts", "negative", "width", "height", "steps", "guidance", "count", "seed"}
    ),
    "stt": frozenset({"audio", "rate_hz", "channels", "language", "translate"}),
    "tts": frozenset({"texts", "speaker", "seed"}),
}  # fmt: skip


def request_of(task: str, said: Said) -> Request:
    """The task's request. Raises typer.BadParameter for what is missing, superfluous or out of range."""
    if task not in TAKES:
        raise Refusal(Code.INPUT_INVALID, f"this command has no options for `{task}`; give --request")
    given = {name for name in Said.__struct_fields__ if getattr(said, name) not in (None, (), [], False)}
    for name in sorted(given - TAKES[task] - {"deadline_ms"}):
        raise typer.BadParameter(f"a deployment for {task} has no use for it", param_hint=option_of(name))
    try:
        # Out and in again, because the schemas' bounds are checked when a message is read.
        raw = msgspec.msgpack.encode(_request(task, said))
        request: Request = msgspec.msgpack.decode(raw, type=REQUEST_OF[task])
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error)) from error
    return request


def option_of(name: str) -> str:
    """How the option of a field is written."""
    plural = {"images": "image", "labels": "label", "rate_hz": "rate"}
    return "TEXT" if name == "texts" else f"--{plural.get(name, name).replace('_', '-')}"


def _request(task: str, said: Said) -> Request:
    bound: dict[str, Any] = {"deadline_ms": said.deadline_ms}
    match task:
        case "rerank":
            return RerankRequest(_needed(said.query, "--query"), list(said.texts), **bound)
        case "text_generation":
            return _generate(said, bound)
        case "ocr":
            return OcrRequest(_files(_some(said.images, "--image")), **bound)
        case "image_embedding":
            return EmbedImagesRequest(_files(said.images), list(said.texts), **bound)
        case "zero_shot_image":
            labels = list(_some(said.labels, "--label"))
            return ClassifyRequest(_files(_some(said.images, "--image")), labels, **bound)
        case "image_generation":
            return ImagineRequest(
                _one(said.texts), said.negative or "", said.width, said.height, said.steps, said.guidance, said.seed,
                said.count or 1, **bound,
            )  # fmt: skip
        case "stt":
            audio = audio_of(_needed(said.audio, "--audio"), said.rate_hz, said.channels)
            return TranscribeRequest(audio, said.language, said.translate, **bound)
        case _:
            return SpeakRequest(_one(said.texts), said.speaker, said.seed, **bound)


def _generate(said: Said, bound: dict[str, Any]) -> GenerateRequest:
    """With a system message it is a chat; without, the text is the prompt."""
    text = _one(said.texts)
    messages = None
    if said.system is not None:
        messages = [ChatMessage("system", said.system), ChatMessage("user", text)]
    return GenerateRequest(
        prompt=None if messages else text, messages=messages, new_tokens_max=said.new_tokens,
        temperature=said.temperature, top_p=said.top_p, seed=said.seed, stop=list(said.stop), **bound,
    )  # fmt: skip


def audio_of(path: Path, rate_hz: int | None, channels: int | None) -> Audio:
    """A sound file with its rate: a WAV file says it itself, of any other it has to be said."""
    data = _read(path)
    if path.suffix.lower() == ".wav" and (rate_hz is None or channels is None):
        try:
            with wave.open(str(path)) as file:
                rate_hz, channels = rate_hz or file.getframerate(), channels or file.getnchannels()
        except (wave.Error, EOFError) as error:
            raise Refusal(Code.INPUT_INVALID, f"{path} is not a WAV file that can be read: {error}") from error
    if rate_hz is None:
        raise typer.BadParameter(f"say the sampling rate of {path.name} in Hz", param_hint="--rate")
    return Audio(data, rate_hz, channels or 1, "file")


def request_in(path: Path, task: str) -> Request:
    """A request as it is written in docs/reference/bus.md."""
    try:
        request: Request = msgspec.json.decode(_read(path), type=Request)
    except msgspec.DecodeError as error:
        raise Refusal(Code.INPUT_INVALID, f"{path} is not a request: {error}") from error
    wanted = REQUEST_OF.get(task)
    if wanted is not None and not isinstance(request, wanted):
        raise Refusal(Code.INPUT_INVALID, f"{path} holds a {type(request).__name__}; {task} takes {wanted.__name__}")
    return request


def _files(paths: Sequence[Path]) -> list[bytes]:
    return [_read(path) for path in paths]


def _read(path: Path) -> bytes:
    if path.stat().st_size > PAYLOAD_BYTES_MAX:
        raise Refusal(Code.INPUT_TOO_LARGE, f"{path} is over {PAYLOAD_BYTES_MAX} bytes")
    return path.read_bytes()


def _one(texts: Sequence[str]) -> str:
    if len(texts) != 1:
        raise typer.BadParameter(f"one text is needed, {len(texts)} were given", param_hint="TEXT")
    return texts[0]


def _needed(value: Any, option: str) -> Any:
    if value is None:
        raise typer.BadParameter("it is needed for this deployment", param_hint=option)
    return value


def _some(values: Sequence[Any], option: str) -> Sequence[Any]:
    if not values:
        raise typer.BadParameter("at least one is needed for this deployment", param_hint=option)
    return values
