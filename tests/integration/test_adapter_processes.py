"""Every model of the contract suite through the worker's own cycle: a confined process, loaded offline, asked, ended.

The sandbox must be proven before weights are read (`require_offline_proof`), so what passes here needs no network and
no file outside the artifact's folder.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from schemas.codes import Refusal
from schemas.profiles import GenerationSettings
from schemas.serving import Answer
from schemas.tasks.golden import GoldenProbe
from schemas.tasks.requests import Request
from schemas.tasks.text import Generated, GenerateRequest, TextChunk
from services.showcase import every_model, generation
from services.showcase.model import Model
from tests.showcase import as_parameters
from worker.launch.launching import Launcher, beginning
from worker.launch.processes import is_alive
from worker.memory.accelerator import NoAccelerator
from worker.memory.device_watch import DeviceWatch
from worker.model import frames
from worker.model.golden import distance
from worker.model.loading import LoadedModel, ProgressStage, load_model, unload_model
from worker.sandbox.decoys import Decoys

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_MODEL = every_model()
MODEL_OF_TEXT = generation.MODELS[0]
SOURCE = frames.Source(artifact_id="a" * 64, profile_id="b" * 64, generation="1")


@dataclass
class Place:
    """What a worker has one of."""

    launcher: Launcher
    decoys: Decoys


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    state = tmp_path_factory.mktemp("state")
    launcher = Launcher.open(state, beginning())
    decoys = await Decoys.open(state)
    yield Place(launcher, decoys)
    await decoys.close()
    await launcher.close()


@pytest.fixture(params=as_parameters())
def model(request: pytest.FixtureRequest) -> Model:
    chosen: Model = request.param
    assert chosen.profile.require_offline_proof
    return chosen


@pytest.fixture
def folder(model: Model, tmp_path: Path) -> Path:
    made = tmp_path / "artifact"
    made.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
        model.build(made)
    return made


async def load(model: Model, folder: Path, place: Place, golden: GoldenProbe) -> LoadedModel:
    stages: list[ProgressStage] = []
    profile = msgspec.structs.replace(model.profile, golden=[golden])
    loaded = await load_model(
        place.launcher,
        place.decoys.targets,
        str(folder),
        profile,
        SOURCE,
        DeviceWatch(NoAccelerator()),
        stages.append,
    )
    assert stages == ["loading", "healthchecking"]
    return loaded


async def ask(loaded: LoadedModel, requests: list[Request]) -> list[Answer]:
    invoke = frames.Invoke(1, [msgspec.msgpack.encode(request) for request in requests])
    batch = await loaded.process.ask(invoke, loaded.profile.limits.invoke_ms)
    assert isinstance(batch, frames.Batch)
    bodies = [answer.body for answer in batch.answers if isinstance(answer, frames.Answered)]
    assert len(bodies) == len(requests), batch.answers
    return [msgspec.msgpack.decode(body, type=Answer) for body in bodies]


async def test_the_whole_cycle(model: Model, folder: Path, place: Place) -> None:
    """With the library's own answer as a golden probe: the load passes only near it."""
    first = model.requests[0]
    golden = GoldenProbe("library", first, model.reference(folder, model.profile, first), model.tolerance)
    loaded = await load(model, folder, place, golden)
    identity = loaded.process.identity
    try:
        assert loaded.process.way == "forked"
        assert loaded.offline.proven, loaded.offline
        assert loaded.health.capability, loaded.health
        assert [seen.passed for seen in loaded.health.golden or []] == [True]
        assert loaded.facts.parameters > 0
        answers = await ask(loaded, list(model.requests))
        assert distance(golden.expected, answers[0].result) <= model.tolerance
        assert {(each.artifact_id, each.profile_id, each.generation) for each in answers} == {
            (SOURCE.artifact_id, SOURCE.profile_id, SOURCE.generation)
        }
    finally:
        ended, memory, _ = await unload_model(loaded)
    assert ended.exit_code == 0, ended
    assert not is_alive(identity)
    assert memory.reclaim_complete, memory
    assert (memory.reclaimed.bytes or 0) > 0


@pytest.mark.parametrize("model", as_parameters(EVERY_MODEL[1:2]), indirect=True)
async def test_a_missed_golden_probe_refuses_the_load(model: Model, folder: Path, place: Place) -> None:
    """Once is enough: what decides is not the adapter's."""
    first, other = model.requests[0], model.requests[-1]
    wrong = GoldenProbe("wrong", other, model.reference(folder, model.profile, first), model.tolerance)
    with pytest.raises(Refusal, match="GOLDEN_MISSED"):
        await load(model, folder, place, wrong)


async def test_generated_text_streams_and_is_cancelled(tmp_path: Path, place: Place) -> None:
    """Out of a confined process: one text would take thousands of tokens and is cancelled after the first piece."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    generation.build("llama", folder, max_position_embeddings=8_192)
    settings = GenerationSettings(new_tokens_max=8_000)
    model = replace(MODEL_OF_TEXT, profile=msgspec.structs.replace(generation.PROFILE, generation=settings))
    short = GenerateRequest(prompt="The quick brown fox", new_tokens_max=8, stream=True)
    long = GenerateRequest(prompt="The quick brown fox", stream=True)
    golden = GoldenProbe("library", short, generation.reference(folder, model.profile, short), 0.0)
    loaded = await load(model, folder, place, golden)
    pieces: dict[int, list[TextChunk]] = {0: [], 1: []}

    def heard(partial: frames.Partial) -> None:
        pieces[partial.index].append(msgspec.msgpack.decode(partial.body, type=TextChunk))
        if partial.index == 1:
            loaded.process.tell(frames.Stop(partial.number, 1))

    loaded.process.on_partial = heard
    try:
        first, second = [answer.result for answer in await ask(loaded, [short, long])]
    finally:
        await unload_model(loaded)
    assert isinstance(first, Generated)
    assert isinstance(second, Generated)
    assert first == golden.expected
    assert second.finish_reason == "cancelled"
    assert 0 < second.output_tokens < settings.new_tokens_max
    for index, result in enumerate((first, second)):
        assert "".join(chunk.text for chunk in pieces[index]) == result.text
        assert [chunk.number for chunk in pieces[index]] == list(range(len(pieces[index])))
