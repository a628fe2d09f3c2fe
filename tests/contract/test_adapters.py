"""One contract for all adapters, on real files: what each does alike, whatever its task.

Every model that `services.showcase` lists goes through all of it; inspection is in `test_adapter_inspection`. What a
task has of its own is tested with its adapter.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.codes import Code
from schemas.profiles import RuntimeProfile
from schemas.tasks.golden import GoldenProbe
from schemas.tasks.requests import REQUEST_OF, RESULT_OF, Request, Result
from schemas.tasks.text import EmbedRequest, RerankRequest
from services.showcase import every_model
from services.showcase.model import Model, files_of
from tests.showcase import as_parameters
from worker.adapters import registry
from worker.adapters.contract import RuntimeAdapter
from worker.adapters.torch_runtime import AloneTurn
from worker.model.frames import Facts, Refused
from worker.model.golden import Unlike, ask_goldens, distance

WITH_EMPTY = [model for model in every_model() if model.empty is not None]


@pytest.fixture(scope="module")
def started(model: Model, folder: Path) -> Iterator[tuple[RuntimeAdapter, Facts]]:
    adapter = registry.adapter_of(model.profile.adapter)
    adapter.prepare(model.profile)
    facts = adapter.start(folder)
    yield adapter, facts
    adapter.unload()


@pytest.fixture
def adapter(started: tuple[RuntimeAdapter, Facts]) -> RuntimeAdapter:
    return started[0]


def fresh(model: Model, folder: Path, profile: RuntimeProfile | None = None) -> RuntimeAdapter:
    adapter = registry.adapter_of(model.profile.adapter)
    adapter.prepare(profile or model.profile)
    adapter.start(folder)
    return adapter


def ask(adapter: RuntimeAdapter, requests: Sequence[Request]) -> list[Result | Refused]:
    return adapter.invoke(requests, AloneTurn())


def sound(answer: Result | Refused) -> Result:
    assert not isinstance(answer, Refused), answer
    return answer


def near(model: Model, expected: Result, answer: Result | Refused) -> None:
    assert distance(expected, sound(answer)) <= model.tolerance


def foreign_request(model: Model) -> Request:
    """Of a task that is not the adapter's."""
    mine = REQUEST_OF[model.profile.task]
    return RerankRequest("query", ["document"]) if mine is EmbedRequest else EmbedRequest(["text"])


def bad_ones(model: Model) -> list[tuple[Request, str]]:
    return [*model.bad, (foreign_request(model), Code.INPUT_INVALID.value)]


# Load and health.


def test_it_is_healthy(adapter: RuntimeAdapter) -> None:
    assert adapter.probe() == ""
    first, second = adapter.health(), adapter.health()
    assert (first.process, first.runtime, first.model, first.capability) == (True, True, True, True), first.detail
    assert first.output_digest
    assert first.output_digest == second.output_digest


def test_facts_are_what_inspection_said_and_can_be_had_again(
    model: Model, folder: Path, started: tuple[RuntimeAdapter, Facts]
) -> None:
    adapter, facts = started
    assert adapter.collect_runtime_facts() == facts
    assert facts.parameters > 0
    seen = registry.inspect(model.profile.adapter, model.profile.task, folder, files_of(folder))
    assert seen.dimensions in (None, facts.dimensions)
    assert seen.max_length in (None, facts.max_length)


# Answers.


def test_answers_are_the_librarys(model: Model, folder: Path, adapter: RuntimeAdapter) -> None:
    for request in model.requests:
        answer = sound(ask(adapter, [request])[0])
        assert type(answer) is RESULT_OF[model.profile.task]
        expected = model.reference(folder, model.profile, request)
        found = distance(expected, answer)
        print(f"{model.name}: distance {found:.3g}")
        assert found <= model.tolerance


def test_a_batch_answers_as_each_alone(model: Model, adapter: RuntimeAdapter) -> None:
    alone = [sound(ask(adapter, [request])[0]) for request in model.requests]
    for order in (slice(None), slice(None, None, -1)):
        together = ask(adapter, list(model.requests)[order])
        for expected, answer in zip(alone[order], together, strict=True):
            near(model, expected, answer)


def test_small_device_batches_answer_the_same(model: Model, folder: Path, adapter: RuntimeAdapter) -> None:
    limits = msgspec.structs.replace(model.profile.limits, batch_max=1)
    one_by_one = fresh(model, folder, msgspec.structs.replace(model.profile, limits=limits))
    try:
        for expected, answer in zip(ask(adapter, model.requests), ask(one_by_one, model.requests), strict=True):
            near(model, sound(expected), answer)
    finally:
        one_by_one.unload()


def test_the_same_request_has_the_same_answer(model: Model, adapter: RuntimeAdapter) -> None:
    assert ask(adapter, model.requests) == ask(adapter, model.requests)


def test_results_can_travel(model: Model, adapter: RuntimeAdapter) -> None:
    """As MessagePack to who asked, and as JSON into a golden probe."""
    for answer in ask(adapter, model.requests):
        for form in (msgspec.msgpack, msgspec.json):
            assert form.decode(form.encode(answer), type=type(answer)) == answer


def test_nothing_asked_is_nothing_answered(adapter: RuntimeAdapter) -> None:
    assert ask(adapter, []) == []


@pytest.mark.parametrize("model", as_parameters(WITH_EMPTY), indirect=True)
def test_empty_has_a_defined_result(model: Model, adapter: RuntimeAdapter) -> None:
    assert model.empty is not None
    alone = sound(ask(adapter, [model.empty])[0])
    assert type(alone) is RESULT_OF[model.profile.task]
    items = [value for value in msgspec.structs.asdict(alone).values() if isinstance(value, list | bytes)]
    assert items
    assert not any(items), alone
    among = ask(adapter, [model.requests[0], model.empty, model.requests[-1]])
    assert among[1] == alone


def test_bad_requests_are_refused_and_harm_no_other(model: Model, adapter: RuntimeAdapter) -> None:
    first, last = model.requests[0], model.requests[-1]
    alone = [sound(ask(adapter, [request])[0]) for request in (first, last)]
    batch = [first, *(each for request, _ in bad_ones(model) for each in (request, last))]
    answers = ask(adapter, batch)
    near(model, alone[0], answers[0])
    for at, (request, code) in enumerate(bad_ones(model)):
        refused, neighbour = answers[1 + 2 * at : 3 + 2 * at]
        assert isinstance(refused, Refused), request
        assert refused.code == code, refused
        assert refused.message
        near(model, alone[1], neighbour)


def test_only_bad_requests(model: Model, adapter: RuntimeAdapter) -> None:
    answers = ask(adapter, [request for request, _ in bad_ones(model)])
    assert [answer.code for answer in answers if isinstance(answer, Refused)] == [code for _, code in bad_ones(model)]


# Golden probes.


def golden(model: Model, request: Request, expected: Result) -> RuntimeProfile:
    probe = GoldenProbe("first", request, expected, model.tolerance)
    return msgspec.structs.replace(model.profile, golden=[probe])


def test_golden_probes_pass_and_fail(model: Model, folder: Path, adapter: RuntimeAdapter) -> None:
    first, other = model.requests[0], model.requests[-1]
    expected = model.reference(folder, model.profile, first)
    (seen,) = ask_goldens(golden(model, first, expected), lambda requests: ask(adapter, requests))
    assert seen.passed, seen.detail
    (missed,) = ask_goldens(golden(model, other, expected), lambda requests: ask(adapter, requests))
    assert not missed.passed
    assert missed.detail


# Damage.


def _all_nan(path: Path) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        for name in file.keys():  # noqa: SIM118 - no dict
            tensor = file.get_tensor(name)
            tensors[name] = torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor
    path.unlink()
    save_file(tensors, path, metadata=metadata)


def test_a_model_of_nans_never_has_a_result(model: Model, copy: Path) -> None:
    _all_nan(copy / model.weights)
    broken = fresh(model, copy)
    try:
        for answer in ask(broken, model.requests):
            assert isinstance(answer, Refused), answer
            assert answer.code == Code.OUTPUT_NOT_FINITE
        health = broken.health()
        assert not health.capability
        assert Code.OUTPUT_NOT_FINITE in health.detail
    finally:
        broken.unload()


# The end.


def test_stopped_takes_no_more(model: Model, folder: Path) -> None:
    adapter = fresh(model, folder)
    sound(ask(adapter, model.requests[:1])[0])
    adapter.stop()
    answers = ask(adapter, [*model.requests, foreign_request(model)])
    assert {answer.code for answer in answers if isinstance(answer, Refused)} == {Code.DRAINING}
    assert len(answers) == len(model.requests) + 1
    adapter.unload()


def test_unloading_drops_the_model(model: Model, folder: Path) -> None:
    """Every part of it: nothing that the adapter keeps holds a weight."""
    adapter: Any = fresh(model, folder)
    sound(ask(adapter, model.requests[:1])[0])
    kept = adapter.model
    modules = list(kept.components.values()) if hasattr(kept, "components") else [kept]  # a pipeline, or a model
    seen = [weakref.ref(tensor) for each in modules if hasattr(each, "parameters") for tensor in each.parameters()]
    assert seen
    del kept, modules
    adapter.unload()
    gc.collect()
    assert not [each for each in seen if each() is not None]
    adapter.unload()  # a second time changes nothing
    assert isinstance(ask(adapter, model.requests[:1])[0], Refused)


def test_unlike_results_have_no_distance(model: Model, adapter: RuntimeAdapter) -> None:
    """The measure that this suite trusts tells kinds apart."""
    from schemas.tasks.text import Reranked

    answer = sound(ask(adapter, model.requests[:1])[0])
    other: Result = Reranked([], [], [], []) if not isinstance(answer, Reranked) else Reranked([0.0] * 999, [], [], [])
    with pytest.raises(Unlike):
        distance(other, answer)
