"""What the demo shows: a real embedding model, and with `--all` a small one for every task.

The embedding model's answers are compared with sentence-transformers itself. The small models are real architectures
with made-up weights, made on the spot by the libraries themselves in a process of its own (`making`), which also asks
the library for the expected answer. That answer is a golden probe of the profile, so the probe and the load prove it
before the invocation does once more.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, UnsetType

from projections.rows import DeploymentRow
from schemas.codes import Code, Refusal
from schemas.profiles import RuntimeProfile
from schemas.tasks.golden import GoldenProbe
from schemas.tasks.requests import Request
from schemas.tasks.text import EmbedRequest
from services.cli.demo.reference import cosine, vectors_of
from services.cli.invoke import embedding
from services.cli.screen.formats import span
from services.cli.screen.terminal import Terminal
from services.client import Client
from worker.model.golden import Unlike, distance

COSINE_MIN = 0.9999
MAKING_TIMEOUT_S = 300.0
LINE_CHARACTERS_MAX = 500
SOURCE = Path(__file__).resolve().parents[3]  # where the packages lie, installed or not
TEXTS = (
    "A lease is a promise with an end.",
    "The cat sat on the mat.",
    "Un modèle chargé hors ligne répond toujours pareil.",
    "模型在本地运行。",
    "Memory that was not measured is not zero.",
    "The quick brown fox jumps over the lazy dog. " * 60,  # far over the model's length: cut, and said so
)


class Embedder:
    """The real embedding model in `folder`, held to sentence-transformers itself."""

    name = "all-MiniLM-L6-v2"
    profile = RuntimeProfile(adapter="sentence_transformers", task="embedding")
    request: Request = EmbedRequest(["too late"])

    def __init__(self, folder: Path, texts: Sequence[str] = TEXTS) -> None:
        self.folder = folder
        self._texts = texts

    async def ask(self, client: Client, row: DeploymentRow, terminal: Terminal) -> tuple[str, dict[str, Any]]:
        answer = await embedding.embed(client, row, self._texts)
        terminal.say("comparing with sentence-transformers itself, in a process of its own")
        expected = await vectors_of(self.folder, self._texts)
        cosines = [cosine(one.vector, other) for one, other in zip(answer.embeddings, expected, strict=True)]
        if not min(cosines) >= COSINE_MIN:
            message = f"cosine {min(cosines):.6f} to sentence-transformers; at least {COSINE_MIN} is needed"
            raise Refusal(Code.HEALTH_FAILED, message)
        cut = sum(each.truncated for each in answer.embeddings)
        count = len(self._texts)
        proven = f"{count} x {answer.dimensions}, cosine to sentence-transformers at least {min(cosines):.6f}"
        measured: dict[str, Any] = {"dimensions": answer.dimensions, "texts": count, "truncated": cut}
        measured |= {"cosine_min": min(cosines), "latency_ms": answer.latency_ms, "compute_ms": answer.compute_ms}
        return proven, measured


class Made(Struct, frozen=True):
    """One small model that `making` has made, as it tells it on a line of its output."""

    name: str
    folder: str
    profile: RuntimeProfile


class Small:
    """A small model of one task, held to the answer that its library gave when it was made."""

    def __init__(self, made: Made) -> None:
        if isinstance(made.profile.golden, UnsetType):
            raise AssertionError(f"{made.name} was made without an expected answer")
        self.name = made.name
        self.folder = Path(made.folder)
        self.profile = made.profile
        self._golden: GoldenProbe = made.profile.golden[0]
        self.request = self._golden.request

    async def ask(self, client: Client, row: DeploymentRow, terminal: Terminal) -> tuple[str, dict[str, Any]]:
        answer = await client.invoke(row, self.request)
        try:
            far = distance(self._golden.expected, answer.result)
        except Unlike as unlike:
            raise Refusal(Code.GOLDEN_MISSED, str(unlike)) from unlike
        if not far <= self._golden.tolerance:
            message = f"distance {far:.6g} to the library's own answer; at most {self._golden.tolerance:.6g} passes"
            raise Refusal(Code.GOLDEN_MISSED, message)
        proven = f"distance {far:.3g} to the library's own answer, computed in {span(answer.compute_ms)}"
        return proven, {"distance": far, "tolerance": self._golden.tolerance, "compute_ms": answer.compute_ms}


async def make_all(folder: Path, terminal: Terminal) -> list[Small]:
    """A small model for every task that can run here, each in a folder below this one. Raises Refusal."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-W", "ignore", "-m", "services.showcase.making", str(folder),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **offline, "PYTHONPATH": path}, limit=64 * 1024 * 1024,
    )  # fmt: skip
    made: list[Small] = []
    errors = asyncio.create_task(child.stderr.read() if child.stderr else _nothing())
    try:
        async with asyncio.timeout(MAKING_TIMEOUT_S):
            while child.stdout is not None and (line := await child.stdout.readline()):
                one = msgspec.json.decode(line, type=Made)
                terminal.say(f"  made {one.name} for {one.profile.task}")
                made.append(Small(one))
            await child.wait()
    except TimeoutError:
        raise Refusal(Code.DEADLINE_EXCEEDED, f"the models were not made within {MAKING_TIMEOUT_S:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        last = (await errors).decode(errors="replace").strip()[-LINE_CHARACTERS_MAX:]
        advice = {"advice": "Install `tenure[worker,images]` in this environment."}
        raise Refusal(Code.LOAD_FAILED, f"making the models ended with {child.returncode}: {last}", advice)
    return made


async def _nothing() -> bytes:
    return b""
