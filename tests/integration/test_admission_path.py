"""A device that is too full, through the real path: the claim's answer, the log and the table name both numbers.

A scripted worker speaks for a node with a GPU that this machine need not have: it registers, signs its evidence and
tells with each claim what it has just measured.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas import subjects
from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.devices import DeviceReading
from schemas.environments import fingerprint
from schemas.evidence import Evidence, Statement
from schemas.profiles import RuntimeProfile
from schemas.queries import Query
from schemas.replies import Reply
from schemas.work import WorkOrder
from tests.plane import ControlPlane, control_plane, eventually
from tests.unit.domain import statements as says
from tests.unit.domain.story import ADAPTER, CREDENTIAL, TASK, environment
from worker.duty.outbox import public_key, sign

NODE = "gpu"
GIB = 1024**3
WEIGHTS = 4 * GIB
CUDA = RuntimeProfile(adapter=ADAPTER, task=TASK, device="cuda")
FILES = [FileEntry("config.json", 100, "1" * 64), FileEntry("model.safetensors", WEIGHTS, "2" * 64)]


class Scripted:
    """One node's worker, as far as the control plane can tell."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.key = Ed25519PrivateKey.generate()
        self.numbers = itertools.count(1)
        self.environment = environment()

    async def ask(self, command: str, **fields: Any) -> Reply:
        body = {"command_id": f"c{next(self.numbers)}", "actor": "test", **fields}
        return await self.plane.send(command, msgspec.json.encode(body))

    async def accepted(self, command: str, /, **fields: Any) -> dict[str, Any]:
        reply = await self.ask(command, **fields)
        assert reply.outcome == "accepted", reply
        return reply.result

    async def register(self) -> None:
        digest = hashlib.sha256(CREDENTIAL.encode()).hexdigest()
        await self.accepted("node.enrol", node_id=NODE, credential_sha256=digest)
        await self.accepted(
            "worker.register", node_id=NODE, credential=CREDENTIAL, boot_id="boot", environment=self.environment,
            capabilities={ADAPTER: [TASK]}, session_public_key=public_key(self.key), artifact_root="/srv", inventory=[],
        )  # fmt: skip

    async def claim(self, work_id: str, *devices: DeviceReading) -> Reply:
        return await self.ask("lease.claim", work_id=work_id, node_id=NODE, generation="1", devices=devices)

    async def finish(self, work_id: str, statement: Statement) -> None:
        order = msgspec.convert((await self.claim(work_id)).result, WorkOrder)
        number = next(self.numbers)  # they grow, which is all that is asked of them
        evidence = Evidence(
            evidence_id=f"e{number}", node_id=NODE, generation="1", number=number,
            work_id=work_id, attempt=order.attempt, seen_at_ms=1, statement=statement,
        )  # fmt: skip
        subject = subjects.evidence_subject(NODE, "1", work_id)
        await self.plane.nc.jetstream().publish(subject, msgspec.json.encode(sign(evidence, self.key)))

        async def ended() -> bool:
            return str((await self.work(work_id))["stage"]) == "completed"

        await eventually(ended, f"{work_id} is completed")

    async def work(self, work_id: str) -> dict[str, Any]:
        """Its row, as new as the log."""
        query = Query(where={"id": work_id}, min_position=await self.plane.log.last_position())
        return dict((await self.plane.reader.answer("work", query)).rows[0])

    async def probe(self) -> str:
        """A probe of the set on the device, up to its request."""
        artifact_id = (await self.accepted("artifact.register", name="big", files=FILES))["artifact_id"]
        place = {"artifact_id": artifact_id, "node_id": NODE}
        verify = await self.accepted("artifact.verify", **place, location="models/mini")
        await self.finish(verify["work_id"], says.verified(len(FILES), sum(file.size for file in FILES)))
        assess = (await self.accepted("assessment.request", **place, adapter=ADAPTER, task=TASK))["work_id"]
        await self.finish(assess, says.assessed(fingerprint(self.environment)))
        profile = (await self.accepted("profile.create", assessment_id=assess, profile=CUDA))["profile_id"]
        return str((await self.accepted("probe.request", assessment_id=assess, profile_id=profile))["work_id"])


@pytest.fixture
async def worker(postgres_dsn: str, nats_url: str) -> AsyncIterator[Scripted]:
    async with control_plane(postgres_dsn, nats_url) as plane:
        made = Scripted(plane)
        await made.register()
        yield made


def device(used: int) -> DeviceReading:
    return DeviceReading(0, total_bytes=8 * GIB, used_bytes=used, own_bytes=0, external_bytes=used)


async def test_a_refusal_names_what_is_needed_and_what_is_available(worker: Scripted) -> None:
    work_id = await worker.probe()
    refused = await worker.claim(work_id, device(used=5 * GIB))
    needed = 6 * GIB + 150  # one and a half times the set's size
    available = 3 * GIB - worker.plane.control.folded.world.limits.device_reserve_bytes
    assert refused.result["refused"] == Code.DEVICE_MEMORY_SHORT
    assert "token" not in refused.result
    row = await worker.work(work_id)
    assert (row["stage"], row["code"]) == ("failed", Code.DEVICE_MEMORY_SHORT)
    for message in (refused.result["message"], row["message"]):
        assert f"{needed} bytes are needed" in message
        assert f"{available} bytes are available" in message
        assert f"{5 * GIB} of {8 * GIB} bytes are in use" in message


async def test_what_counts_is_what_was_measured_for_this_claim(worker: Scripted) -> None:
    """The same device with room in it: the same work is granted, on that reading alone."""
    work_id = await worker.probe()
    granted = await worker.claim(work_id, device(used=GIB))
    assert msgspec.convert(granted.result, WorkOrder).work_id == work_id
    unmeasured = await worker.probe()
    refused = await worker.claim(unmeasured)
    assert refused.result["refused"] == Code.DEVICE_MEMORY_SHORT
    assert "how much is free is not known" in refused.result["message"]
