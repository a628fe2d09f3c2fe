"""Models that bring their own runner (a handler, a backend, a serving script): what lies there. It is never run."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from schemas.artifacts import FileEntry
from worker.adapters.contract import Inspection
from worker.adapters.folder import ModelFolder
from worker.adapters.folder_rules import CODE_SUFFIXES

NAMES_MAX = 8  # of code files that are told by name


def describe(folder: Path, files: list[FileEntry], task: str) -> Inspection:
    look = ModelFolder(folder, files)
    look.check_no_code()
    weights = sorted(path for path in look.paths if path.lower().endswith(".safetensors"))
    for path in weights:
        prefix, _, name = path.rpartition("/")
        look.check_weights(f"{prefix}/" if prefix else "", name)
    code = sorted(path for path in look.paths if PurePosixPath(path).suffix.lower() in CODE_SUFFIXES)
    details = {"files": str(len(look.paths)), "code files": str(len(code))}
    if code:
        details["code"] = ", ".join(code[:NAMES_MAX]) + (", ..." if len(code) > NAMES_MAX else "")
    return Inspection(
        reasons=look.reasons,
        parameters=look.parameters or None,
        weights_bytes=look.weights_bytes or None,
        details=details,
    )
