"""What a person sees of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schemas.tasks.audio import Spoken, Transcribed
from schemas.tasks.image import Classified, ClassifyRequest, ImagesEmbedded, Imagined, Recognised
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import Generated, Reranked, RerankRequest
from services.cli.invoke.asking import Said
from services.cli.invoke.embedding import SHOWN_NUMBERS, vectors
from services.cli.screen.terminal import Terminal

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


def _names(said: Said, count: int) -> list[str]:
    """The images by their file names, by their numbers where they came in a request file."""
    return [path.name for path in said.images] if len(said.images) == count else [str(n) for n in range(count)]


def _start(vector: Sequence[float]) -> str:
    return " ".join(f"{number:+.4f}" for number in vector[:SHOWN_NUMBERS]) + " …"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
