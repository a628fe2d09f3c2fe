"""ArtifactSet: an immutable set of model files, named by the digest of its canonical manifest.

The canonical manifest is the UTF-8 JSON array of `[path, size, sha256]`, sorted by path (code points),
without white space. Two folders with the same relative paths and bytes are the same ArtifactSet,
wherever they lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from schemas.tokens import PATH_CHARACTERS_MAX, ByteCount, Digest

# Formats whose loading runs code from the file. Compared against the lower-cased suffix.
PICKLE_SUFFIXES = frozenset({".bin", ".ckpt", ".joblib", ".mar", ".nemo", ".pickle", ".pkl", ".pt", ".pth"})


class FileEntry(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One file: POSIX path relative to the folder, size in bytes, SHA-256 of its content."""

    path: Annotated[str, Meta(min_length=1, max_length=PATH_CHARACTERS_MAX)]
    size: ByteCount
    sha256: Digest


def manifest_digest(files: Sequence[FileEntry]) -> str:
    """The ArtifactSet id of these files: SHA-256 (hex) of the canonical manifest."""
    rows = sorted([entry.path, entry.size, entry.sha256] for entry in files)
    return hashlib.sha256(msgspec.json.encode(rows)).hexdigest()
