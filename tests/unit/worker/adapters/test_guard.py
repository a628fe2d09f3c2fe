"""An exception over one request of a batch is the answer to that request only, whatever the adapter."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.codes import Code, Refusal
from services.showcase import principal_models
from services.showcase.model import Model
from worker.adapters import registry
from worker.adapters.audio import whisper
from worker.adapters.guard import MESSAGE_CHARACTERS_MAX, Guarded, refusal_of
from worker.adapters.torch_runtime import AloneTurn
from worker.model.frames import Refused
from worker.model.golden import distance


class OutOfMemoryError(RuntimeError):
    """By the name that torch has for it."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Refusal(Code.INPUT_TOO_LARGE, "too long"), Refused(Code.INPUT_TOO_LARGE, "too long")),
        (ZeroDivisionError("by zero"), Refused(Code.INTERNAL_ERROR, "ZeroDivisionError: by zero")),
        (RecursionError("deep"), Refused(Code.INTERNAL_ERROR, "RecursionError: deep")),
        (MemoryError(), Refused(Code.OUT_OF_MEMORY, "MemoryError: ")),
        (OutOfMemoryError("20 GiB"), Refused(Code.OUT_OF_MEMORY, "OutOfMemoryError: 20 GiB")),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            Refused(Code.OUT_OF_MEMORY, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory"),
        ),
    ],
)
def test_what_is_raised_is_the_answer_of_its_request(error: Exception, expected: Refused) -> None:
    answers: dict[int, str | Refused] = {0: "sound"}
    with Guarded(1, answers):
        raise error
    assert answers == {0: "sound", 1: expected}


def test_what_is_not_expected_is_logged_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    found = refusal_of(ValueError("x" * 10_000), Code.LOAD_FAILED)
    assert (found.code, len(found.message)) == (Code.LOAD_FAILED, MESSAGE_CHARACTERS_MAX)
    assert "ValueError: xxx" in capsys.readouterr().err
    refusal_of(Refusal(Code.INPUT_INVALID, "no"), Code.LOAD_FAILED)
    assert capsys.readouterr().err == ""


def test_nothing_raised_is_no_answer_and_an_interrupt_passes() -> None:
    answers: dict[int, Refused] = {}
    with Guarded(0, answers):
        pass
    with pytest.raises(KeyboardInterrupt), Guarded(0, answers):
        raise KeyboardInterrupt
    assert answers == {}


# Adapters. Each place where one request is prepared, and how often it is passed before the second of three requests.

PREPARING: list[tuple[str, str, Callable[[Any], int]]] = [
    ("cross_encoder", "_count_tokens", lambda request: 1),
    ("transformers_text", "_prompt", lambda request: 1),
    ("transformers_whisper", "sound_of", lambda request: 2),  # which is in another language than the others
    ("transformers_tts", "_speak", lambda request: 1),
    ("transformers_trocr", "_pixels", lambda request: len(request.images)),
    ("transformers_siglip2", "_pixels", lambda request: len(request.images)),
    ("transformers_siglip2", "_counted", lambda request: 1),
    ("diffusers", "_make", lambda request: 1),
]
MODELS: dict[str, Model] = {}
for each in principal_models():
    MODELS.setdefault(each.profile.adapter, each)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Model], Path]:
    made: dict[str, Path] = {}

    def folder_of(model: Model) -> Path:
        if model.name not in made:
            made[model.name] = tmp_path_factory.mktemp(model.name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
                for name in registry.ENTRIES[model.profile.adapter].imports:
                    __import__(name)
                model.build(made[model.name])
        return made[model.name]

    return folder_of


@pytest.mark.parametrize(("name", "place", "passes"), PREPARING, ids=[f"{one[0]}-{one[1]}" for one in PREPARING])
def test_one_that_cannot_be_prepared_harms_no_other(
    name: str,
    place: str,
    passes: Callable[[Any], int],
    folders: Callable[[Model], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = MODELS[name]
    adapter = registry.adapter_of(name)
    adapter.prepare(model.profile)
    adapter.start(folders(model))
    first, second = model.requests[0], model.requests[1]
    alone = adapter.invoke([first], AloneTurn())[0]
    assert not isinstance(alone, Refused)
    owner: Any = adapter if hasattr(adapter, place) else whisper
    prepare, calls = getattr(owner, place), [0]

    def failing(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == passes(first) + 1:
            raise ZeroDivisionError("over this one")
        return prepare(*arguments)

    monkeypatch.setattr(owner, place, failing)
    answers = adapter.invoke([first, second, first], AloneTurn())
    adapter.unload()
    assert answers[1] == Refused(Code.INTERNAL_ERROR, "ZeroDivisionError: over this one")
    for answer in (answers[0], answers[2]):
        assert not isinstance(answer, Refused), answer
        assert distance(alone, answer) <= max(model.tolerance, 1e-6)
