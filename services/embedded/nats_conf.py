"""The NATS server's configuration: JetStream, limits, and what each user may do.

One place for the embedded server and for the deployment: `services/nats.conf`, which compose.yaml mounts, is
`render(DEPLOYMENT)`, and a test compares the two. `python -m services.embedded.nats_conf` prints it. Its users are in a
file of their own, which it includes, because they hold passwords and because nodes come and go: see `compose_secrets`.

Durability. JetStream is not the record, PostgreSQL is; by default it fsyncs every two minutes. But COMMANDS holds
what a sender published and forgot, and an acknowledged command must survive a power cut until it is decided. So the
server syncs on each write (`sync_interval: always`), which took a publish from 0.18 to 0.27 ms and a pipelined
stream from 27 000 to 9 000 messages a second when it was measured. A stream whose content can be had again
(EVENTS, WORK, EVIDENCE) may opt out with the stream setting `persist_mode: async`, which is as fast as no sync.

Users. `control` is the control plane. `operator` asks commands and queries, invokes, and reads EVENTS; it cannot
speak as a worker. `node-<node>` is one node's worker: it registers, claims, proves, beats and answers, all of it under
that node's name only; it cannot ask a person's commands, publish events, or read COMMANDS, EVENTS or EVIDENCE. What a
worker answers goes where the request asked (`allow_responses`).

Replies go to inboxes, and who may listen there reads them (a claim's reply holds the lease's token). So each node's
inboxes have a prefix of their own, and so do the control plane's. Operators share `_INBOX`, which clients use by
default.

What a node's name in a subject does not protect is protected by a secret in the body: `worker.register` and
`worker.leave` by the node's credential, `lease.renew` and `lease.release` by the lease's token. A claim has no secret,
so it has a subject with the node's name, and the control plane refuses one whose body names another node.

A node reads no stream that it can write. JetStream sends what it is asked for to any reply subject, past the asker's
permissions, so such a reader could have the server publish words of its own as anybody. Of its payload store, which
it writes, a node therefore gets single messages (STREAM.MSG.GET), which come wrapped in JSON that nobody takes for a
command; it gets no consumer there and no direct reads. Operators do, and could speak as a worker in this way: to be
believed they would need its credential, its token or its key, and intake refuses what JetStream has delivered.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from schemas import subjects
from schemas.serving import PAYLOAD_STORE_BYTES_MAX, payload_store
from schemas.tasks.invocation import INVOKE_MS_MAX
from schemas.tokens import is_token

MAX_PAYLOAD_BYTES = 1024 * 1024
CONNECTIONS_MAX = 1024
NODES_MAX = 128  # whose payload stores fit: the server sets each store's bound aside when it is made
FILE_STORE_BYTES_MAX = 8 * 1024**3 + NODES_MAX * PAYLOAD_STORE_BYTES_MAX  # a bound, not what it takes
MEMORY_STORE_BYTES_MAX = 64 * 1024**2
ANSWER_WITHIN_S = INVOKE_MS_MAX // 1_000 + 60  # how long a worker may answer a request; the server keeps it in memory
ANSWERS_MAX = 1_000_001  # a streamed answer comes in at most one piece for each new token, and then whole

CONTROL, OPERATOR = "control", "operator"
USERS = (CONTROL, OPERATOR)  # those that are always there
NODE_PREFIX = "node-"


def node_user(node_id: str) -> str:
    """The NATS user of a node's worker."""
    return NODE_PREFIX + node_id


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


def _write_store(node_id: str) -> list[str]:
    """What puts objects into a node's payload store, looks one up and deletes it."""
    bucket, stream = payload_store(node_id), f"OBJ_{payload_store(node_id)}"
    return [
        f"$O.{bucket}.C.>",
        f"$O.{bucket}.M.>",
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.STREAM.PURGE.{stream}",
    ]


def permissions(user: str, node_ids: Collection[str] = ()) -> dict[str, object]:
    """What a user may publish and subscribe to; an operator with the payloads of these nodes."""
    if user == CONTROL:
        return {"publish": {"allow": [">"]}, "subscribe": {"allow": [">"]}}
    if user == OPERATOR:
        return _operator(node_ids)
    node_id = user.removeprefix(NODE_PREFIX)
    if user.startswith(NODE_PREFIX) and is_token(node_id):
        return _node(node_id)
    raise ValueError(f"no such NATS user: {user}")


def _operator(node_ids: Collection[str]) -> dict[str, object]:
    stream = subjects.STREAM_EVENTS
    stores = [
        subject
        for node_id in node_ids
        for subject in (*_write_store(node_id), *_read_stream(f"OBJ_{payload_store(node_id)}"))
    ]
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
                "$JS.API.CONSUMER.INFO.*.*",
                f"$JS.API.STREAM.MSG.GET.{stream}",
                f"$JS.API.DIRECT.GET.{stream}",
                f"$JS.API.DIRECT.GET.{stream}.>",
                "$JS.FC.>",
                *_read_stream(stream),
                *dict.fromkeys(stores),
            ],
            "deny": [f"{subjects.RPC}.worker.>", f"{subjects.RPC}.lease.>"],
        },
        "subscribe": {"allow": ["_INBOX.>", f"{subjects.EVT}.>", f"{subjects.WAKE}", f"{subjects.WAKE}.>"]},
    }


def _node(node_id: str) -> dict[str, object]:
    """One node's worker. It gets one consumer; the server holds its name and filter to these subjects."""
    stream, consumer = subjects.STREAM_WORK, subjects.work_consumer(node_id)
    offers = subjects.work_subject(node_id, ">")
    return {
        "publish": {
            "allow": [
                subjects.rpc_subject("worker.register"),
                subjects.rpc_subject("worker.leave"),
                subjects.claim_subject(node_id),
                subjects.rpc_subject("lease.renew"),
                subjects.rpc_subject("lease.release"),
                subjects.beat_subject(node_id),
                subjects.evidence_subject(node_id, "*", "*"),
                f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{offers}",
                f"$JS.API.CONSUMER.INFO.{stream}.{consumer}",
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
                f"$JS.ACK.{stream}.{consumer}.>",
                *_write_store(node_id),
            ],
        },
        "subscribe": {
            "allow": [
                f"{subjects.node_inbox(node_id)}.>",
                offers,
                subjects.live_subject(node_id),
                subjects.serve_subject(node_id, "*", "*"),
            ],
        },
        "allow_responses": {"max": ANSWERS_MAX, "expires": f"{ANSWER_WITHIN_S}s"},
    }


@dataclass(frozen=True)
class NatsSettings:
    """`passwords` are those of all users; without them, `include` names the file that has the users."""

    listen: str
    store_dir: str
    passwords: Mapping[str, str] | None = None
    include: str | None = None
    http: str | None = None  # where the health check asks


DEPLOYMENT = NatsSettings(
    listen="0.0.0.0:4222",
    store_dir="/data",
    http="127.0.0.1:8222",
    include="../../run/secrets/nats_users",  # relative to /etc/nats: the server joins it to its own folder
)
HEAD = "# Written by services/embedded/nats_conf.py; change it there."


def render(settings: NatsSettings) -> str:
    """The configuration file. JSON is a subset of its syntax, so permissions are written as JSON."""
    lines = [HEAD]
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
    ]
    if settings.passwords is not None:
        lines += _authorization(settings.passwords)
    return "\n".join([*lines, ""])


def render_users(passwords: Mapping[str, str]) -> str:
    """The file that a configuration without passwords includes."""
    return "\n".join([HEAD, *_authorization(passwords), ""])


def _authorization(passwords: Mapping[str, str]) -> list[str]:
    lines = ["authorization {", "  timeout: 5", "  users: ["]
    node_ids = [user.removeprefix(NODE_PREFIX) for user in passwords if user.startswith(NODE_PREFIX)]
    for user, password in passwords.items():
        rights = json.dumps(permissions(user, node_ids), indent=2).replace("\n", "\n      ")
        lines += [
            "    {",
            f"      user: {json.dumps(user)}",
            f"      password: {json.dumps(password)}",
            f"      permissions: {rights}",
            "    }",
        ]
    return [*lines, "  ]", "}"]


if __name__ == "__main__":
    sys.stdout.write(render(DEPLOYMENT))
