"""The ways of an invocation with a real worker and a real server: in pieces, cancelled, and too large for a message.

The client side is the one that people use, with an operator's login; the worker has its node's.
"""

from __future__ import annotations

import asyncio
import json
import uuid
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import pytest_asyncio
from nats.js.errors import NotFoundError

from projections.rows import DeploymentRow
from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.evidence import Loaded
from schemas.profiles import GenerationSettings, Limits, RuntimeProfile, profile_digest
from schemas.serving import Answer, Cancelled, payload_store
from schemas.tasks.text import Embedded, EmbedRequest, Generated, GenerateRequest, TextChunk
from schemas.tokens import MESSAGE_BYTES_MAX
from schemas.work import JobSpec
from services.client.errands import Errands
from services.client.invoking import Invoker
from services.client.nats_wire import NatsWire
from services.control.payloads import PayloadStores
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL, OPERATOR
from services.showcase import generation
from tests.fake_wire import deployment
from tests.integration.fake_control import FakeControl
from tests.integration.worker_process import WorkerProcess, artifact_id, copy_model, manifest

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODE = "node-a"
POSITIONS = 4_096
WRITES = RuntimeProfile("transformers_text", "text_generation", generation=GenerationSettings(new_tokens_max=3_000))
EMBEDS = RuntimeProfile(
    "sentence_transformers",
    "embedding",
    max_length=16,
    limits=Limits(items_max=1_000, characters_max=4_000_000, invoke_ms=120_000),
)
WAIT_S = 60.0


@dataclass
class Bench:
    control: FakeControl
    wire: NatsWire
    worker: WorkerProcess
    root: Path

    async def load(self, folder: str, profile: RuntimeProfile) -> DeploymentRow:
        files: list[FileEntry] = await asyncio.to_thread(manifest, self.root / folder)
        ident, artifact = uuid.uuid4().hex, artifact_id(files)
        spec = JobSpec("load", ident, artifact, profile_digest(profile))
        item = await self.control.order("load", spec, files=files, location=folder, profile=profile)
        outcome = await self.control.outcome(item)
        assert isinstance(outcome, Loaded), outcome
        return deployment(
            ident, artifact_id=artifact, profile_id=profile_digest(profile), capability=profile.task, node_ids=[NODE]
        )

    def invoker(self, row: DeploymentRow) -> Invoker:
        return Invoker(self.wire, row, [(NODE, str(self.control.generation))])

    async def stored(self) -> int:
        """How many objects lie in the node's store."""
        store = await self.control.client.jetstream().object_store(payload_store(NODE))
        try:
            return len(await store.list(ignore_deletes=True))
        except NotFoundError:  # how the library says that it is empty
            return 0

    async def until(self, row: DeploymentRow, in_flight: int) -> None:
        """Until so many of the deployment are in flight on the worker."""
        async with asyncio.timeout(WAIT_S):
            while True:
                held = next(
                    each for each in (await self.control.live()).residents if each.entry.deployment_id == row.id
                )
                if held.in_flight == in_flight:
                    return
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    folder = tmp_path_factory.mktemp("ways")
    root = folder / "artifacts"
    root.mkdir()
    copy_model(root, "minilm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
        generation.build("llama", root / "llama")
    config = root / "llama" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": POSITIONS}))
    server = NatsServer(folder / "bus")
    await server.start()
    control = FakeControl(NODE)
    await control.open(server.url(CONTROL))
    worker = await WorkerProcess.start(server, NODE, root, folder / "data", fork_server="on")
    wire = await NatsWire.connect(server.address, OPERATOR, server.password(OPERATOR), "test")
    try:
        await control.registered(1)
        await PayloadStores(control.client, lambda: [NODE]).step()
        yield Bench(control, wire, worker, root)
        assert await worker.stop() == 0, worker.output()
    finally:
        await wire.close()
        await worker.kill()
        await control.close()
        await server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def writer(bench: Bench) -> DeploymentRow:
    return await bench.load("llama", WRITES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedder(bench: Bench) -> DeploymentRow:
    return await bench.load("minilm", EMBEDS)


def generated(answer: object) -> Generated:
    assert isinstance(answer, Answer), answer
    assert isinstance(answer.result, Generated)
    return answer.result


async def test_pieces_joined_are_the_answer(bench: Bench, writer: DeploymentRow) -> None:
    request = GenerateRequest(prompt="The quick brown fox", new_tokens_max=40, stream=True)
    pieces = [piece async for piece in bench.invoker(writer).stream(request)]
    chunks = [piece for piece in pieces if isinstance(piece, TextChunk)]
    assert len(chunks) > 3
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    whole = generated(pieces[-1])
    assert "".join(chunk.text for chunk in chunks) == whole.text
    alone = await bench.invoker(writer).invoke(GenerateRequest(prompt="The quick brown fox", new_tokens_max=40))
    assert generated(alone) == whole


async def test_a_cancel_ends_a_long_text_where_it_is(bench: Bench, writer: DeploymentRow) -> None:
    request = GenerateRequest(prompt="x", stream=True, invocation_id="long-one")
    invoker = bench.invoker(writer)
    seen: list[TextChunk] = []
    async for piece in invoker.stream(request):
        if isinstance(piece, TextChunk):
            seen.append(piece)
            if len(seen) == 3:
                assert await invoker.cancel("long-one")
        else:
            whole = generated(piece)
    assert whole.finish_reason == "cancelled"
    assert 3 <= whole.output_tokens < 3_000
    assert whole.text.startswith("".join(chunk.text for chunk in seen[:3]))
    assert not await invoker.cancel("long-one")


async def test_who_leaves_a_stream_leaves_no_work_behind(bench: Bench, writer: DeploymentRow) -> None:
    stream = bench.invoker(writer).stream(GenerateRequest(prompt="x", stream=True))
    assert isinstance(await anext(stream), TextChunk)
    await stream.aclose()
    await bench.until(writer, in_flight=0)
    after = await bench.invoker(writer).invoke(GenerateRequest(prompt="y", new_tokens_max=2))
    assert generated(after).output_tokens <= 2


async def test_a_deadline_ends_a_long_text_and_the_next_is_served(bench: Bench, writer: DeploymentRow) -> None:
    with pytest.raises(Refusal) as caught:
        await bench.invoker(writer).invoke(GenerateRequest(prompt="x", deadline_ms=300))
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    after = await bench.invoker(writer).invoke(GenerateRequest(prompt="y", new_tokens_max=2, deadline_ms=30_000))
    assert generated(after).output_tokens <= 2


async def test_a_request_and_an_answer_over_the_limit_go_by_reference(bench: Bench, embedder: DeploymentRow) -> None:
    texts = [f"{number} " + "word " * 310 for number in range(700)]  # 1.1 MB, and 700 x 384 x 4 bytes come back
    assert len("".join(texts)) > MESSAGE_BYTES_MAX
    answer = await bench.invoker(embedder).invoke(EmbedRequest(texts, deadline_ms=120_000))
    result = answer.result
    assert isinstance(result, Embedded)
    assert len(result.vectors) > MESSAGE_BYTES_MAX
    alone = (await bench.invoker(embedder).invoke(EmbedRequest([texts[7]]))).result
    assert isinstance(alone, Embedded)
    row = np.frombuffer(result.vectors, "<f4").reshape(result.rows, -1)[7]
    assert float(np.abs(row - np.frombuffer(alone.vectors, "<f4")).max()) < 1e-4
    assert await bench.stored() == 0  # both objects are gone


async def test_a_large_request_that_is_refused_is_not_left(bench: Bench, embedder: DeploymentRow) -> None:
    many = EmbedRequest(["word " * 210] * 1_001)
    for row, code in ((embedder, Code.INPUT_TOO_LARGE), (deployment("nowhere"), Code.NOT_RESIDENT)):
        with pytest.raises(Refusal) as caught:
            await bench.invoker(row).invoke(many)
        assert caught.value.code is code
        assert await bench.stored() == 0


async def test_who_cancels_a_call_leaves_no_work_behind(bench: Bench, writer: DeploymentRow) -> None:
    replies: list[bytes] = []

    class Listening(NatsWire):
        async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
            replies.append(await super().request(subject, payload, timeout_s))
            return replies[-1]

    errands, targets = Errands(), [(NODE, str(bench.control.generation))]
    invoker = Invoker(Listening(bench.wire.nats), writer, targets, errands=errands)
    call = asyncio.create_task(invoker.invoke(GenerateRequest(prompt="x", deadline_ms=60_000)))
    await bench.until(writer, in_flight=1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await errands.done()
    assert replies == [msgspec.msgpack.encode(Cancelled(True))]
    await bench.until(writer, in_flight=0)


async def test_a_reference_to_other_bytes_is_refused(bench: Bench, embedder: DeploymentRow) -> None:
    class Forger(NatsWire):
        async def store(self, bucket: str, name: str, body: bytes) -> None:
            await super().store(bucket, name, body[:-1] + bytes([body[-1] ^ 1]))

    forger = Forger(bench.wire.nats)
    texts = ["word " * 1_000] * 300
    with pytest.raises(Refusal) as caught:
        await Invoker(forger, embedder, [(NODE, str(bench.control.generation))]).invoke(EmbedRequest(texts))
    assert caught.value.code is Code.PAYLOAD_UNAVAILABLE
    assert "announced" in caught.value.message
