"""FakeWire: the client's bus port in memory, with tables that answer queries and commands that are scripted.

It stands for the port, not for NATS: what it does is what `services.client.wire.Wire` promises.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from projections.rows import CandidateRow, DeploymentRow, NodeRow, ProfileRow, ResidencyRow, Row, WorkRow
from schemas import subjects
from schemas.codes import Code
from schemas.live import InventoryEntry, LiveAnswer, Resident
from schemas.profiles import Limits, RuntimeProfile
from schemas.queries import Query, QueryReply
from services.client.wire import NoResponder, Published, Silent, Unreachable

ARTIFACT, PROFILE, FINGERPRINT, DIGEST = "a" * 64, "b" * 64, "c" * 64, "d" * 64
Handler = Callable[[bytes], bytes | Awaitable[bytes]]
Reaction = Callable[["FakeWire", bytes], bytes]


class FakeWire:
    """`rows` are the tables; `answers` maps a subject to a function of the payload, which may raise a wire error.

    `streams` maps a subject to the replies that come one after another; `objects` is the object store, and `stored`
    counts what was ever put there. `timeouts_s` is how long the last answer on a subject was waited for.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Row]] = {}
        self.answers: dict[str, Handler] = {}
        self.live: dict[str, list[LiveAnswer]] = {}
        self.hints: list[Published] = []
        self.streams: dict[str, list[bytes]] = {}
        self.objects: dict[tuple[str, str], bytes] = {}
        self.stored = 0
        self.sent: list[tuple[str, Any]] = []
        self.timeouts_s: dict[str, float] = {}
        self.rows_per_message = 1_000
        self.on_wait: Callable[[], None] = lambda: None
        self.closed = False

    def put(self, *rows: Row) -> None:
        names = {NodeRow: "node", WorkRow: "work", DeploymentRow: "deployment", CandidateRow: "candidate",
                 ResidencyRow: "residency", ProfileRow: "profile"}  # fmt: skip
        for row in rows:
            self.rows.setdefault(names[type(row)], {})[row.id] = row

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        self.sent.append((subject, payload))
        self.timeouts_s[subject] = timeout_s
        if subject in self.answers:
            answer = self.answers[subject](payload)
            return await answer if inspect.isawaitable(answer) else answer
        if subject.startswith(subjects.QUERY):
            return msgspec.json.encode(self._query(subject, msgspec.json.decode(payload, type=Query)))
        raise NoResponder(subject)

    def _query(self, subject: str, query: Query) -> QueryReply:
        table = [msgspec.to_builtins(row) for _, row in sorted(self.rows.get(subject.rpartition(".")[2], {}).items())]
        found = [row for row in table if all(str(row[name]) == text for name, text in query.where.items())]
        found = [row for row in found if query.after is None or row["id"] > query.after]
        if query.id is not None:
            begin = [row for row in found if row["id"].startswith(query.id) and len(query.id) >= 4]
            found = [row for row in found if row["id"] == query.id] or begin
        if min(len(found), query.limit) > self.rows_per_message:
            return QueryReply(code=Code.MESSAGE_TOO_LARGE, message="too large")
        return QueryReply(found[: query.limit], position=1, more=len(found) > query.limit)

    async def gather(
        self, subject: str, payload: bytes, timeout_s: float, enough: Callable[[bytes], bool]
    ) -> list[bytes]:
        answers = []
        for answer in self.live.get(subject.removeprefix(f"{subjects.LIVE}."), []):
            answers.append(msgspec.json.encode(answer))
            if enough(answers[-1]):
                break
        return answers

    async def replies(self, subject: str, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes]:
        self.sent.append((subject, payload))
        self.timeouts_s[subject] = timeout_s
        if subject not in self.streams:
            raise NoResponder(subject)
        for reply in self.streams[subject]:
            yield reply
        raise Silent(subject)

    async def store(self, bucket: str, name: str, body: bytes) -> None:
        self.objects[(bucket, name)] = body
        self.stored += 1

    async def fetch(self, bucket: str, name: str) -> bytes:
        if (bucket, name) not in self.objects:
            raise Unreachable(f"no object {name}")
        return self.objects.pop((bucket, name))

    async def discard(self, bucket: str, name: str) -> None:
        self.objects.pop((bucket, name), None)

    @contextlib.asynccontextmanager
    async def wakeups(self, subject: str) -> AsyncIterator[_Hints]:
        yield _Hints(self)

    async def last(self, stream: str) -> int:
        return 0

    async def seek(self, stream: str, reached: Callable[[Published], bool]) -> int:
        return 1

    async def stream(self, stream: str, subject: str, start: int, follow: bool) -> AsyncIterator[Published]:
        for hint in self.hints:
            yield hint

    async def close(self) -> None:
        self.closed = True


class _Hints:
    def __init__(self, wire: FakeWire) -> None:
        self._wire = wire

    async def next(self, timeout_s: float) -> Published | None:
        self._wire.on_wait()
        return self._wire.hints.pop(0) if self._wire.hints else None


def node(ident: str = "local", **fields: Any) -> NodeRow:
    values: dict[str, Any] = {
        "id": ident, "position": 1, "enabled": True, "session": "alive", "generation": "3", "boot_id": "boot",
        "fingerprint": FINGERPRINT, "artifact_root": "/artifacts", "capabilities": {"adapter_one": ["embedding"]},
        "environment": {}, "changed_at_ms": 1_000, **fields,
    }  # fmt: skip
    return NodeRow(**values)


def profile(ident: str = PROFILE, **limits: Any) -> ProfileRow:
    settings = RuntimeProfile("adapter_one", "embedding", limits=Limits(**limits))
    return ProfileRow(
        id=ident, position=2, adapter="adapter_one", task="embedding", assessment_id="ass0",
        profile=msgspec.to_builtins(settings), created_at_ms=1_000,
    )  # fmt: skip


def deployment(ident: str = "dep0123456789ab", **fields: Any) -> DeploymentRow:
    values: dict[str, Any] = {
        "id": ident, "position": 2, "name": "search", "candidate_id": "can0", "candidate_digest": DIGEST,
        "artifact_id": ARTIFACT, "profile_id": PROFILE, "fingerprint": FINGERPRINT, "capability": "embedding",
        "node_ids": ["local"], "retired": False, "created_at_ms": 1_000, **fields,
    }  # fmt: skip
    return DeploymentRow(**values)


def residency(state: str = "resident", generation: str = "3", ident: str = "dep0123456789ab") -> ResidencyRow:
    return ResidencyRow(
        id=f"{ident}.local", position=3, deployment_id=ident, node_id="local", state=state, generation=generation,
        work_id="work1", cause="load requested", changed_at_ms=2_000,
    )  # fmt: skip


def work(stage: str = "completed", ident: str = "work0123456789", **fields: Any) -> WorkRow:
    values: dict[str, Any] = {
        "id": ident, "position": 5, "kind": "load", "node_id": "local", "stage": stage, "attempt": 1,
        "generation": "3", "lease_until_ms": None, "artifact_id": ARTIFACT, "profile_id": PROFILE,
        "deployment_id": "dep0123456789ab", "adapter": None, "cancel_requested": False, "code": None, "message": "",
        "result": {}, "rejected_evidence": 0, "requested_at_ms": 1_000, "deadline_ms": 2_000, "ended_at_ms": None,
        **fields,
    }  # fmt: skip
    return WorkRow(**values)


def live_answer(*entries: InventoryEntry, generation: str = "3", serving: bool = True) -> LiveAnswer:
    residents = [Resident(entry, 5_000, 4_242, 1, 17, 123_456_789) for entry in entries]
    return LiveAnswer("local", generation, "boot", serving, residents)


def entry(**fields: Any) -> InventoryEntry:
    values: dict[str, Any] = {
        "deployment_id": "dep0123456789ab", "artifact_id": ARTIFACT, "profile_id": PROFILE,
        "fingerprint": FINGERPRINT, "generation": "3", "state": "resident", **fields,
    }  # fmt: skip
    return InventoryEntry(**values)
