"""Canonical JSON and the digests that name things by content.

Keys sorted, no white space, UTF-8: the same value gives the same bytes in every process and release.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(value: Any) -> bytes:
    return _encoder.encode(value)


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a struct or a plain value."""
    return hashlib.sha256(_encoder.encode(value)).hexdigest()
