"""The JSON Schema bundles and the AsyncAPI document hold together: references resolve, structures fit the specs.

No validator of those specs is installed with the project; these tests check the parts that our generator decides.
The examples of bus.md are run through a small validator of the JSON Schema keywords that the bundles use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import commands, events, subjects
from schemas.generate import bundles, contract, examples
from schemas.generate.bundles import FAMILIES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
# Of the 2020-12 vocabularies, what our structs need; `discriminator` and `x-messages` are annotations.
KEYWORDS = {
    "$ref", "title", "description", "default", "type", "enum", "const", "anyOf", "properties", "required",
    "additionalProperties", "propertyNames", "maxProperties", "items", "pattern", "minLength", "maxLength", "minItems",
    "maxItems", "minimum", "exclusiveMinimum", "maximum", "contentEncoding", "discriminator",
}  # fmt: skip
OPERATION_FIELDS = {"action", "channel", "title", "summary", "description", "tags", "messages", "reply"}
CHANNEL_FIELDS = {"address", "messages", "title", "summary", "description", "servers", "parameters"}
MESSAGE_FIELDS = {"name", "title", "description", "contentType", "headers", "payload"}


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((REFERENCE / name).read_text(encoding="utf-8"))
    return document


def resolve(document: dict[str, Any], ref: str) -> Any:
    assert ref.startswith("#/"), ref
    node: Any = document
    for key in ref[2:].split("/"):
        node = node[key]
    return node


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
        inner += [schema[key] for key in ("items", "additionalProperties", "propertyNames") if key in schema]
        for one in inner:
            yield from subschemas(one)


# --- JSON Schema -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bundle_stands_alone(family: str) -> None:
    document = load(f"schemas/{family}.json")
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(document["x-messages"]) == set(FAMILIES[family][1])
    for ref in refs(document):
        assert isinstance(resolve(document, ref), dict)
    for definition in document["$defs"].values():
        for schema in subschemas(definition):
            assert set(schema) <= KEYWORDS
            assert set(schema.get("required", [])) <= set(schema.get("properties", {}))
            if "pattern" in schema:
                re.compile(schema["pattern"])
            for target in schema.get("discriminator", {}).get("mapping", {}).values():
                resolve(document, target)


def test_the_families_cover_every_command_and_topic() -> None:
    assert set(load("schemas/commands.json")["x-messages"]) == set(commands.BY_SUBJECT)
    assert set(load("schemas/events.json")["x-messages"]) == set(events.TOPICS)


def test_examples_fit_the_bundles_and_damaged_ones_do_not() -> None:
    document = load("schemas/commands.json")
    for name, command in examples.command_examples().items():
        plain = msgspec.json.decode(msgspec.json.encode(command))
        schema = document["x-messages"][name]
        assert faults(document, schema, plain) == []
        assert faults(document, schema, plain | {"surprise": 1}) == ["surprise: not expected"]
        assert faults(document, schema, plain | {"actor": ""}) == ["actor: too short"]
        del plain["command_id"]
        assert faults(document, schema, plain) == ["command_id: missing"]
    live = load("schemas/live.json")
    answer = msgspec.json.decode(msgspec.json.encode(examples.LIVE_ANSWER))
    assert faults(live, live["x-messages"]["LiveAnswer"], answer) == []
    answer["residents"][0]["entry"]["generation"] = 7
    assert faults(live, live["x-messages"]["LiveAnswer"], answer) == ["residents.0.entry.generation: not a string"]


def faults(document: dict[str, Any], schema: Any, value: Any, at: str = "") -> list[str]:
    """What is wrong with `value`, by the keywords in KEYWORDS. Deliberately small; for these bundles only."""
    if "$ref" in schema:
        return faults(document, resolve(document, schema["$ref"]), value, at)
    if "anyOf" in schema:
        tries = [faults(document, one, value, at) for one in schema["anyOf"]]
        return [] if [] in tries else min(tries, key=len)
    kinds: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    kinds |= {"object": dict, "array": list}
    kind = schema.get("type")
    where = f"{at}: " if at else ""
    if kind and (not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{where}not a {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where}not one of the values"]
    found: list[str] = []
    if isinstance(value, str):
        found += [f"{where}too short"] * (len(value) < schema.get("minLength", 0))
        found += [f"{where}too long"] * (len(value) > schema.get("maxLength", len(value)))
        found += [f"{where}does not match"] * (re.search(schema.get("pattern", ""), value) is None)
    if isinstance(value, list):
        for number, item in enumerate(value):
            found += faults(document, schema.get("items", {}), item, f"{at}.{number}".lstrip("."))
    if isinstance(value, dict):
        known = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for key, item in value.items():
            path = f"{at}.{key}".lstrip(".")
            if key in known or isinstance(others, dict):
                found += faults(document, known.get(key, others), item, path)
            elif others is False:
                found.append(f"{path}: not expected")
        found += [f"{at}.{key}: missing".lstrip(".") for key in schema.get("required", []) if key not in value]
    return found


# --- AsyncAPI --------------------------------------------------------------------------------------------------------


def test_asyncapi_has_the_parts_that_version_3_requires() -> None:
    document = load("asyncapi.json")
    assert document["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= set(document["info"])
    for server in document["servers"].values():
        assert {"host", "protocol"} <= set(server)
        assert server["host"] == "localhost:4222"
        assert server["protocol"] == "nats"
    for ref in refs(document):
        resolve(document, ref)
    names = [*document["channels"], *document["operations"]]
    names += [*document["components"]["messages"], *document["components"]["schemas"]]
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]+", name) for name in names)


def test_asyncapi_channels_have_parameters_and_known_messages() -> None:
    document = load("asyncapi.json")
    for channel in document["channels"].values():
        assert {key for key in channel if not key.startswith("x-")} <= CHANNEL_FIELDS
        assert set(re.findall(r"\{(\w+)\}", channel["address"] or "")) == set(channel.get("parameters", {}))
        assert channel["messages"]
    for message in document["components"]["messages"].values():
        assert set(message) <= MESSAGE_FIELDS
        assert message["contentType"] in ("application/json", contract.MESSAGEPACK, "text/plain")
    for schema in document["components"]["schemas"].values():
        assert all("discriminator" not in one for one in subschemas(schema))


def test_asyncapi_operations_use_messages_of_their_own_channel() -> None:
    document = load("asyncapi.json")
    for operation in document["operations"].values():
        assert set(operation) <= OPERATION_FIELDS
        assert operation["action"] in ("send", "receive")
        for side in (operation, *([operation["reply"]] if "reply" in operation else [])):
            within = f"{side['channel']['$ref']}/messages/"
            assert all(message["$ref"].startswith(within) for message in side["messages"])
    used = {operation["channel"]["$ref"] for operation in document["operations"].values()}
    used |= {
        operation["reply"]["channel"]["$ref"] for operation in document["operations"].values() if "reply" in operation
    }
    assert used == {f"#/channels/{key}" for key in document["channels"]}


def test_asyncapi_has_every_command_event_and_subject() -> None:
    document = load("asyncapi.json")
    addresses = {channel["address"] for channel in document["channels"].values()}
    for name in commands.BY_SUBJECT:
        assert subjects.rpc_subject(name) in addresses
        assert (f"{subjects.CMD}.{name}" in addresses) is (name not in commands.RPC_ONLY)
    for topic in events.TOPICS:
        assert set(contract.event_addresses(topic)) <= addresses
    for channel in contract.CHANNELS:
        assert any(address and address.startswith(channel.prefix) for address in addresses)
    replying = {key for key, operation in document["operations"].items() if "reply" in operation}
    assert {f"rpc.{name}" for name in commands.BY_SUBJECT} | {"beat", "live", "serve", "query"} == replying


def test_asyncapi_serves_invocations_as_messagepack_and_the_rest_as_json() -> None:
    document = load("asyncapi.json")
    messages = document["components"]["messages"]
    packed = {name for name, message in messages.items() if message["contentType"] == contract.MESSAGEPACK}
    assert packed == {one.__name__ for one in (*contract.SERVE_REQUESTS, *contract.SERVE_ANSWERS)}
    assert {"EmbedRequest", "Answer", "Failure", "ByReference"} <= packed
    headers = messages["LeaseGranted"]["headers"]["properties"]
    assert {subjects.HEADER_MSG_ID, subjects.HEADER_POSITION, subjects.HEADER_PREVIOUS} <= set(headers)
    assert bundles.as_text(document) == (REFERENCE / "asyncapi.json").read_text(encoding="utf-8")
