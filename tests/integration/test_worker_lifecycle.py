"""The whole chain on real model files: verify, assess, probe, load, invoke, health, drain, unload.

One worker process serves the module; each test has a deployment of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import pytest_asyncio

from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.environments import fingerprint
from schemas.evidence import (
    Assessed,
    Drained,
    HealthChecked,
    Loaded,
    Probed,
    Unloaded,
    Verified,
    WorkCancelled,
    WorkFailed,
)
from schemas.profiles import Limits, RuntimeProfile, profile_digest
from schemas.serving import Answer, Failure
from schemas.tasks.text import Embedded, EmbedRequest
from schemas.work import AssessSpec, JobSpec, ProbeSpec, VerifySpec
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL
from tests.integration.fake_control import FakeControl, Item
from tests.integration.worker_process import WorkerProcess, artifact_id, copy_model, manifest
from worker.adapters.registry import capabilities
from worker.launch.processes import identify

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROFILE = RuntimeProfile(adapter="sentence_transformers", task="embedding", prompts={"query": "query: "})
TEXTS = ["A short one.", "The quick brown fox jumps over the lazy dog. " * 12, "", "schön, 漢字, 🦊", "x"]


@dataclass
class Bench:
    control: FakeControl
    worker: WorkerProcess
    root: Path
    files: list[FileEntry]
    way: str

    @property
    def artifact(self) -> str:
        return artifact_id(self.files)

    async def job(self, verb: str, deployment_id: str, profile: RuntimeProfile = PROFILE, **changes: object) -> Item:
        spec = JobSpec(verb, deployment_id, self.artifact, profile_digest(profile))  # type: ignore[arg-type]
        order: dict[str, object] = {"files": self.files, "location": "minilm", "profile": profile, **changes}
        return await self.control.order(verb, spec, **order)  # type: ignore[arg-type]

    async def load(self, profile: RuntimeProfile = PROFILE) -> str:
        deployment_id = uuid.uuid4().hex
        item = await self.job("load", deployment_id, profile)
        outcome = await self.control.outcome(item)
        assert isinstance(outcome, Loaded), outcome
        return deployment_id

    async def unload(self, deployment_id: str) -> Unloaded:
        outcome = await self.control.outcome(await self.job("unload", deployment_id))
        assert isinstance(outcome, Unloaded), outcome
        return outcome

    async def verify(self, location: str, files: list[FileEntry]) -> object:
        spec = VerifySpec(artifact_id(files), location)
        return await self.control.outcome(await self.control.order("verify", spec, files=files, location=location))

    async def assess(self, location: str, adapter: str = "sentence_transformers") -> Assessed:
        files = manifest(self.root / location)
        spec = AssessSpec(artifact_id(files), adapter, "embedding")
        item = await self.control.order("assess", spec, files=files, location=location)
        outcome = await self.control.outcome(item)
        assert isinstance(outcome, Assessed), outcome
        return outcome


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["forked", "fresh"])
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    """A worker that copies model processes from a fork server, and one that starts an interpreter for each."""
    folder = tmp_path_factory.mktemp("worker")
    server = NatsServer(folder / "bus")
    await server.start()
    control = FakeControl("node-a")
    await control.open(server.url(CONTROL))
    root = folder / "artifacts"
    root.mkdir()
    files = copy_model(root, "minilm")
    worker = await WorkerProcess.start(
        server, "node-a", root, folder / "data", fork_server="on" if request.param == "forked" else "off"
    )
    try:
        await control.registered(1)
        yield Bench(control, worker, root, files, request.param)
        assert await worker.stop() == 0, worker.output()
        assert control.left == ["1"]
    finally:
        await worker.kill()
        await control.close()
        await server.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def resident(bench: Bench) -> str:
    """A deployment that stays loaded for tests that only invoke it."""
    return await bench.load()


def vectors_of(answer: object) -> np.ndarray:
    result = embedded(answer)
    return np.frombuffer(result.vectors, dtype="<f4").reshape(result.rows, result.dimensions)


def embedded(answer: object) -> Embedded:
    assert isinstance(answer, Answer), answer
    assert isinstance(answer.result, Embedded)
    return answer.result


async def test_registration_tells_the_environment(bench: Bench) -> None:
    registration = bench.control.registrations[0]
    assert registration.capabilities == capabilities()
    assert registration.capabilities["sentence_transformers"] == ["embedding"]
    assert registration.environment.packages["torch"]
    assert registration.environment.devices[0].kind == "cpu"
    assert registration.inventory == []


async def test_parent_imports_no_torch(bench: Bench) -> None:
    assert "libtorch" not in bench.worker.mapped_files()


async def test_verify(bench: Bench) -> None:
    outcome = await bench.verify("minilm", bench.files)
    assert isinstance(outcome, Verified)
    assert outcome.files == len(bench.files)
    assert outcome.bytes == sum(entry.size for entry in bench.files)


async def test_verify_names_the_file_and_both_digests(bench: Bench) -> None:
    folder = bench.root / "changed"
    folder.mkdir()
    (folder / "a.txt").write_text("before")
    files = manifest(folder)
    (folder / "a.txt").write_text("after!")
    outcome = await bench.verify("changed", files)
    assert isinstance(outcome, WorkFailed)
    assert outcome.code == Code.ARTIFACT_DIGEST_MISMATCH
    for part in ("a.txt", files[0].sha256, manifest(folder)[0].sha256):
        assert part in outcome.message


async def test_assess(bench: Bench) -> None:
    outcome = await bench.assess("minilm")
    assert outcome.compatible, outcome.reasons
    assert outcome.fingerprint == fingerprint(bench.control.registrations[0].environment)
    assert (outcome.architecture, outcome.dimensions, outcome.max_length) == ("BertModel", 384, 256)
    assert outcome.parameters == 22_713_216
    assert outcome.weights_bytes == 90_868_376


async def test_assess_knows_no_other_adapter(bench: Bench) -> None:
    outcome = await bench.assess("minilm", adapter="vllm")
    assert not outcome.compatible
    assert [reason.code for reason in outcome.reasons] == [Code.RUNTIME_INCOMPATIBLE]
    assert "vllm" in outcome.reasons[0].message


async def test_probe_proves_isolation_and_gives_memory_back(bench: Bench) -> None:
    here = fingerprint(bench.control.registrations[0].environment)
    spec = ProbeSpec(bench.artifact, profile_digest(PROFILE), "assessment-1", here)
    item = await bench.control.order("probe", spec, files=bench.files, location="minilm", profile=PROFILE)
    outcome = await bench.control.outcome(item)
    assert isinstance(outcome, Probed), outcome
    assert item.stages == ["preparing", "loading", "healthchecking", "ready", "unloading"]
    assert outcome.fingerprint == here
    assert outcome.health.capability
    assert outcome.health.output_dimensions == 384
    assert outcome.offline.proven, outcome.offline
    assert {attempt.action for attempt in outcome.offline.attempts} >= {
        "tcp_connect", "udp_send", "unix_connect", "resolve_name", "read_outside", "write_outside", "run_program",
    }  # fmt: skip
    memory = outcome.memory
    assert memory.process_loaded.bytes is not None
    assert memory.process_before.bytes is not None
    assert memory.process_loaded.bytes > memory.process_before.bytes > 0
    assert memory.process_after.bytes == 0
    assert memory.reclaimed == memory.process_private_loaded
    weights = next(entry.size for entry in bench.files if entry.path == "model.safetensors")
    assert weights < (memory.reclaimed.bytes or 0) <= memory.process_loaded.bytes
    assert memory.reclaim_complete
    assert memory.device_used_loaded.unavailable
    assert outcome.child_exit_code == 0
    assert outcome.started == bench.way
    assert identify(outcome.child_pid) is None


async def test_probe_refuses_another_environment(bench: Bench) -> None:
    spec = ProbeSpec(bench.artifact, profile_digest(PROFILE), "assessment-1", "0" * 64)
    item = await bench.control.order("probe", spec, files=bench.files, location="minilm", profile=PROFILE)
    outcome = await bench.control.outcome(item)
    assert isinstance(outcome, WorkFailed)
    assert outcome.code == Code.ENVIRONMENT_CHANGED


async def test_load_refuses_truncated_weights(bench: Bench) -> None:
    copy_model(bench.root, "truncated")
    weights = bench.root / "truncated" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 4_096)
    outcome = await bench.control.outcome(await bench.job("load", uuid.uuid4().hex, location="truncated"))
    assert isinstance(outcome, WorkFailed)
    assert outcome.code == Code.ARTIFACT_DIGEST_MISMATCH
    assert "model.safetensors" in outcome.message
    # The same bytes registered as they are: the header tells that they are not whole.
    assessed = await bench.assess("truncated")
    assert not assessed.compatible
    assert "model.safetensors" in assessed.reasons[0].message


async def test_embeddings_equal_the_library(bench: Bench, resident: str) -> None:
    prompts = {None: None, "query": "query: "}

    def encode() -> dict[str | None, np.ndarray]:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(bench.root / "minilm"), device="cpu", local_files_only=True)
        return {name: model.encode(TEXTS, prompt=prompt, normalize_embeddings=True) for name, prompt in prompts.items()}

    # In a thread: beats must be answered meanwhile, or the worker rightly stops itself.
    expected = await asyncio.to_thread(encode)
    for prompt_name, theirs in expected.items():
        mine = vectors_of(await bench.control.invoke(resident, EmbedRequest(TEXTS, prompt_name)))
        assert mine.shape == theirs.shape
        assert np.sum(mine * theirs, axis=1).min() >= 0.9999
    # Alone and among longer texts: padding changes nothing that matters.
    alone = vectors_of(await bench.control.invoke(resident, EmbedRequest([TEXTS[0]])))
    among = vectors_of(await bench.control.invoke(resident, EmbedRequest(TEXTS)))
    assert float(alone[0] @ among[0]) >= 0.9999


async def test_concurrent_invocations_each_get_their_own(bench: Bench, resident: str) -> None:
    texts = [f"number {index} " * (1 + index % 7) for index in range(40)]
    answers = await asyncio.gather(*(bench.control.invoke(resident, EmbedRequest([text])) for text in texts))
    together = vectors_of(await bench.control.invoke(resident, EmbedRequest(texts)))
    for answer, expected in zip(answers, together, strict=True):
        assert float(vectors_of(answer)[0] @ expected) >= 0.9999


async def test_tokens_and_truncation_are_told(bench: Bench, resident: str) -> None:
    answer = await bench.control.invoke(resident, EmbedRequest(["one", "word " * 2_000]))
    assert isinstance(answer, Answer)
    result = embedded(answer)
    assert result.tokens == [3, 2_002]
    assert result.truncated == [False, True]
    assert (answer.artifact_id, answer.generation) == (bench.artifact, "1")


async def test_no_texts_give_no_rows(bench: Bench, resident: str) -> None:
    answer = await bench.control.invoke(resident, EmbedRequest([]))
    result = embedded(answer)
    assert (result.rows, result.dimensions, result.vectors) == (0, 384, b"")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (EmbedRequest(["x"], "nonsense"), Code.INPUT_INVALID),
        (EmbedRequest(["x"] * 257), Code.INPUT_TOO_LARGE),
        (b"\x00garbage", Code.INPUT_INVALID),
        (msgspec.msgpack.encode({"type": "embed", "texts": [1]}), Code.INPUT_INVALID),
        (msgspec.msgpack.encode({"type": "embed", "texts": ["a"], "more": 1}), Code.INPUT_INVALID),
        (EmbedRequest(["word " * 200] * 200, deadline_ms=1), Code.DEADLINE_EXCEEDED),
    ],
)
async def test_refused_input(bench: Bench, resident: str, request_: EmbedRequest | bytes, code: Code) -> None:
    answer = await bench.control.invoke(resident, request_)
    assert isinstance(answer, Failure)
    assert answer.code == code
    assert answer.advice


async def test_unknown_deployment_is_not_resident(bench: Bench) -> None:
    answer = await bench.control.invoke("nothing-here", EmbedRequest(["x"]))
    assert isinstance(answer, Failure)
    assert answer.code == Code.NOT_RESIDENT


async def test_the_model_process_is_started_the_way_it_was_set(bench: Bench, resident: str) -> None:
    held = {one.entry.deployment_id: one.child_pid for one in (await bench.control.live()).residents}
    process = psutil.Process(held[resident])
    assert (process.name(), process.ppid()) == ("tenure-model", bench.worker.process.pid)
    program = "worker.launch.fork_server" if bench.way == "forked" else "worker.model.child_main"
    assert program in process.cmdline()


async def test_two_loads_at_once_load_once_then_drain_and_unload(bench: Bench, resident: str) -> None:
    deployment_id = uuid.uuid4().hex
    first, second = await bench.job("load", deployment_id), await bench.job("load", deployment_id)
    loaded = [await bench.control.outcome(item) for item in (first, second)]
    assert all(isinstance(outcome, Loaded) for outcome in loaded), loaded
    assert [outcome.started for outcome in loaded] == [bench.way] * 2
    assert loaded[0].child_pid == loaded[1].child_pid
    pid = loaded[0].child_pid

    live = await bench.control.live()
    held = {one.entry.deployment_id: one for one in live.residents}
    assert live.serving
    assert held[deployment_id].entry.state == "resident"
    assert held[deployment_id].child_pid == pid
    assert held[deployment_id].process_bytes

    checked = await bench.control.outcome(await bench.job("health", deployment_id))
    assert isinstance(checked, HealthChecked)
    assert checked.health.capability
    assert checked.health.output_digest == loaded[0].health.output_digest

    # What is in flight when draining begins is answered; what comes later is refused.
    asked = [
        asyncio.create_task(bench.control.invoke(deployment_id, EmbedRequest(["word " * 60] * 8))) for _ in range(6)
    ]
    async with asyncio.timeout(30):
        while held[deployment_id].in_flight < 6:
            held = {one.entry.deployment_id: one for one in (await bench.control.live()).residents}
    drained = await bench.control.outcome(await bench.job("drain", deployment_id))
    assert isinstance(drained, Drained)
    assert drained.in_flight >= 1
    assert drained.invocations == 6
    answers = await asyncio.gather(*asked)
    assert all(isinstance(answer, Answer) for answer in answers), answers
    answer = await bench.control.invoke(deployment_id, EmbedRequest(["x"]))
    assert isinstance(answer, Failure)
    assert answer.code == Code.DRAINING

    unloaded = await bench.unload(deployment_id)
    assert unloaded.memory.reclaim_complete
    assert unloaded.memory.process_after.bytes == 0
    assert (unloaded.memory.reclaimed.bytes or 0) > 50_000_000
    assert unloaded.child_exit_code == 0
    assert identify(pid) is None
    answer = await bench.control.invoke(deployment_id, EmbedRequest(["x"]))
    assert isinstance(answer, Failure)
    assert answer.code == Code.NOT_RESIDENT
    other = await bench.control.invoke(resident, EmbedRequest(["still here"]))
    assert isinstance(other, Answer)
    again = await bench.control.outcome(await bench.job("unload", deployment_id))
    assert isinstance(again, WorkFailed)
    assert again.code == Code.NOT_RESIDENT


async def test_a_killed_child_is_lost_and_told(bench: Bench) -> None:
    deployment_id = await bench.load()
    held = {one.entry.deployment_id: one for one in (await bench.control.live()).residents}
    os.kill(held[deployment_id].child_pid, signal.SIGKILL)
    await bench.control.until(
        lambda: any(lost.deployment_id == deployment_id for lost in bench.control.lost), "the loss"
    )
    lost = next(lost for lost in bench.control.lost if lost.deployment_id == deployment_id)
    assert (lost.code, lost.exit_code) == (Code.CHILD_DIED, -9)
    assert "SIGKILL" in lost.message
    answer = await bench.control.invoke(deployment_id, EmbedRequest(["x"]))
    assert isinstance(answer, Failure)
    assert answer.code == Code.NOT_RESIDENT


async def test_a_resident_serves_on_when_the_fork_server_ends(bench: Bench, resident: str) -> None:
    if bench.way == "fresh":
        return  # there is none
    worker = psutil.Process(bench.worker.process.pid)
    (server,) = [child for child in worker.children() if child.name() == "tenure-forks"]
    server.kill()
    answer = await bench.control.invoke(resident, EmbedRequest(["still here"]))
    assert isinstance(answer, Answer)
    deployment_id = await bench.load()  # by the next one: a load that comes while that imports waits for it
    held = {one.entry.deployment_id: one.child_pid for one in (await bench.control.live()).residents}
    assert "worker.launch.fork_server" in psutil.Process(held[deployment_id]).cmdline()
    assert server.pid not in [child.pid for child in worker.children()]
    await bench.unload(deployment_id)


async def test_cancel_during_load_leaves_nothing(bench: Bench) -> None:
    deployment_id = uuid.uuid4().hex
    item = await bench.job("load", deployment_id)
    await bench.control.until(lambda: "preparing" in item.stages, "the load to begin")
    item.cancel = True
    outcome = await bench.control.outcome(item)
    assert isinstance(outcome, WorkCancelled)
    held = [one.entry.deployment_id for one in (await bench.control.live()).residents]
    assert deployment_id not in held
    records = len(list((bench.worker.data_dir / "worker" / "node-a" / "children").glob("*.json")))
    assert records == len(held) + (bench.way == "forked")  # the fork server is a process of the worker's own as well


async def test_load_timeout_is_told(bench: Bench) -> None:
    hasty = msgspec.structs.replace(PROFILE, limits=Limits(load_ms=1))
    outcome = await bench.control.outcome(await bench.job("load", uuid.uuid4().hex, hasty))
    assert isinstance(outcome, WorkFailed)
    assert outcome.code == Code.LOAD_TIMEOUT


async def test_impossible_max_length_is_refused(bench: Bench) -> None:
    greedy = msgspec.structs.replace(PROFILE, max_length=4_096)
    outcome = await bench.control.outcome(await bench.job("load", uuid.uuid4().hex, greedy))
    assert isinstance(outcome, WorkFailed)
    assert outcome.code == Code.LOAD_FAILED
    assert "512" in outcome.message


async def test_offer_sent_again_does_nothing_twice(bench: Bench) -> None:
    spec = VerifySpec(bench.artifact, "minilm")
    item = await bench.control.order("verify", spec, files=bench.files, location="minilm")
    for _ in range(3):
        await bench.control.publish_offer(item)
    await bench.control.outcome(item)
    await bench.control.publish_offer(item)
    following = await bench.control.order("verify", spec, files=bench.files, location="minilm")
    await bench.control.outcome(following)
    finals = [
        one for one in bench.control.evidence if one.work_id == item.work_id and isinstance(one.statement, Verified)
    ]
    assert len(finals) == 1


async def test_evidence_is_numbered_without_gaps(bench: Bench) -> None:
    numbers = [evidence.number for evidence in bench.control.evidence]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len({evidence.evidence_id for evidence in bench.control.evidence}) == len(numbers)
    await bench.control.until(lambda: bench.control.beats[-1].unconfirmed == [], "all to be confirmed")
