"""The closed table of adapters. A name that isn't in it is incompatible; nothing falls through to other code."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.evidence import Reason
from worker.adapters.contract import Inspection, RuntimeAdapter
from worker.adapters.sentence_transformers import SentenceTransformersAdapter

ADAPTERS: dict[str, Callable[[], RuntimeAdapter]] = {"sentence_transformers": SentenceTransformersAdapter}
VERSIONS: dict[str, str] = {"sentence_transformers": "1"}  # part of the environment's fingerprint
TASKS: dict[str, tuple[str, ...]] = {"sentence_transformers": ("embedding",)}
REQUIRES: dict[str, tuple[str, ...]] = {
    "sentence_transformers": ("torch", "transformers", "sentence-transformers", "safetensors")
}


def missing_packages(adapter: str) -> list[str]:
    """The distributions this adapter needs that aren't installed here."""
    missing = []
    for name in REQUIRES[adapter]:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return missing


def capabilities() -> dict[str, list[str]]:
    """Adapter to tasks, only for what can run here."""
    return {name: list(TASKS[name]) for name in ADAPTERS if not missing_packages(name)}


def inspect(adapter: str, task: str, folder: Path, files: list[FileEntry]) -> Inspection:
    """Static inspection of the set for this adapter and task. Blocking: reads small files."""
    reason = _why_not_here(adapter, task)
    if reason is not None:
        return Inspection(reasons=[Reason(Code.RUNTIME_INCOMPATIBLE, reason)])
    return ADAPTERS[adapter]().inspect_support(folder, files, task)


def _why_not_here(adapter: str, task: str) -> str | None:
    if adapter not in ADAPTERS:
        return f"there is no adapter `{adapter}` here; there are: {', '.join(sorted(ADAPTERS))}"
    missing = missing_packages(adapter)
    if missing:
        return f"adapter `{adapter}` needs packages that are not installed: {', '.join(missing)}"
    if task not in TASKS[adapter]:
        return f"adapter `{adapter}` does not do `{task}`; it does: {', '.join(TASKS[adapter])}"
    return None
