"""Reranking: what the files say of the score, what a folder must be, and what is cut, refused and left out."""

from __future__ import annotations

import functools
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.codes import Code, Refusal
from schemas.tasks.text import Reranked, RerankRequest
from services.showcase import cross_encoder
from services.showcase.model import files_of
from worker.adapters.text.cross_encoder import CrossEncoderAdapter
from worker.adapters.text.cross_encoder_files import inspect_files
from worker.adapters.text.lengths import usable_positions
from worker.adapters.torch_runtime import AloneTurn
from worker.model.frames import Refused

PLAIN, ROBERTA, SAVED = (model.build for model in cross_encoder.MODELS)
QUERY = "what does the fox jump over?"


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
        import sentence_transformers  # noqa: F401


@functools.lru_cache(maxsize=4)
def _built(build: Callable[[Path], None], parent: Path) -> Path:
    folder = parent / str(id(build))
    folder.mkdir()
    build(folder)
    return folder


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Callable[[Callable[[Path], None]], Path]:
    """A copy of a model's folder, to be changed."""

    def copy(build: Callable[[Path], None]) -> Path:
        source = _built(build, tmp_path_factory.getbasetemp())
        return Path(shutil.copytree(source, tmp_path / "model", dirs_exist_ok=True))

    return copy


Make = Callable[[Callable[[Path], None]], Path]


def started(folder: Path, **changes: object) -> CrossEncoderAdapter:
    adapter = CrossEncoderAdapter()
    adapter.prepare(msgspec.structs.replace(cross_encoder.PROFILE, **changes))
    adapter.start(folder)
    return adapter


def ask(adapter: CrossEncoderAdapter, *requests: RerankRequest) -> list[Any]:
    return adapter.invoke(requests, AloneTurn())


def change(folder: Path, name: str, **changes: object) -> None:
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    merged = {**content, **changes}
    path.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))


def reasons(folder: Path) -> list[str]:
    return [reason.message for reason in inspect_files(folder, files_of(folder)).reasons]


# The score function.


def test_without_a_word_it_is_a_sigmoid_and_the_files_may_say_none(make: Make) -> None:
    import torch

    folder = make(PLAIN)
    asked = RerankRequest(QUERY, ["the lazy dog", "a river"])
    (squeezed,) = ask(started(folder), asked)
    change(folder, "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    (raw,) = ask(started(folder), asked)
    assert torch.sigmoid(torch.tensor(raw.scores)).tolist() == pytest.approx(squeezed.scores, abs=1e-6)
    assert raw.order == squeezed.order


@pytest.mark.parametrize(
    ("build", "name", "key"),
    [
        (PLAIN, "config.json", "sbert_ce_default_activation_function"),
        (SAVED, "config_sentence_transformers.json", "activation_fn"),
    ],
)
def test_a_score_function_is_never_imported_by_its_name(
    make: Make, build: Callable[[Path], None], name: str, key: str
) -> None:
    """The library imports and calls whatever begins with `torch.`; here it is a reason and a refused load."""
    folder = make(build)
    change(folder, name, **{key: "torch.cuda.init"})
    assert any("torch.cuda.init" in reason for reason in reasons(folder))
    with pytest.raises(Refusal, match=r"torch\.cuda\.init"):
        started(folder)


# What a folder must be.


def _labels(count: int) -> Callable[[Path], None]:
    names = {str(number): f"LABEL_{number}" for number in range(count)}
    return lambda folder: change(folder, "config.json", id2label=names, label2id=None, num_labels=None)


@pytest.mark.parametrize(
    ("build", "spoil", "named"),
    [
        (PLAIN, _labels(3), "3 labels"),
        (PLAIN, lambda f: change(f, "config.json", id2label=None, num_labels=None), "2 labels"),
        (PLAIN, lambda f: change(f, "config.json", architectures=["BertModel"]), "ForSequenceClassification"),
        (PLAIN, lambda f: change(f, "config.json", architectures=None), "ForSequenceClassification"),
        (PLAIN, lambda f: (f / "chat_template.jinja").write_text("x"), "chat template"),
        (PLAIN, lambda f: change(f, "tokenizer_config.json", chat_template="x"), "chat template"),
        (PLAIN, lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
        (SAVED, lambda f: (f / "config_sentence_transformers.json").unlink(), "config_sentence_transformers.json"),
        (SAVED, lambda f: change(f, "config_sentence_transformers.json", model_type=None), "SentenceTransformer"),
        (SAVED, lambda f: change(f, "sentence_bert_config.json", transformer_task=None), "sequence-classification"),
        (SAVED, lambda f: (f / "modules.json").write_text("[]"), "single Transformer"),
        (SAVED, lambda f: (f / "modules.json").write_text('[{"path": "", "type": "os.Transformer"}]'), "single"),
    ],
)  # fmt: skip
def test_each_obstacle_is_a_reason(
    make: Make, build: Callable[[Path], None], spoil: Callable[[Path], object], named: str
) -> None:
    folder = make(build)
    assert reasons(folder) == []
    spoil(folder)
    assert any(named in reason for reason in reasons(folder)), reasons(folder)


def test_a_head_that_is_not_in_the_weights_is_a_reason(make: Make) -> None:
    """The library would make one up at random and answer with it."""
    from safetensors.torch import load_file, save_file

    folder = make(PLAIN)
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("classifier")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    assert any("classification head" in reason for reason in reasons(folder))


def test_a_load_refuses_other_labels_as_well(make: Make, tmp_path: Path) -> None:
    """Files may change between the assessment and the load."""
    folder = make(PLAIN)
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(str(folder), num_labels=3)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    with pytest.raises(Refusal, match="3 labels"):
        started(folder)


# Settings and lengths.


def test_settings_that_do_nothing_are_refused(make: Make) -> None:
    for changes in ({"prompts": {"query": "query: "}}, {"pooling": "mean"}):
        with pytest.raises(Refusal, match="LOAD_FAILED"):
            started(make(PLAIN), **changes)


def test_a_prompt_in_the_files_is_not_put_before_anything(make: Make) -> None:
    folder, asked = make(SAVED), RerankRequest(QUERY, ["the lazy dog"])
    (before,) = ask(started(folder), asked)
    change(folder, "config_sentence_transformers.json", prompts={"p": "in berlin "}, default_prompt_name="p")
    assert ask(started(folder), asked) == [before]


def test_the_limit_is_never_over_the_models_positions(make: Make) -> None:
    """A tokenizer without a limit, on a model that counts its positions from the padding token on."""
    folder = make(ROBERTA)
    change(folder, "tokenizer_config.json", model_max_length=10**30)
    adapter = started(folder)
    assert adapter.max_length() == cross_encoder.LENGTH_MAX
    (cut,) = ask(adapter, RerankRequest(QUERY, [cross_encoder.LONG]))
    assert cut.truncated == [True]
    with pytest.raises(Refusal, match="41"):
        started(folder, max_length=cross_encoder.LENGTH_MAX + 1)


def test_positions_by_family() -> None:
    assert usable_positions({"model_type": "xlm-roberta", "max_position_embeddings": 514}) == 512
    assert usable_positions({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1}) == 512
    assert usable_positions({"model_type": "bert", "max_position_embeddings": 512}) == 512
    assert usable_positions({"model_type": "bert"}) is None


def test_the_profiles_limit_cuts_and_says_so_or_refuses(make: Make) -> None:
    folder = make(PLAIN)
    long, short = RerankRequest(QUERY, ["x", "the lazy dog " * 5]), RerankRequest(QUERY, ["x"])
    (cut,) = ask(started(folder, max_length=12), long)
    assert (cut.tokens, cut.truncated) == ([11, 25], [False, True])
    refused, whole = ask(started(folder, max_length=12, truncate=False), long, short)
    assert (refused.code, "document 1 have 25 tokens" in refused.message) == (Code.INPUT_TOO_LARGE, True)
    assert whole.scores == pytest.approx(cut.scores[:1], abs=1e-6)


# Answers.


def test_equal_scores_keep_the_documents_order(make: Make) -> None:
    (answer,) = ask(started(make(PLAIN)), RerankRequest(QUERY, ["a river", "the lazy dog"] * 8))
    assert [number % 2 for number in answer.order] in ([0] * 8 + [1] * 8, [1] * 8 + [0] * 8)
    for half in (answer.order[:8], answer.order[8:]):
        assert half == sorted(half)


def test_nan_refuses_its_own_invocation_only(make: Make) -> None:
    adapter = started(make(PLAIN))
    token = adapter.model.tokenizer.convert_tokens_to_ids("snow")
    adapter.model.model.get_input_embeddings().weight.data[token] = float("nan")
    good = RerankRequest(QUERY, ["the lazy dog", "a river in berlin and a longer text than the others"])
    first, bad, last = ask(adapter, good, RerankRequest(QUERY, ["rain", "snow"]), good)
    assert isinstance(bad, Refused)
    assert (bad.code, "document 1" in bad.message) == (Code.OUTPUT_NOT_FINITE, True)
    assert isinstance(first, Reranked)
    assert first == last


class StoppedAfter(AloneTurn):
    """Nobody waits for request 0 once it has been asked about so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def stopped(self, index: int) -> bool:
        self.left -= index == 0
        return index == 0 and self.left < 0


def test_what_nobody_waits_for_is_left_out(make: Make) -> None:
    limits = msgspec.structs.replace(cross_encoder.PROFILE.limits, batch_max=2)
    adapter = started(make(PLAIN), limits=limits)
    long, short = RerankRequest(QUERY, ["the lazy dog"] * 9), RerankRequest(QUERY, ["x"])
    (whole,) = ask(adapter, short)
    computed: list[int] = []
    predict = adapter.model.predict
    adapter.model.predict = lambda pairs, **more: (computed.append(len(pairs)), predict(pairs, **more))[1]
    gone, other = adapter.invoke([long, short], StoppedAfter(3))
    assert gone.code == Code.INVOCATION_CANCELLED
    assert other.scores == pytest.approx(whole.scores, abs=1e-6)
    assert sum(computed) == 4  # three of the nine, and the other's
