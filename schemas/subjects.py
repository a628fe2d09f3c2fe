"""Every NATS subject, stream and header, and how the subjects are built.

Streams on JetStream: COMMANDS (work queue), EVENTS (a copy of the log, rebuilt from Postgres at will),
WORK (offers, the last per work item), EVIDENCE (work queue). None of them is the record.
"""

from __future__ import annotations

RPC = "tenure.rpc.v1"
CMD = "tenure.cmd.v1"
EVT = "tenure.evt.v1"
WORK = "tenure.work.v1"
EVIDENCE = "tenure.evidence.v1"
BEAT = "tenure.beat.v1"
LIVE = "tenure.live.v1"
SERVE = "tenure.serve.v1"
QUERY = "tenure.query.v1"
WAKE = "tenure.wake.v1.log"  # a committed position; a hint for tailing readers, carries no state
WAKE_VIEW = "tenure.wake.v1.view"  # a projected position; a hint for whoever waits for rows

STREAM_COMMANDS = "COMMANDS"
STREAM_EVENTS = "EVENTS"
STREAM_WORK = "WORK"
STREAM_EVIDENCE = "EVIDENCE"

HEADER_MSG_ID = "Nats-Msg-Id"
HEADER_POSITION = "Tenure-Position"
HEADER_PREVIOUS = "Tenure-Previous-Position"
HEADER_TOPIC = "Tenure-Topic"
HEADER_VERSION = "Tenure-Stream-Version"
HEADER_TRACEPARENT = "traceparent"


def event_subject(stream_id: str, topic: str) -> str:
    """`tenure.evt.v1.<noun>.<id>.<event>`; the event is the topic's words joined by `-`, without the version.

    `work-4f1c` and `lease.granted.v1` give `tenure.evt.v1.work.4f1c.lease-granted`.
    """
    noun, _, ident = stream_id.partition("-")
    return f"{EVT}.{noun}.{ident}.{topic.rpartition('.')[0].replace('.', '-')}"


def work_subject(node_id: str, work_id: str) -> str:
    """`tenure.work.v1.<node>.<work id>`: the stream keeps the last offer of each work item."""
    return f"{WORK}.{node_id}.{work_id}"


def evidence_subject(node_id: str, generation: str, work_id: str) -> str:
    return f"{EVIDENCE}.{node_id}.{generation}.{work_id}"


def serve_subject(node_id: str, generation: str, deployment_id: str) -> str:
    return f"{SERVE}.{node_id}.{generation}.{deployment_id}"


def beat_subject(node_id: str) -> str:
    return f"{BEAT}.{node_id}"


def live_subject(node_id: str) -> str:
    return f"{LIVE}.{node_id}"


def rpc_subject(name: str) -> str:
    return f"{RPC}.{name}"


def claim_subject(node_id: str) -> str:
    """`tenure.rpc.v1.lease.claim.<node>`: a claim for one node, which only that node's login on the bus may send."""
    return f"{RPC}.lease.claim.{node_id}"


def work_consumer(node_id: str) -> str:
    """The name of a node's durable consumer on WORK."""
    return f"worker-{node_id}"


def node_inbox(node_id: str) -> str:
    """The prefix of a node's inboxes: only its own login may listen there, so no other node reads its replies."""
    return f"_INBOX_NODE.{node_id}"


def query_subject(table: str) -> str:
    return f"{QUERY}.{table}"
