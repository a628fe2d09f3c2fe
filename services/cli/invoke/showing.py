"""What a person sees of an answer, and the files that sound and images are written to.

Files are written under the name that was asked; one that exists is replaced only with `--force`. Several images get
numbers before the suffix.
"""

from __future__ import annotations

import array
import sys
import wave
from collections.abc import Callable, Sequence
from pathlib import Path

from schemas.codes import Code, Refusal
from schemas.tasks.audio import Audio, Spoken, Transcribed
from schemas.tasks.image import Classified, ClassifyRequest, ImagesEmbedded, Imagined, Recognised
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import Generated, Reranked, RerankRequest
from services.cli.invoke.asking import Said
from services.cli.invoke.embedding import SHOWN_NUMBERS, vectors
from services.cli.screen.terminal import Terminal

PCM_MAX = 32_767


Row = tuple[object, ...]


def show(terminal: Terminal, said: Said, request: Request, result: Result, saved: Sequence[Path]) -> None:
    """The result for a person."""
    match result:
        case Generated():
            terminal.print(result.text)
        case Spoken():
            terminal.say(f"{result.seconds:.2f} s of speech, seed {result.seed}")
        case Imagined():
            terminal.say(f"{len(result.images)} images of {result.width} x {result.height}, seed {result.seed}")
        case _:
            columns, rows = _table(said, request, result)
            terminal.table(columns, rows, "nothing to show")
    if isinstance(result, Spoken | Transcribed):
        for done in result.conversions:
            terminal.say(done)
    for path in saved:
        terminal.print(str(path))


def _table(said: Said, request: Request, result: Result) -> tuple[tuple[str, ...], list[Row]]:
    match result:
        case Reranked():
            return ("RANK", "SCORE", "TRUNCATED", "DOCUMENT"), _ranked(request, result)
        case Recognised():
            texts = zip(result.texts, result.truncated, result.conversions, strict=True)
            names = _names(said, len(result.texts))
            read: list[Row] = [
                (name, text, _yes(cut), ", ".join(done)) for name, (text, cut, done) in zip(names, texts, strict=True)
            ]
            return ("IMAGE", "TEXT", "TRUNCATED", "CONVERTED"), read
        case ImagesEmbedded():
            inputs = [*_names(said, result.images), *said.texts]
            found = vectors(result.image_vectors + result.text_vectors, result.dimensions)
            starts: list[Row] = [(name, _start(vector)) for name, vector in zip(inputs, found, strict=False)]
            return ("INPUT", f"VECTOR ({result.dimensions})"), starts
        case Classified():
            return ("IMAGE", "LABEL", "SCORE"), _classified(said, request, result)
        case Transcribed():
            heard: list[Row] = [(f"{one.start_s:.2f}", f"{one.end_s:.2f}", one.text) for one in result.segments]
            return ("FROM S", "TO S", "TEXT"), heard
    raise AssertionError(f"{type(result).__name__} is shown elsewhere")


def _ranked(request: Request, result: Reranked) -> list[Row]:
    documents = request.documents if isinstance(request, RerankRequest) else []
    return [
        (place, f"{result.scores[number]:.4f}", _yes(result.truncated[number]), documents[number])
        for place, number in enumerate(result.order, 1)
    ]


def _classified(said: Said, request: Request, result: Classified) -> list[Row]:
    labels = request.labels if isinstance(request, ClassifyRequest) else []
    images = zip(_names(said, len(result.scores)), result.scores, result.order, strict=True)
    return [(name, labels[label], f"{scores[label]:.4f}") for name, scores, order in images for label in order]


def save(result: Result, out: Path | None, force: bool) -> list[Path]:
    """Write the sound or images of a result; where there are some, `out` is needed. Raises Refusal."""
    if not isinstance(result, Spoken | Imagined):
        return []
    if out is None:
        raise Refusal(Code.INPUT_INVALID, "the result is a file; say where with --out, or use --json")
    if isinstance(result, Spoken):
        return [_write(out, force, lambda path: _write_wave(path, result.audio))]
    paths = [out] if len(result.images) == 1 else [_numbered(out, n) for n in range(1, len(result.images) + 1)]
    return [
        _write(path, force, lambda path, image=image: path.write_bytes(image))  # type: ignore[misc]
        for path, image in zip(paths, result.images, strict=True)
    ]


def check_out(out: Path | None, force: bool) -> None:
    """Before anything is asked: an answer that could not be written would be lost."""
    if out is not None and out.exists() and not force:
        raise Refusal(Code.NAME_TAKEN, f"{out} exists; use another name or --force")
    if out is not None and not out.absolute().parent.is_dir():
        raise Refusal(Code.INPUT_INVALID, f"there is no folder {out.absolute().parent}")


def _write(path: Path, force: bool, write: Callable[[Path], object]) -> Path:
    if path.exists() and not force:
        raise Refusal(Code.NAME_TAKEN, f"{path} exists; use another name or --force")
    write(path)
    return path


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def _write_wave(path: Path, audio: Audio) -> None:
    """16-bit PCM, which every player knows; what is beyond full scale is held at it."""
    samples = array.array("f")
    samples.frombytes(audio.data)
    if sys.byteorder == "big":
        samples.byteswap()
    numbers = array.array("h", (int(max(-1.0, min(1.0, value)) * PCM_MAX) for value in samples))
    if sys.byteorder == "big":
        numbers.byteswap()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(audio.channels)
        file.setsampwidth(2)
        file.setframerate(audio.rate_hz)
        file.writeframes(numbers.tobytes())


def _names(said: Said, count: int) -> list[str]:
    """The images by their file names, by their numbers where they came in a request file."""
    return [path.name for path in said.images] if len(said.images) == count else [str(n) for n in range(count)]


def _start(vector: Sequence[float]) -> str:
    return " ".join(f"{number:+.4f}" for number in vector[:SHOWN_NUMBERS]) + " …"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
