"""ArtifactSets: what a manifest may hold. The bytes are checked on the node, by `verify` work."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import msgspec

from domain.deciding.outcomes import Accepted, Outcome, Recorded, Rejected
from domain.deciding.world import World
from domain.folding.states import ArtifactState, stream_of
from schemas.artifacts import PICKLE_SUFFIXES, FileEntry, manifest_digest
from schemas.codes import Code
from schemas.commands import RegisterArtifact
from schemas.events import ArtifactRegistered
from schemas.tokens import BYTES_MAX, FILES_PER_ARTIFACT_MAX, MANIFEST_BYTES_MAX


def register(command: RegisterArtifact, world: World) -> Outcome:
    refused = check_manifest(command.files)
    if refused is not None:
        return refused
    artifact_id = manifest_digest(command.files)
    result: dict[str, Any] = {"artifact_id": artifact_id}
    if world.get(ArtifactState, "artifact", artifact_id) is not None:
        return Accepted(result=result)
    event = ArtifactRegistered(
        artifact_id=artifact_id,
        name=command.name,
        files=sorted(command.files, key=lambda entry: entry.path),
        bytes=sum(entry.size for entry in command.files),
        **world.stamp(command),
    )
    return Accepted([Recorded(stream_of("artifact", artifact_id), event)], result)


def check_manifest(files: list[FileEntry]) -> Rejected | None:
    """None where the list may name an ArtifactSet."""
    if not files:
        return Rejected(Code.ARTIFACT_EMPTY, "the manifest lists no file")
    if len(files) > FILES_PER_ARTIFACT_MAX:
        return Rejected(Code.ARTIFACT_TOO_MANY_FILES, f"{len(files)} files; a set may have {FILES_PER_ARTIFACT_MAX}")
    listed_bytes = len(msgspec.json.encode(files))
    if listed_bytes > MANIFEST_BYTES_MAX:
        message = f"the list of {len(files)} files takes {listed_bytes} bytes; it may take {MANIFEST_BYTES_MAX}"
        return Rejected(Code.ARTIFACT_TOO_MANY_FILES, message)
    total_bytes = sum(entry.size for entry in files)
    if total_bytes > BYTES_MAX:
        return Rejected(Code.COMMAND_MALFORMED, f"the files take {total_bytes} bytes; {BYTES_MAX} is the bound")
    seen: set[str] = set()
    for entry in files:
        code = path_refusal(entry.path)
        if code is not None:
            return Rejected(code, f"path {entry.path!r} may not be in a set", {"path": entry.path})
        folded = entry.path.casefold()
        if folded in seen:
            return Rejected(Code.ARTIFACT_PATH_DUPLICATE, f"path {entry.path!r} is there twice", {"path": entry.path})
        seen.add(folded)
    return None


def path_refusal(path: str) -> Code | None:
    """Why a manifest path is not acceptable: it escapes, is not canonical, or names a pickled format."""
    pure = PurePosixPath(path)
    parts = path.split("/")
    if pure.is_absolute() or "\\" in path or any(part in ("", ".", "..") for part in parts):
        return Code.ARTIFACT_PATH_ESCAPES
    if any(ord(character) < 32 or ord(character) == 127 for character in path) or ":" in parts[0]:
        return Code.ARTIFACT_PATH_ESCAPES
    if pure.suffix.lower() in PICKLE_SUFFIXES:
        return Code.ARTIFACT_PICKLE_REFUSED
    return None


def check_location(location: str) -> Rejected | None:
    """A location is a relative path below the node's artifact root."""
    if path_refusal(location) is Code.ARTIFACT_PATH_ESCAPES:
        return Rejected(Code.ARTIFACT_PATH_ESCAPES, f"location {location!r} is not a path below the artifact root")
    return None
