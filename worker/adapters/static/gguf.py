"""llama.cpp's models (GGUF): what the files say of themselves. They are not run here."""

from __future__ import annotations

from pathlib import Path

from schemas.artifacts import FileEntry
from worker.adapters.contract import Inspection
from worker.adapters.folder import ModelFolder
from worker.adapters.static.gguf_header import Header, MalformedGguf, read_header

FILES_MAX = 512
_COMPANIONS = frozenset({"clip"})  # the part of a model that sees, in a file of its own


def describe(folder: Path, files: list[FileEntry], task: str) -> Inspection:
    """Facts of the one model in the folder, all of its files together."""
    look = ModelFolder(folder, files)
    paths = sorted(path for path in look.paths if path.lower().endswith(".gguf"))
    if not paths:
        look.refuse("there is no `.gguf` file")
    if len(paths) > FILES_MAX:
        look.refuse(f"there are {len(paths)} `.gguf` files; {FILES_MAX} are read")
    headers: dict[str, Header] = {}
    for path in paths[:FILES_MAX]:
        try:
            headers[path] = read_header(folder / path)
        except MalformedGguf as error:
            look.refuse(f"`{path}` {error}")
        except OSError as error:
            look.refuse(f"`{path}` can't be read: {error.strerror}")
    model = {path: header for path, header in headers.items() if header.architecture not in _COMPANIONS}
    _check_parts(look, model)
    if not model:
        return Inspection(reasons=look.reasons)
    first = min(model.values(), key=lambda header: header.part)
    details = {"format": f"GGUF {first.version}", "tensors": str(sum(header.tensors for header in model.values()))}
    if first.quantization:
        details["quantization"] = first.quantization
    return Inspection(
        reasons=look.reasons,
        architecture=first.architecture or None,
        parameters=sum(header.parameters for header in model.values()) or None,
        weights_bytes=sum(header.file_bytes for header in headers.values()),
        dimensions=first.dimensions,
        max_length=first.context_length,
        details=details,
    )


def _check_parts(look: ModelFolder, model: dict[str, Header]) -> None:
    if not model:
        return
    parts = {header.parts for header in model.values()}
    numbers = sorted(header.part for header in model.values())
    if parts == {1} and len(model) > 1:
        look.refuse(f"there are {len(model)} models ({', '.join(model)}); a set holds one")
    elif len(parts) > 1:
        look.refuse(f"the files are parts of different models: {', '.join(model)}")
    elif numbers != list(range(max(parts))):
        found = ", ".join(str(number + 1) for number in numbers)
        look.refuse(f"the model has {max(parts)} parts; here are: {found}")
