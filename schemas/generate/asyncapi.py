"""The bus as an AsyncAPI 3.0 document.

The described application is the plane: control plane, relay and query service, with its workers.
`receive` is what a client sends to it, `send` what it publishes; the traffic between control plane and
workers is tagged `worker` and takes the control plane's side. Commands and events have one channel each,
so that every address has one message and tools can make typed clients.

The default schema dialect of AsyncAPI has no `discriminator` object; it is left out here, the tag in
each struct (a constant `type`) tells them apart.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from schemas import commands, events, subjects
from schemas.generate import contract
from schemas.generate.bundles import FAMILIES
from schemas.generate.contract import CHANNELS, Channel
from schemas.generate.describe import docstring
from schemas.generate.portable import portable

VERSION = "1"
SERVER = "local"
WORKER_TRAFFIC = ("WORK", "EVIDENCE", "BEAT", "LIVE")


def document() -> dict[str, Any]:
    schemas, refs = _schemas()
    builder = _Builder(refs)
    for channel in CHANNELS:
        builder.add_family(channel)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tenure bus",
            "version": VERSION,
            "description": "Generated from the structs in `schemas`. The reference for people is bus.md.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {SERVER: {"host": "localhost:4222", "protocol": "nats", "description": "nats://localhost:4222"}},
        "channels": builder.channels,
        "operations": builder.operations,
        "components": {"messages": builder.messages, "schemas": schemas},
    }


def _schemas() -> tuple[dict[str, Any], dict[type, dict[str, str]]]:
    """Every struct of every family under components/schemas, and the reference to each message's own."""
    structs = list(dict.fromkeys(struct for _, messages in FAMILIES.values() for struct in messages.values()))
    roots, definitions = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    return portable(_without_discriminator(definitions)), dict(zip(structs, roots, strict=True))


def _without_discriminator(node: Any) -> Any:
    if isinstance(node, dict):
        drop = isinstance(node.get("discriminator"), dict) and "anyOf" in node
        return {
            key: _without_discriminator(value) for key, value in node.items() if not (drop and key == "discriminator")
        }
    return [_without_discriminator(item) for item in node] if isinstance(node, list) else node


class _Builder:
    def __init__(self, refs: dict[type, dict[str, str]]) -> None:
        self.refs = refs
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}

    def add_family(self, channel: Channel) -> None:
        if channel.constant in ("RPC", "CMD"):
            for name, struct in commands.BY_SUBJECT.items():
                if channel.constant == "RPC" or name not in commands.RPC_ONLY:
                    key = f"{channel.constant.lower()}.{name}"
                    self.add(key, channel, f"{channel.prefix}.{name}", (struct,), docstring(struct) or channel.says)
        elif channel.constant == "EVT":
            for topic, event in events.TOPICS.items():
                for number, address in enumerate(contract.event_addresses(topic)):
                    key = f"evt.{topic}" + (f".{number + 1}" if number else "")
                    self.add(key, channel, address, (event,), docstring(event) or channel.says)
        else:
            self.add(channel.constant.lower(), channel, channel.address, channel.bodies, channel.says)

    def add(self, key: str, channel: Channel, address: str, bodies: tuple[Any, ...], says: str) -> None:
        named = [self.message(channel, body) for body in bodies] or [self.bodiless(channel)]
        answers = [self.message(channel, body, reply=True) for body in channel.replies]
        self.channels[key] = self.channel(channel, address, named, says)
        operation: dict[str, Any] = {
            "action": "receive" if channel.received else "send",
            "channel": {"$ref": f"#/channels/{key}"},
            "summary": channel.says,
            "messages": [{"$ref": f"#/channels/{key}/messages/{name}"} for name in named],
        }
        if channel.constant in WORKER_TRAFFIC:
            operation["tags"] = [{"name": "worker"}]
        if answers:
            inbox = f"{key}.reply"
            self.channels[inbox] = {
                "address": None,
                "description": "The requester's inbox, given by NATS in the reply subject.",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in answers},
            }
            operation["reply"] = {
                "channel": {"$ref": f"#/channels/{inbox}"},
                "messages": [{"$ref": f"#/channels/{inbox}/messages/{name}"} for name in answers],
            }
        self.operations[key] = operation

    def channel(self, channel: Channel, address: str, named: list[str], says: str) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "address": address,
            "description": says,
            "servers": [{"$ref": f"#/servers/{SERVER}"}],
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in named},
        }
        if parameters := re.findall(r"\{(\w+)\}", address):
            entry["parameters"] = {name: {"description": contract.PARAMETERS[name]} for name in parameters}
        if channel.stream:
            entry["x-jetstream-stream"] = getattr(subjects, channel.stream)
        return entry

    def message(self, channel: Channel, struct: Any, reply: bool = False) -> str:
        headers = () if reply else channel.headers
        name = self.refs[struct]["$ref"].rpartition("/")[2]
        if channel.constant == "CMD":
            name = f"{name}.durable"
        entry: dict[str, Any] = {"name": struct.__name__, "contentType": channel.content_type}
        if said := docstring(struct):
            entry["description"] = said
        if headers:
            entry["headers"] = {
                "type": "object",
                "properties": {
                    getattr(subjects, header): {"type": "string", "description": contract.HEADERS[header]}
                    for header in headers
                },
            }
        entry["payload"] = self.refs[struct]
        self.messages[name] = entry
        return name

    def bodiless(self, channel: Channel) -> str:
        name = f"{channel.constant.lower()}.message"
        self.messages[name] = {"name": name, "contentType": channel.content_type, "description": channel.says}
        return name
