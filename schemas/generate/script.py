"""The worked example of bus.md: a complete program with nats-py and nothing of Tenure.

The body is the `artifact.register` example; the addresses come from `schemas.subjects`.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from schemas import subjects
from schemas.generate.examples import command_examples

COMMAND = "artifact.register"

_TEMPLATE = '''\
"""Register a set of model files, once by request and once durably. Needs only `pip install nats-py`."""

import asyncio
import json
import os

import nats

BODY = {body}


async def main() -> None:
    bus = await nats.connect(
        os.environ.get("TENURE_NATS_URL", "nats://localhost:4222"),
        user=os.environ.get("TENURE_NATS_USER"),
        password=os.environ.get("TENURE_NATS_PASSWORD"),
    )

    # By request: the answer is the outcome, after the commit.
    answer = await bus.request("{rpc}", json.dumps(BODY).encode(), timeout=10)
    reply = json.loads(answer.data)
    print(reply["outcome"], reply.get("position"), reply.get("code"), reply.get("message"))

    # Durably: JetStream acknowledges that the command is stored. It is decided even if nobody listens now.
    durable = {{**BODY, "command_id": BODY["command_id"] + "_durable"}}
    stored = await bus.jetstream().publish(
        "{cmd}",
        json.dumps(durable).encode(),
        headers={{"{msg_id}": durable["command_id"]}},
    )
    print("stored in", stored.stream, "as", stored.seq)

    # Its outcome: the same command by request. Whoever is first decides; the other gets the stored outcome.
    answer = await bus.request("{rpc}", json.dumps(durable).encode(), timeout=10)
    print(json.loads(answer.data)["outcome"])

    await bus.close()


asyncio.run(main())
'''


def body() -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(command_examples()[COMMAND])
    del plain["traceparent"]
    return plain


def text() -> str:
    return _TEMPLATE.format(
        body=json.dumps(body(), indent=4),
        rpc=subjects.rpc_subject(COMMAND),
        cmd=f"{subjects.CMD}.{COMMAND}",
        msg_id=subjects.HEADER_MSG_ID,
    )
