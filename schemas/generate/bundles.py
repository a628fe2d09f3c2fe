"""JSON Schema 2020-12 bundles, one for each family of messages.

`$defs` holds every struct of the family and what it refers to; `x-messages` maps what a client knows (a
command's name, a topic, a struct) to its definition. `$id` is a URN, so nothing is looked up on a network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from schemas import commands, events, evidence, live, queries, replies, work
from schemas.generate import contract
from schemas.generate.portable import portable

DIALECT = "https://json-schema.org/draft/2020-12/schema"

FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "commands": ("Bodies of commands, by `<noun>.<verb>`.", commands.BY_SUBJECT),
    "events": ("Bodies of events, by topic.", events.TOPICS),
    "evidence": (
        "Signed evidence, the Evidence inside its payload, and the statements it can make.",
        {one.__name__: one for one in (evidence.SignedEvidence, evidence.Evidence, *get_args(evidence.Statement))},
    ),
    "replies": (
        "The outcome of a command, and the WorkOrder that a granted claim has as its result.",
        {"Reply": replies.Reply, "WorkOrder": work.WorkOrder},
    ),
    "serving": (
        "Invocations. They travel as MessagePack, where `bytes` are raw binary and not base64.",
        {one.__name__: one for one in contract.SERVING},
    ),
    "queries": ("Queries over the projected tables.", {"Query": queries.Query, "QueryReply": queries.QueryReply}),
    "live": (
        "Heartbeats, live answers and offers of work.",
        {one.__name__: one for one in (live.Beat, live.BeatReply, live.LiveAnswer, work.Offer)},
    ),
}


def bundle(family: str) -> dict[str, Any]:
    says, messages = FAMILIES[family]
    roots, definitions = msgspec.json.schema_components(list(messages.values()), ref_template="#/$defs/{name}")
    return {
        "$schema": DIALECT,
        "$id": f"urn:tenure:v1:{family}",
        "title": f"Tenure: {family}",
        "description": says,
        "x-messages": dict(zip(messages, roots, strict=True)),
        "$defs": portable(definitions),
    }


def as_text(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
