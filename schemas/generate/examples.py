"""Examples made from real structs, so that they are valid by construction and stay so.

Ids, digests and times are fixed and made up; digests that name content are computed from the content shown. The
signing key of the evidence example is the public sequence 0, 1, 2 … 31 and signs nothing else.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas import commands, events, evidence, live, queries, replies, work
from schemas.artifacts import FileEntry, manifest_digest
from schemas.codes import ADVICE, Code
from schemas.environments import Device, RuntimeEnvironment, fingerprint
from schemas.live import inventory_digest
from schemas.profiles import Limits, RuntimeProfile, profile_digest
from schemas.tasks.text import EmbedRequest

NODE = "lab1"
GENERATION = "7"
ACTOR = "anna"
AT_MS = 1_767_225_600_000
SESSION_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SESSION_PUBLIC_KEY = b64encode(SESSION_KEY.public_key().public_bytes_raw()).decode()

ENVIRONMENT = RuntimeEnvironment(
    python="3.11.9",
    platform="linux-x86_64",
    worker="0.1.0",
    packages={"torch": "2.6.0", "transformers": "5.0.0"},
    adapters={"sentence_transformers": "1"},
    devices=[Device(kind="cpu", index=0, name="x86_64")],
)
FILES = [
    FileEntry("config.json", 612, "6c0eb7bf85ae1ce1c3bde77a2fe4e5d0c0cd0ee3f9a3d0f1b8c1cd2ec1b5f3a4"),
    FileEntry("model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
]
PROFILE = RuntimeProfile(
    adapter="sentence_transformers", task="embedding", max_length=256, pooling="mean", limits=Limits(batch_max=16)
)
ARTIFACT_ID = manifest_digest(FILES)
PROFILE_ID = profile_digest(PROFILE)
FINGERPRINT = fingerprint(ENVIRONMENT)
CANDIDATE_DIGEST = "1f" * 32
ASSESSMENT_ID, PROBE_ID, LOAD_ID, DEPLOYMENT_ID = "as_01", "pr_01", "ld_01", "dp_01"
LEASE_TOKEN = "3q2-7wAAAAAAAAAAAAAAAAAAAAAAAAAA"  # noqa: S105 - shown as an example, opens nothing
CREDENTIAL = "example-credential-of-lab1"

HELD = live.InventoryEntry(DEPLOYMENT_ID, ARTIFACT_ID, PROFILE_ID, FINGERPRINT, GENERATION, "resident")
OFFER = work.Offer(work_id=LOAD_ID, node_id=NODE, kind="load", attempt=1)


def _bodies() -> dict[str, dict[str, Any]]:
    return {
        "artifact.register": {"name": "all-minilm-l6-v2", "files": FILES},
        "artifact.verify": {"artifact_id": ARTIFACT_ID, "node_id": NODE, "location": "all-minilm-l6-v2"},
        "assessment.request": {
            "artifact_id": ARTIFACT_ID,
            "node_id": NODE,
            "adapter": PROFILE.adapter,
            "task": PROFILE.task,
        },
        "profile.create": {"assessment_id": ASSESSMENT_ID, "profile": PROFILE},
        "probe.request": {"assessment_id": ASSESSMENT_ID, "profile_id": PROFILE_ID},
        "work.cancel": {"work_id": PROBE_ID, "reason": "wrong profile"},
        "approval.grant": {"candidate_id": PROBE_ID, "candidate_digest": CANDIDATE_DIGEST, "note": "checked"},
        "approval.revoke": {"candidate_id": PROBE_ID, "note": "replaced"},
        "deployment.create": {
            "name": "search-embeddings",
            "candidate_id": PROBE_ID,
            "candidate_digest": CANDIDATE_DIGEST,
            "capability": PROFILE.task,
            "node_ids": [NODE],
        },
        "deployment.retire": {"deployment_id": DEPLOYMENT_ID},
        "job.request": {"deployment_id": DEPLOYMENT_ID, "node_id": NODE, "verb": "load"},
        "node.enrol": {"node_id": NODE, "credential_sha256": "5a" * 32},
        "node.disable": {"node_id": NODE, "reason": "maintenance"},
        "node.enable": {"node_id": NODE},
        "worker.register": {
            "node_id": NODE,
            "credential": CREDENTIAL,
            "boot_id": "b_01",
            "environment": ENVIRONMENT,
            "capabilities": {PROFILE.adapter: [PROFILE.task]},
            "session_public_key": SESSION_PUBLIC_KEY,
            "artifact_root": "/var/lib/tenure/artifacts",
            "inventory": [],
        },
        "worker.leave": {"node_id": NODE, "generation": GENERATION, "credential": CREDENTIAL},
        "lease.claim": {"work_id": LOAD_ID, "node_id": NODE, "generation": GENERATION},
        "lease.renew": {"work_id": LOAD_ID, "generation": GENERATION, "attempt": 1, "token": LEASE_TOKEN},
        "lease.release": {"work_id": LOAD_ID, "generation": GENERATION, "attempt": 1, "token": LEASE_TOKEN},
        "circuit.close": {"deployment_id": DEPLOYMENT_ID, "node_id": NODE},
    }


def command_examples() -> Mapping[str, commands.Command]:
    """One command for each subject, without the defaults of optional fields."""
    bodies = _bodies()
    return {
        name: struct(
            command_id=f"c_{number:02}", actor=f"worker:{NODE}" if name in commands.RPC_ONLY else ACTOR, **bodies[name]
        )
        for number, (name, struct) in enumerate(commands.BY_SUBJECT.items(), 1)
    }


STATEMENT = evidence.Evidence(
    evidence_id="ev_7_1",
    node_id=NODE,
    generation=GENERATION,
    number=1,
    work_id="vf_01",
    attempt=1,
    seen_at_ms=AT_MS,
    statement=evidence.Verified("all-minilm-l6-v2", len(FILES), sum(entry.size for entry in FILES), 148.2),
)
_PAYLOAD = msgspec.json.encode(STATEMENT)
SIGNED = evidence.SignedEvidence(_PAYLOAD.decode(), b64encode(SESSION_KEY.sign(_PAYLOAD)).decode())

LEASE_GRANTED = events.LeaseGranted(
    at_ms=AT_MS,
    command_id="c_17",
    actor=f"worker:{NODE}",
    work_id=LOAD_ID,
    node_id=NODE,
    generation=GENERATION,
    attempt=1,
    token_sha256="0c" * 32,
    until_ms=AT_MS + 30_000,
    deadline_ms=AT_MS + 150_000,
)
ORDER = work.WorkOrder(
    work_id=LOAD_ID,
    kind="load",
    attempt=1,
    generation=GENERATION,
    token=LEASE_TOKEN,
    lease_ms=30_000,
    until_ms=AT_MS + 30_000,
    deadline_ms=AT_MS + 150_000,
    spec=work.JobSpec("load", DEPLOYMENT_ID, ARTIFACT_ID, PROFILE_ID),
    location="all-minilm-l6-v2",
    files=FILES,
    profile=PROFILE,
)
REJECTED = replies.Reply(
    outcome="rejected",
    command_id="c_07",
    position=42,
    code=Code.APPROVAL_MISMATCH,
    message="The digest is not the candidate's.",
    advice=ADVICE[Code.APPROVAL_MISMATCH],
)
QUERY = queries.Query(where={"node_id": NODE}, limit=10, min_position=42)
BEAT = live.Beat(NODE, GENERATION, "b_01", inventory_digest([HELD]), [])
BEAT_REPLY = live.BeatReply(fenced=False, session_ms=10_000, beat_ms=1_000, confirmed=[], offers=[OFFER], cancelled=[])
LIVE_ANSWER = live.LiveAnswer(
    NODE,
    GENERATION,
    "b_01",
    serving=True,
    residents=[live.Resident(HELD, AT_MS, child_pid=4711, in_flight=0, invocations=12, process_bytes=412_000_000)],
)
EMBED = EmbedRequest(texts=["a first text", "a second"], deadline_ms=5_000)


def shown(value: Any, without_defaults: bool = False) -> str:
    """The value as indented JSON; optional fields at their default left out where asked."""
    plain = msgspec.to_builtins(value)
    if without_defaults:
        required = {one.encode_name for one in msgspec.structs.fields(value) if one.required}
        plain = {key: item for key, item in plain.items() if key in required or item not in (None, "", [], {})}
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()


def type_path(value: Any) -> str:
    """How an example names its struct in bus.md: `schemas.commands.RegisterArtifact`."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
