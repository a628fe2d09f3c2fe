"""What is known of one small model: how to make it, what to ask, what its library answers, what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.artifacts import FileEntry
from schemas.profiles import RuntimeProfile
from schemas.tasks.requests import Request, Result
from schemas.tokens import FILES_PER_ARTIFACT_MAX


@dataclass(frozen=True)
class Model:
    """One adapter with one task on one small model.

    `build` writes the model's files (safetensors, configuration, tokenizer or processor), the same bytes each time.
    `requests` are sound ones, different in size. `reference` is what the library called directly on the same files
    answers to one of them, and `tolerance` how far (by `worker.model.golden.distance`) the adapter may be from it.
    `empty` has a defined result without items, None where the task has no such request. `bad` are well-formed requests
    which the adapter refuses, each with its code.
    """

    name: str
    profile: RuntimeProfile
    build: Callable[[Path], None]
    requests: Sequence[Request]
    reference: Callable[[Path, RuntimeProfile, Request], Result]
    tolerance: float = 1e-5
    empty: Request | None = None
    bad: Sequence[tuple[Request, str]] = ()
    weights: str = "model.safetensors"
    config: str = "config.json"


def files_of(folder: Path) -> list[FileEntry]:
    """The manifest of a folder that was made here. Digests are not looked at by adapters."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    assert len(found) <= FILES_PER_ARTIFACT_MAX
    return [FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, "0" * 64) for path in found]
