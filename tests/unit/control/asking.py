"""Commands that tests of the writer ask for, and how to read what they were told."""

from __future__ import annotations

import hashlib
from typing import Any

from schemas import commands as c
from schemas.replies import Reply
from tests.unit.domain.story import CREDENTIAL

SHA = hashlib.sha256(CREDENTIAL.encode()).hexdigest()


def enrol(node_id: str = "n1", command_id: str = "", **fields: Any) -> c.EnrolNode:
    values = {"command_id": command_id or f"enrol-{node_id}", "actor": "ann", "credential_sha256": SHA, **fields}
    return c.EnrolNode(node_id=node_id, **values)


def disable(node_id: str = "n1", command_id: str = "disable") -> c.DisableNode:
    return c.DisableNode(command_id=command_id, actor="ann", node_id=node_id)


def told(replies: list[Reply]) -> list[str]:
    return [str(reply.code or reply.outcome) for reply in replies]
