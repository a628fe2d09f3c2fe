"""What the structs cannot say: who sends what to whom, over which way, and where an event belongs.

Nothing here decides anything at run time. Each table is closed over the one in `schemas` that it
annotates; tests fail when a command, topic or subject is added there and not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from schemas import subjects
from schemas.evidence import SignedEvidence
from schemas.live import Beat, BeatReply, LiveAnswer
from schemas.queries import Query, QueryReply
from schemas.replies import Reply
from schemas.serving import ServeAnswer, ServeRequest
from schemas.tasks.requests import Result
from schemas.work import Offer

Way = Literal["request", "JetStream", "message"]


@dataclass(frozen=True)
class Channel:
    """One family of subjects. `received` is the direction as the control plane sees it."""

    constant: str  # the name of its prefix in schemas/subjects.py
    form: str  # what follows the prefix, with {parameters}
    way: Way
    sender: str
    receiver: str
    received: bool
    says: str
    bodies: tuple[Any, ...] = ()
    replies: tuple[Any, ...] = ()
    stream: str | None = None
    headers: tuple[str, ...] = ()
    content_type: str = "application/json"

    @property
    def prefix(self) -> str:
        prefix: str = getattr(subjects, self.constant)
        return prefix

    @property
    def address(self) -> str:
        return f"{self.prefix}.{self.form}" if self.form else self.prefix


@dataclass(frozen=True)
class Stream:
    constant: str
    retention: str
    holds: str
    channel: str
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", getattr(subjects, self.constant))


MESSAGEPACK = "application/x-msgpack"
SERVE_REQUESTS: tuple[Any, ...] = get_args(ServeRequest)
SERVE_ANSWERS: tuple[Any, ...] = get_args(ServeAnswer)
# Everything that has a section of its own under invocations, each once.
SERVING: tuple[Any, ...] = tuple(dict.fromkeys((*SERVE_REQUESTS, *SERVE_ANSWERS, *get_args(Result))))
# Senders are the users that the NATS configuration knows: `operator` for people and programs, `control`, and one for
# each node.
OPERATOR = "a person or program (`operator`)"
WORKER = "the node's worker (`node-<node>`)"

CHANNELS: tuple[Channel, ...] = (
    Channel(
        "RPC",
        "{noun}.{verb}",
        "request",
        f"{OPERATOR}; {WORKER} for `worker.*` and `lease.*`",
        "control plane",
        True,
        "A command by request. The reply comes after the commit and tells the outcome.",
        replies=(Reply,),
        headers=("HEADER_TRACEPARENT",),
    ),
    Channel(
        "CMD",
        "{noun}.{verb}",
        "JetStream",
        OPERATOR,
        "control plane",
        True,
        "The same command, durable: JetStream acknowledges that it is stored; the outcome becomes a receipt under its "
        "`command_id`.",
        stream="STREAM_COMMANDS",
        headers=("HEADER_MSG_ID", "HEADER_TRACEPARENT"),
    ),
    Channel(
        "EVT",
        "{noun}.{id}.{event}",
        "JetStream",
        "relay",
        "whoever wants to follow",
        False,
        "Every event of the log, each position once and in order.",
        stream="STREAM_EVENTS",
        headers=(
            "HEADER_MSG_ID",
            "HEADER_POSITION",
            "HEADER_PREVIOUS",
            "HEADER_TOPIC",
            "HEADER_VERSION",
            "HEADER_TRACEPARENT",
        ),
    ),
    Channel(
        "WORK",
        "{node}.{work_id}",
        "JetStream",
        "control plane",
        "the node's worker",
        False,
        "There is work to claim. A hint: the claim decides.",
        bodies=(Offer,),
        stream="STREAM_WORK",
    ),
    Channel(
        "EVIDENCE",
        "{node}.{generation}.{work_id}",
        "JetStream",
        WORKER,
        "control plane",
        True,
        "A signed statement about work. Its outcome is an event: a transition, or a rejection with its reason.",
        bodies=(SignedEvidence,),
        stream="STREAM_EVIDENCE",
        headers=("HEADER_MSG_ID",),
    ),
    Channel(
        "BEAT",
        "{node}",
        "request",
        WORKER,
        "control plane",
        True,
        "The heartbeat. The reply renews the worker session and repeats open offers.",
        bodies=(Beat,),
        replies=(BeatReply,),
    ),
    Channel(
        "LIVE",
        "{node}",
        "request",
        OPERATOR,
        "the node's worker",
        False,
        "What do you hold now? The request has no body.",
        replies=(LiveAnswer,),
    ),
    Channel(
        "SERVE",
        "{node}.{generation}.{deployment_id}",
        "request",
        OPERATOR,
        "the node's worker",
        True,
        "An invocation, straight to the worker that holds the model.",
        bodies=SERVE_REQUESTS,
        replies=SERVE_ANSWERS,
        content_type=MESSAGEPACK,
    ),
    Channel(
        "QUERY",
        "{table}",
        "request",
        OPERATOR,
        "query service",
        True,
        "Rows of one projected table, with how fresh they are.",
        bodies=(Query,),
        replies=(QueryReply,),
    ),
    Channel(
        "WAKE",
        "",
        "message",
        "control plane",
        "relay, projector",
        False,
        "The last committed position, in decimal: a hint for those who tail the log. They look into the log.",
        content_type="text/plain",
    ),
    Channel(
        "WAKE_VIEW",
        "",
        "message",
        "projector",
        "query service",
        False,
        "The position that the tables have reached, in decimal: a hint for queries that wait.",
        content_type="text/plain",
    ),
)

STREAMS: tuple[Stream, ...] = (
    Stream("STREAM_COMMANDS", "work queue", "durable commands until the control plane has decided them", "CMD"),
    Stream("STREAM_EVENTS", "limits", "a copy of the log, rebuilt from Postgres at will", "EVT"),
    Stream(
        "STREAM_WORK", "limits: one message for each subject, for a day", "the last offer of each work item", "WORK"
    ),
    Stream("STREAM_EVIDENCE", "work queue", "evidence until the control plane has decided it", "EVIDENCE"),
)

HEADERS: dict[str, str] = {
    "HEADER_MSG_ID": "JetStream drops a second message with the same value within the stream's duplicate window. On an "
    "event it is the position; on what you publish, use the `command_id`.",
    "HEADER_POSITION": "The position of this event in the log, a decimal number.",
    "HEADER_PREVIOUS": "The position of the event before it; if it is not the last you saw, you missed some.",
    "HEADER_TOPIC": "The topic, which names the struct of the body.",
    "HEADER_VERSION": "The number of this event within its own stream.",
    "HEADER_TRACEPARENT": "W3C trace context, passed on from the command that caused this.",
}

PARAMETERS: dict[str, str] = {
    "noun": "What the message is about.",
    "verb": "What is asked.",
    "id": "The id behind the noun.",
    "event": "The topic without its version, words joined by `-`.",
    "node": "The node's id.",
    "node_id": "The node's id.",
    "generation": "The worker generation, a decimal string.",
    "work_id": "The work item's id.",
    "deployment_id": "The deployment's id.",
    "artifact_id": "The ArtifactSet's digest.",
    "profile_id": "The RuntimeProfile's digest.",
    "candidate_id": "The candidate's id.",
    "table": "The name of a projected table.",
}

# The streams an event may belong to, as (noun, parameter with the id behind it).
# Evidence about work that nobody knows is kept with the node that sent it.
_ARTIFACT = (("artifact", "artifact_id"),)
_PROFILE = (("profile", "profile_id"),)
_NODE = (("node", "node_id"),)
_WORK = (("work", "work_id"),)
_CANDIDATE = (("candidate", "candidate_id"),)
_DEPLOYMENT = (("deployment", "deployment_id"),)
EVENT_STREAMS: dict[str, tuple[tuple[str, str], ...]] = {
    "artifact.registered.v1": _ARTIFACT,
    "artifact.verified.v1": _ARTIFACT,
    "profile.created.v1": _PROFILE,
    "node.enrolled.v1": _NODE,
    "node.disabled.v1": _NODE,
    "node.enabled.v1": _NODE,
    "worker.registered.v1": _NODE,
    "session.lost.v1": _NODE,
    "work.requested.v1": _WORK,
    "lease.granted.v1": _WORK,
    "lease.renewed.v1": _WORK,
    "lease.ended.v1": _WORK,
    "work.progressed.v1": _WORK,
    "work.completed.v1": _WORK,
    "work.failed.v1": _WORK,
    "work.cancel_requested.v1": _WORK,
    "work.cancelled.v1": _WORK,
    "evidence.rejected.v1": _WORK + _NODE,
    "candidate.created.v1": _CANDIDATE,
    "approval.granted.v1": _CANDIDATE,
    "approval.revoked.v1": _CANDIDATE,
    "deployment.created.v1": _DEPLOYMENT,
    "deployment.retired.v1": _DEPLOYMENT,
    "residency.changed.v1": _DEPLOYMENT,
    "circuit.opened.v1": _DEPLOYMENT,
    "circuit.closed.v1": _DEPLOYMENT,
}

# What proves the sender of a command that not just any client may send.
WORKER_PROOF: dict[str, str] = {
    "worker.register": "the node's worker, with the node's `credential`",
    "worker.leave": "the node's worker, with the node's `credential`",
    "lease.claim": "the worker with the node's current generation",
    "lease.renew": "the holder of the lease, with its `token`",
    "lease.release": "the holder of the lease, with its `token`",
}


# What `result` of an accepted Reply holds, by command.
RESULTS: dict[str, dict[str, str]] = {
    "artifact.register": {"artifact_id": "the digest that names the set"},
    "artifact.verify": {"work_id": "the verification"},
    "assessment.request": {"work_id": "the assessment; later commands call it `assessment_id`"},
    "profile.create": {"profile_id": "the digest that names the profile"},
    "probe.request": {"work_id": "the probe; its candidate, if one appears, has the same id"},
    "work.cancel": {"work_id": "the work that was, or will be, cancelled"},
    "approval.grant": {"candidate_id": "the candidate", "candidate_digest": "the digest that is approved"},
    "approval.revoke": {"candidate_id": "the candidate"},
    "deployment.create": {"deployment_id": "the deployment"},
    "deployment.retire": {"deployment_id": "the deployment"},
    "job.request": {
        "work_id": "the job, or null where what was asked already holds",
        "state": "the residency's state, but for `health`",
        "joined": "true where the same job was under way and you are told its id",
    },
    "node.enrol": {"node_id": "the node"},
    "node.disable": {"node_id": "the node"},
    "node.enable": {"node_id": "the node"},
    "worker.register": {
        "generation": "the generation of this worker process",
        "session_ms": "the term of its session",
        "beat_ms": "how often to send a heartbeat",
        "lease_ms": "the term of a work lease",
    },
    "worker.leave": {},
    "lease.claim": {
        "work_id": "the work",
        "attempt": "the attempt that this lease is for",
        "refused": "the code with which the work has ended, where no lease could be granted",
        "message": "why, with `refused`",
    },
    "lease.renew": {"until_ms": "the new end on the control plane's clock", "lease_ms": "the term"},
    "lease.release": {},
    "circuit.close": {"deployment_id": "the deployment", "node_id": "the node"},
}

# Tables that can be queried, and what one row is.
TABLES: dict[str, str] = {
    "artifact": "an ArtifactSet, and the nodes that verified it",
    "profile": "a RuntimeProfile",
    "node": "a node, its newest generation and session",
    "work": "a work item of any kind, with its result",
    "candidate": "a DeploymentCandidate and its approval",
    "deployment": "a CapabilityDeployment",
    "receipt": "the stored outcome of one command, by its `command_id` as `id`; no row while there is none",
    "residency": "what the log knows of one deployment on one node; whether it is loaded now is asked live",
    "silence": "how long ago (`silent_ms`) the worker of the node `id`, in `generation`, was last heard; no row where "
    "it was not heard since the query service started",
}


def sender_of(command: str) -> str:
    return WORKER_PROOF.get(command, OPERATOR)


def event_addresses(topic: str) -> list[str]:
    """`tenure.evt.v1.work.{work_id}.lease-granted` for `lease.granted.v1`."""
    return [subjects.event_subject(f"{noun}-{{{name}}}", topic) for noun, name in EVENT_STREAMS[topic]]
