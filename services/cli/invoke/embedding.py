"""Embedding texts with a deployment, straight at the worker that holds it.

Input lines of a file or of stdin are JSON strings, objects with `text`, or plain text. Many texts are sent in
several requests of bounded size; one that is refused ends the command, and nothing partial is printed. A queue at its
bound is waited for, a bounded time, once something was computed.
"""

from __future__ import annotations

import array
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from projections.rows import DeploymentRow
from schemas.codes import Code, Refusal
from schemas.serving import Answer
from schemas.tasks.text import Embedded as Vectors
from schemas.tasks.text import EmbedRequest
from services.cli.screen.formats import short, span
from services.cli.screen.terminal import Terminal
from services.client import Client

BATCH_TEXTS = 64
TEXTS_MAX = 100_000
BUSY_WAITS_MAX = 60
BUSY_WAIT_S = 0.5
SHOWN_NUMBERS = 4
SHOWN_CHARACTERS = 48


class Embedding(Struct, frozen=True):
    """One text's answer. `truncated` says that the text was longer than the model takes."""

    text: str
    vector: list[float]
    tokens: int
    truncated: bool


class Embedded(Struct, frozen=True):
    """`latency_ms` is what the caller waited, `compute_ms` what the worker reports, both over all requests."""

    deployment_id: str
    artifact_id: str
    profile_id: str
    generation: str
    dimensions: int
    requests: int
    latency_ms: float
    compute_ms: float
    embeddings: list[Embedding]


async def embed(
    client: Client,
    deployment: DeploymentRow,
    texts: Sequence[str],
    prompt_name: str | None = None,
    node_id: str | None = None,
    deadline_ms: int | None = None,
    batch: int = BATCH_TEXTS,
) -> Embedded:
    """Embed all texts, in requests of at most `batch`."""
    embeddings: list[Embedding] = []
    latency_ms = compute_ms = 0.0
    requests = dimensions = 0
    generation = ""
    for start in range(0, len(texts), batch):
        part = list(texts[start : start + batch])
        began = time.perf_counter()
        request = EmbedRequest(part, prompt_name, deadline_ms=deadline_ms)
        waits = BUSY_WAITS_MAX if embeddings else 0
        answer = await _invoke(client, deployment, request, node_id, waits)
        latency_ms += (time.perf_counter() - began) * 1_000
        result = answer.result
        if not isinstance(result, Vectors):
            raise Refusal(Code.INPUT_INVALID, f"{deployment.name} does {deployment.capability}, not embedding")
        if not result.rows == len(result.tokens) == len(result.truncated) == len(part):
            raise Refusal(Code.INTERNAL_ERROR, f"{len(part)} texts were sent and {result.rows} answers came")
        compute_ms += answer.compute_ms
        requests += 1
        dimensions, generation = result.dimensions, answer.generation
        rows = zip(part, vectors(result.vectors, dimensions), result.tokens, result.truncated, strict=True)
        embeddings += [Embedding(*row) for row in rows]
    return Embedded(
        deployment.id, deployment.artifact_id, deployment.profile_id, generation, dimensions, requests,
        latency_ms, compute_ms, embeddings,
    )  # fmt: skip


async def _invoke(
    client: Client, deployment: DeploymentRow, request: EmbedRequest, node_id: str | None, waits: int
) -> Answer:
    """The answer, after as many waits for a busy worker as are allowed."""
    for _ in range(waits):
        try:
            return await client.invoke(deployment, request, node_id)
        except Refusal as refusal:
            if refusal.code is not Code.OVERLOADED:
                raise
        await asyncio.sleep(BUSY_WAIT_S)
    return await client.invoke(deployment, request, node_id)


def vectors(data: bytes, dimensions: int) -> list[list[float]]:
    """Little-endian float32, row after row."""
    numbers = array.array("f")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return (
        [list(numbers[start : start + dimensions]) for start in range(0, len(numbers), dimensions)]
        if dimensions
        else []
    )


def texts_of(lines: Iterable[str]) -> Iterator[str]:
    """The texts of input lines. A line that starts like JSON must be JSON."""
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped:
            continue
        if stripped[0] not in '"{':
            yield stripped
            continue
        try:
            value = msgspec.json.decode(stripped)
        except msgspec.DecodeError as error:
            raise Refusal(Code.INPUT_INVALID, f"line {number} is not JSON: {error}") from error
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise Refusal(Code.INPUT_INVALID, f"line {number} has no `text`")
        yield text


def read_texts(file: Path | None, said: Sequence[str]) -> list[str]:
    """What to embed: the arguments, the file's lines, or those of stdin."""
    if said:
        return list(said)
    if file is not None and str(file) != "-":
        with file.open(encoding="utf-8") as lines:
            return _bounded(texts_of(lines))
    return _bounded(texts_of(sys.stdin))


def _bounded(texts: Iterator[str]) -> list[str]:
    found: list[str] = []
    for text in texts:
        if len(found) == TEXTS_MAX:
            raise Refusal(Code.INPUT_TOO_LARGE, f"more than {TEXTS_MAX:,} texts; split the input")
        found.append(text)
    if not found:
        raise Refusal(Code.INPUT_INVALID, "there is no text to embed", {"advice": "Give texts, or lines on stdin."})
    return found


def show(terminal: Terminal, row: DeploymentRow, answer: Embedded) -> None:
    """People see a summary, programs the full vectors."""

    def table() -> None:
        columns = ("TEXT", "TOKENS", "TRUNCATED", f"VECTOR ({answer.dimensions})")
        terminal.table(columns, map(cells, answer.embeddings))

    terminal.result(answer, table)
    terminal.say(
        f"{len(answer.embeddings)} x {answer.dimensions} from {row.name} (artifact {short(answer.artifact_id)}, "
        f"profile {short(answer.profile_id)}, generation {answer.generation}) in {span(answer.latency_ms)}, "
        f"computing {span(answer.compute_ms)}"
    )


def cells(row: Embedding) -> tuple[object, ...]:
    text = row.text if len(row.text) <= SHOWN_CHARACTERS else row.text[: SHOWN_CHARACTERS - 1] + "…"
    numbers = " ".join(f"{number:+.4f}" for number in row.vector[:SHOWN_NUMBERS])
    return text.replace("\n", " ") or '""', row.tokens, "yes" if row.truncated else "no", f"{numbers} …"
