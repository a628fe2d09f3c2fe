"""Identifiers and the limits on what a message may hold.

A token is safe as one element of a NATS subject and as part of a stream id: no dot, space, wildcard or
separator. Limits are part of the contract: what exceeds one is refused with a code, before any work.

Patterns end with AT_THE_END, because Python's `$` also matches before a line end at the very end.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

AT_THE_END = r"(?!\n)"
TOKEN_PATTERN = rf"^[A-Za-z0-9_][A-Za-z0-9_-]{{0,63}}${AT_THE_END}"
DIGEST_PATTERN = rf"^[0-9a-f]{{64}}${AT_THE_END}"
GENERATION_PATTERN = rf"^(0|[1-9][0-9]{{0,18}})${AT_THE_END}"
NAME_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,62}}${AT_THE_END}"

BYTES_MAX = 2**53 - 1  # what a number in JSON is sure to hold

Token = Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Subject-safe identifier, 1 to 64 characters.")]
Digest = Annotated[str, Meta(pattern=DIGEST_PATTERN, description="SHA-256 in lower-case hexadecimal.")]
Generation = Annotated[
    str, Meta(pattern=GENERATION_PATTERN, description="Worker generation: a 64-bit number as a decimal string.")
]
Name = Annotated[str, Meta(pattern=NAME_PATTERN, description="A name a person chose, 1 to 63 characters.")]
Text = Annotated[str, Meta(max_length=2_000, description="Free text, at most 2,000 characters.")]
Actor = Annotated[str, Meta(min_length=1, max_length=128, description="Who asked: a person or a process.")]
Milliseconds = Annotated[int, Meta(ge=0, le=2**53 - 1, description="Milliseconds; dates are since the Unix epoch.")]
DurationMs = Annotated[int, Meta(ge=1, le=86_400_000, description="A duration in milliseconds, at most one day.")]
ByteCount = Annotated[int, Meta(ge=0, le=BYTES_MAX, description="A number of bytes.")]

MESSAGE_BYTES_MAX = 1_000_000  # below the 1 MiB default of nats-server, which drops the connection above it
EVENT_BYTES_MAX = 1_030_000  # a message with its event's headers is below the 1 MiB
FILES_PER_ARTIFACT_MAX = 4_096
MANIFEST_BYTES_MAX = 700_000  # of a set's files as JSON: a work order holds them, and a profile with golden probes
PATH_CHARACTERS_MAX = 400
EVIDENCE_BYTES_MAX = 128_000
NODES_PER_DEPLOYMENT_MAX = 16
RESIDENTS_PER_NODE_MAX = 64
OPEN_WORK_PER_NODE_MAX = 256
ATTEMPTS_MAX = 3
UNCONFIRMED_EVIDENCE_MAX = 256

_TOKEN = re.compile(TOKEN_PATTERN)
_DIGEST = re.compile(DIGEST_PATTERN)


def is_token(text: str) -> bool:
    return _TOKEN.match(text) is not None


def is_digest(text: str) -> bool:
    return _DIGEST.match(text) is not None
