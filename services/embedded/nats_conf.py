"""The NATS server's configuration: JetStream, limits, and what each user may do.

One place for the embedded server and for the deployment: `services/nats.conf`, which compose.yaml mounts, is
`render(DEPLOYMENT)`, and a test compares the two. `python -m services.embedded.nats_conf` prints it.

Durability. JetStream is not the record, PostgreSQL is; by default it fsyncs every two minutes. But COMMANDS holds
what a sender published and forgot, and an acknowledged command must survive a power cut until it is decided. So the
server syncs on each write (`sync_interval: always`), which took a publish from 0.18 to 0.27 ms and a pipelined
stream from 27 000 to 9 000 messages a second when it was measured. A stream whose content can be had again
(EVENTS, WORK, EVIDENCE) may opt out with the stream setting `persist_mode: async`, which is as fast as no sync.

Users. `control` is the control plane. `operator` asks commands and queries, invokes, and reads EVENTS; it cannot
speak as a worker. `worker` registers, claims, proves, beats and answers; it cannot ask a person's commands, publish
events, or read COMMANDS, EVENTS or EVIDENCE. What a worker answers goes where the request asked (`allow_responses`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from schemas import subjects

MAX_PAYLOAD_BYTES = 1024 * 1024
CONNECTIONS_MAX = 1024
FILE_STORE_BYTES_MAX = 8 * 1024**3
MEMORY_STORE_BYTES_MAX = 64 * 1024**2
ANSWER_WITHIN = "15m"  # a worker may answer a request this long; serving limits end earlier

CONTROL, OPERATOR, WORKER = "control", "operator", "worker"
USERS = (CONTROL, OPERATOR, WORKER)


def _read_stream(stream: str) -> list[str]:
    """The JetStream API subjects with which a client reads one stream through a consumer of its own."""
    return [
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.INFO.{stream}.>",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.>",
        f"$JS.API.CONSUMER.DELETE.{stream}.>",
        f"$JS.ACK.{stream}.>",
    ]


def permissions(user: str) -> dict[str, object]:
    """What a user may publish and subscribe to."""
    if user == CONTROL:
        return {"publish": {"allow": [">"]}, "subscribe": {"allow": [">"]}}
    if user == OPERATOR:
        stream = subjects.STREAM_EVENTS
        return {
            "publish": {
                "allow": [
                    *(f"{root}.>" for root in (subjects.RPC, subjects.CMD, subjects.QUERY)),
                    *(f"{root}.>" for root in (subjects.LIVE, subjects.SERVE)),
                    "$SRV.>",
                    "$JS.API.INFO",
                    "$JS.API.STREAM.NAMES",
                    "$JS.API.STREAM.LIST",
                    "$JS.API.STREAM.INFO.*",
                    f"$JS.API.STREAM.MSG.GET.{stream}",
                    f"$JS.API.DIRECT.GET.{stream}",
                    f"$JS.API.DIRECT.GET.{stream}.>",
                    "$JS.FC.>",
                    *_read_stream(stream),
                ],
                "deny": [f"{subjects.RPC}.worker.>", f"{subjects.RPC}.lease.>"],
            },
            "subscribe": {"allow": ["_INBOX.>", f"{subjects.EVT}.>", f"{subjects.WAKE}", f"{subjects.WAKE}.>"]},
        }
    if user == WORKER:
        return {
            "publish": {
                "allow": [
                    f"{subjects.RPC}.worker.*",
                    f"{subjects.RPC}.lease.*",
                    f"{subjects.BEAT}.*",
                    f"{subjects.EVIDENCE}.*.*.*",
                    "$JS.API.INFO",
                    "$JS.API.STREAM.NAMES",
                    *_read_stream(subjects.STREAM_WORK),
                ],
            },
            "subscribe": {
                "allow": ["_INBOX.>", f"{subjects.WORK}.>", f"{subjects.LIVE}.*", f"{subjects.SERVE}.*.*.*"],
            },
            "allow_responses": {"max": 1, "expires": ANSWER_WITHIN},
        }
    raise ValueError(f"no such NATS user: {user}")


@dataclass(frozen=True)
class NatsSettings:
    """`passwords` are literals, or references (`$NAME`) to what `include` defines."""

    listen: str
    store_dir: str
    passwords: Mapping[str, str]
    include: str | None = None
    http: str | None = None  # where the health check asks


DEPLOYMENT = NatsSettings(
    listen="0.0.0.0:4222",
    store_dir="/data",
    passwords={user: f"${user.upper()}_PASSWORD" for user in USERS},
    http="127.0.0.1:8222",
    include="../../run/secrets/nats_passwords",  # relative to /etc/nats: the server joins it to its own folder
)


def _literal(value: str) -> str:
    return value if value.startswith("$") else json.dumps(value)


def render(settings: NatsSettings) -> str:
    """The configuration file. JSON is a subset of its syntax, so permissions are written as JSON."""
    lines = ["# Written by services/embedded/nats_conf.py; change it there."]
    if settings.include:
        lines.append(f"include {settings.include}")
    lines += [
        f"listen: {json.dumps(settings.listen)}",
        "server_name: tenure",
        f"max_payload: {MAX_PAYLOAD_BYTES}",
        f"max_connections: {CONNECTIONS_MAX}",
    ]
    if settings.http:
        lines.append(f"http: {json.dumps(settings.http)}")
    lines += [
        "jetstream {",
        f"  store_dir: {json.dumps(settings.store_dir)}",
        f"  max_file_store: {FILE_STORE_BYTES_MAX}",
        f"  max_memory_store: {MEMORY_STORE_BYTES_MAX}",
        "  sync_interval: always",
        "}",
        "authorization {",
        "  timeout: 5",
        "  users: [",
    ]
    for user in USERS:
        rights = json.dumps(permissions(user), indent=2).replace("\n", "\n      ")
        lines += [
            "    {",
            f"      user: {user}",
            f"      password: {_literal(settings.passwords[user])}",
            f"      permissions: {rights}",
            "    }",
        ]
    return "\n".join([*lines, "  ]", "}", ""])


if __name__ == "__main__":
    sys.stdout.write(render(DEPLOYMENT))
