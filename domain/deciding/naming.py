"""The streams a command names by its own fields, so that they can be loaded before it is decided.

A hint for speed only: what a decision needs beyond these it asks for with NotLoaded.
"""

from __future__ import annotations

from schemas.artifacts import manifest_digest
from schemas.commands import (
    BY_SUBJECT,
    Command,
    ExpireLease,
    LoseSession,
    PassDeadline,
    ReconcileInventory,
    RegisterArtifact,
)

_NOUN_OF_FIELD = {
    "artifact_id": "artifact",
    "profile_id": "profile",
    "node_id": "node",
    "work_id": "work",
    "assessment_id": "work",
    "candidate_id": "candidate",
    "deployment_id": "deployment",
}
_INTERNAL: tuple[type[Command], ...] = (ExpireLease, PassDeadline, LoseSession, ReconcileInventory)


def _fields(struct: type[Command]) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"{noun}-") for name, noun in _NOUN_OF_FIELD.items() if name in struct.__struct_fields__)


_NAMED = {struct: _fields(struct) for struct in (*BY_SUBJECT.values(), *_INTERNAL)}


def named_streams(command: Command) -> list[str]:
    """Stream ids that `command` names, in no particular order."""
    named = [prefix + getattr(command, field) for field, prefix in _NAMED.get(type(command), ())]
    if isinstance(command, RegisterArtifact):
        named.append(f"artifact-{manifest_digest(command.files)}")
    return named
