"""What the transformers_siglip2 adapter does of its own; what all adapters do alike is in the contract suite."""

from __future__ import annotations

import importlib.metadata
import io
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from schemas.codes import Code, Refusal
from schemas.profiles import ImageSettings, RuntimeProfile
from schemas.tasks.image import Classified, ClassifyRequest, EmbedImagesRequest, ImagesEmbedded
from services.showcase.model import files_of
from services.showcase.siglip2 import (
    CLASSIFY,
    CLASSIFY_REQUESTS,
    EMBED,
    EMBED_REQUESTS,
    LONG,
    POSITIONS,
    build_fixed,
    build_naflex,
    library,
    probabilities,
)
from services.showcase.trocr import line
from worker.adapters.image.siglip2 import Siglip2Adapter
from worker.adapters.torch_runtime import AloneTurn
from worker.model.frames import Refused


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
        import transformers.models.siglip.modeling_siglip
        import transformers.models.siglip2.modeling_siglip2  # noqa: F401


@pytest.fixture(scope="module")
def naflex(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("naflex")
    build_naflex(made)
    return made


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fixed")
    build_fixed(made)
    return made


@pytest.fixture
def adapters() -> Iterator[list[Siglip2Adapter]]:
    made: list[Siglip2Adapter] = []
    yield made
    for adapter in made:
        adapter.unload()


def started(
    folder: Path, adapters: list[Siglip2Adapter], profile: RuntimeProfile = EMBED, **changes: Any
) -> Siglip2Adapter:
    adapter = Siglip2Adapter()
    adapter.prepare(msgspec.structs.replace(profile, **changes))
    adapters.append(adapter)
    adapter.start(folder)
    return adapter


def ask(adapter: Siglip2Adapter, *requests: Any) -> list[Any]:
    return adapter.invoke(requests, AloneTurn())


def rows(answer: Any, which: str = "text_vectors") -> np.ndarray:
    assert isinstance(answer, ImagesEmbedded), answer
    return np.frombuffer(getattr(answer, which), "<f4").reshape(-1, answer.dimensions)


def test_vectors_have_length_one_or_the_model_s_own(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    request = EMBED_REQUESTS[1]
    unit = ask(started(naflex, adapters), request)[0]
    for which in ("image_vectors", "text_vectors"):
        assert np.allclose(np.linalg.norm(rows(unit, which), axis=1), 1.0, atol=1e-6)
    own = ask(started(naflex, adapters, normalize=False), request)[0]
    lengths = np.linalg.norm(rows(own), axis=1, keepdims=True)
    assert np.abs(lengths - 1).max() > 0.1
    assert np.allclose(rows(own) / lengths, rows(unit), atol=1e-6)


def test_lower_case_is_the_tokenizer_s_affair(naflex: Path, fixed: Path, adapters: list[Siglip2Adapter]) -> None:
    """The library's own tokenizer for NaFlex models ignores case; the one that fixed models name does not."""
    request = EmbedImagesRequest([], ["a cat", "A CAT"])
    same = rows(ask(started(naflex, adapters), request)[0])
    assert (same[0] == same[1]).all()
    other = rows(ask(started(fixed, adapters), request)[0])
    assert np.abs(other[0] - other[1]).max() > 0.01


def test_texts_are_padded_as_in_training(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    import torch

    model, _, tokenizer = library(naflex)
    texts = ["a cat", "a", "a dog and a cat"]
    padded = rows(ask(started(naflex, adapters), EmbedImagesRequest([], texts))[0])
    bare_profile = ImageSettings(text_padding="longest")
    bare = started(naflex, adapters, image=bare_profile)
    together = rows(ask(bare, EmbedImagesRequest([], texts))[0])
    for number, text in enumerate(texts):
        for found, more in ((padded, {"padding": "max_length", "max_length": POSITIONS}), (together, {})):
            with torch.inference_mode():
                expected = model.get_text_features(**tokenizer([text], return_tensors="pt", **more)).pooler_output
            expected = expected / expected.norm()
            assert np.abs(found[number] - np.asarray(expected)[0]).max() < 1e-6
    assert np.abs(padded - together).max() > 0.01  # it matters


def test_without_padding_a_text_does_not_depend_on_its_neighbours(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    adapter = started(naflex, adapters, image=ImageSettings(text_padding="longest"))
    texts = ["a cat", "", "dog", LONG, "cat a"]
    together = rows(ask(adapter, EmbedImagesRequest([], texts), EmbedImagesRequest([], ["and no more"]))[0])
    for number, text in enumerate(texts):
        alone = rows(ask(adapter, EmbedImagesRequest([], [text]))[0])
        assert np.abs(together[number] - alone[0]).max() < 1e-6


def test_length_limit_truncates_and_says_so_or_refuses(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    cut = ask(started(naflex, adapters, max_length=5), EmbedImagesRequest([], ["cat", LONG]))[0]
    assert (cut.tokens, cut.truncated) == ([2, cut.tokens[1]], [False, True])
    assert cut.tokens[1] > POSITIONS
    whole = started(naflex, adapters, CLASSIFY, truncate=False)
    answers = ask(whole, ClassifyRequest([line(1)], ["cat", LONG]), ClassifyRequest([line(1)], ["cat"]))
    assert isinstance(answers[0], Refused)
    assert answers[0].code == Code.INPUT_TOO_LARGE
    assert answers[0].message == f"text 1 has {cut.tokens[1]} tokens and the limit is {POSITIONS}"
    assert answers[1].tokens == [2]
    with pytest.raises(Refusal, match="max_length 17 is over the model's 16 positions"):
        started(naflex, adapters, max_length=17)


def test_scores_of_a_pair_do_not_depend_on_other_labels(fixed: Path, adapters: list[Siglip2Adapter]) -> None:
    """A sigmoid of each pair, no softmax over the labels."""
    adapter = started(fixed, adapters, CLASSIFY)
    request = ClassifyRequest([line(1), line(2)], ["a cat", "a dog", "no"])
    together = ask(adapter, request)[0]
    assert together == probabilities(fixed, CLASSIFY, request)
    alone = ask(adapter, ClassifyRequest([line(2)], ["no"]))[0]
    assert alone.scores[0][0] == pytest.approx(together.scores[1][2], abs=1e-6)


def test_equal_scores_keep_the_order_of_the_labels(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    answer = ask(started(naflex, adapters, CLASSIFY), ClassifyRequest([line(1)], ["dog", "cat", "cat", "CAT"]))[0]
    places = [place for place in answer.order[0] if place != 0]
    assert places == [1, 2, 3]


def test_no_images_have_no_scores(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    answer = ask(started(naflex, adapters, CLASSIFY), ClassifyRequest([], ["cat"]))[0]
    assert answer == Classified(scores=[], order=[], truncated=[False], conversions=[], tokens=[2])


def test_conversions_of_each_image(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    out = io.BytesIO()
    Image.open(io.BytesIO(line(1))).convert("LA").save(out, "PNG")
    black = ImageSettings(background="black")
    answer = ask(started(naflex, adapters, image=black), EmbedImagesRequest([line(1), out.getvalue()]))[0]
    assert answer.conversions == [[], ["grey with alpha to RGB over black"]]


@pytest.mark.parametrize("sides", [(1, 1), (3, 3), (1, 500), (500, 1), (3, 4)])
def test_any_shape_of_image(sides: tuple[int, int], naflex: Path, fixed: Path, adapters: list[Siglip2Adapter]) -> None:
    """Among them those that a library could take for channels."""
    out = io.BytesIO()
    Image.new("RGB", sides, "red").save(out, "PNG")
    for folder in (naflex, fixed):
        answer = ask(started(folder, adapters), EmbedImagesRequest([out.getvalue(), line(1)]))[0]
        assert np.isfinite(rows(answer, "image_vectors")).all()


def test_nan_refuses_its_own_request_only(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    adapter = started(naflex, adapters)
    sound = [EmbedImagesRequest([line(1)], ["cat"]), EmbedImagesRequest([line(2)], ["a"])]
    alone = ask(adapter, *sound)
    poisoned = adapter._tokenizer.convert_tokens_to_ids("dog")
    adapter.model.text_model.embeddings.token_embedding.weight.data[poisoned] = float("nan")
    answers = ask(adapter, sound[0], EmbedImagesRequest([line(3)], ["cat", "a dog"]), sound[1])
    assert answers[1] == Refused(Code.OUTPUT_NOT_FINITE, "the model gave NaN or infinity for text 1")
    for expected, answer in zip(alone, (answers[0], answers[2]), strict=True):
        assert np.abs(rows(expected) - rows(answer)).max() < 1e-6

    def poison(module: Any, inputs: Any, output: Any) -> Any:
        output.pooler_output[1] = float("inf")
        return output

    hook = adapter.model.vision_model.register_forward_hook(poison)
    answers = ask(adapter, EmbedImagesRequest([line(1)]), EmbedImagesRequest([line(2)]), EmbedImagesRequest([line(3)]))
    hook.remove()
    assert answers[1] == Refused(Code.OUTPUT_NOT_FINITE, "the model gave NaN or infinity for image 0")
    assert [isinstance(answer, ImagesEmbedded) for answer in answers] == [True, False, True]


def test_infinite_scale_is_no_probability(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    adapter = started(naflex, adapters, CLASSIFY)
    adapter.model.logit_bias.data.fill_(float("nan"))
    assert ask(adapter, CLASSIFY_REQUESTS[0])[0].code == Code.OUTPUT_NOT_FINITE


def test_never_more_than_the_profile_allows_at_once(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    limits = msgspec.structs.replace(EMBED.limits, batch_max=2)
    adapter = started(naflex, adapters, limits=limits)
    sizes: dict[str, list[int]] = {"images": [], "texts": []}

    def count(kind: str, name: str) -> Callable[..., None]:
        return lambda module, inputs, more: sizes[kind].append(len(more[name]))

    adapter.model.vision_model.register_forward_pre_hook(count("images", "pixel_values"), with_kwargs=True)
    adapter.model.text_model.register_forward_pre_hook(count("texts", "input_ids"), with_kwargs=True)
    ask(adapter, EmbedImagesRequest([line(1)] * 3, ["a"]), EmbedImagesRequest([line(2)] * 2, ["b"] * 4))
    assert sizes == {"images": [2, 2, 1], "texts": [2, 2, 1]}


def test_a_request_nobody_waits_for_is_left_out(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    class Stopping(AloneTurn):
        def stopped(self, index: int) -> bool:
            return index == 0

    adapter = started(naflex, adapters)
    seen: list[int] = []
    adapter.model.text_model.register_forward_pre_hook(
        lambda module, inputs, more: seen.append(len(more["input_ids"])), with_kwargs=True
    )
    answers = adapter.invoke([EmbedImagesRequest([line(1)], ["a"]), EmbedImagesRequest([], ["b", "c"])], Stopping())
    assert answers[0].code == Code.INVOCATION_CANCELLED
    assert rows(answers[1]).shape == (2, 32)
    assert seen == [2]


def test_the_other_task_s_request_is_refused(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    assert ask(started(naflex, adapters), CLASSIFY_REQUESTS[0])[0].code == Code.INPUT_INVALID
    assert ask(started(naflex, adapters, CLASSIFY), EMBED_REQUESTS[0])[0].code == Code.INPUT_INVALID


def test_smaller_dtype_stays_close(naflex: Path, adapters: list[Siglip2Adapter]) -> None:
    exact = ask(started(naflex, adapters), EMBED_REQUESTS[1])[0]
    coarse = ask(started(naflex, adapters, dtype="bfloat16"), EMBED_REQUESTS[1])[0]
    assert np.sum(rows(exact) * rows(coarse), axis=1).min() > 0.98
    assert np.sum(rows(exact, "image_vectors") * rows(coarse, "image_vectors"), axis=1).min() > 0.98


def _edit(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def _of_the_first(folder: Path) -> None:
    (folder / "spiece.model").write_bytes(b"")
    _edit(folder, "tokenizer_config.json", lambda one: one.update(tokenizer_class="SiglipTokenizer"))


@pytest.fixture
def without_sentencepiece(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str, real: Callable[[str], str] = importlib.metadata.version) -> str:
        if name == "sentencepiece":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: _edit(one, "config.json", lambda all_: all_.update(architectures=["SiglipVisionModel"])),
         "architecture `SiglipVisionModel`"),
        (lambda one: _edit(one, "config.json", lambda all_: all_["text_config"].update(projection_size=31)),
         "31 dimensions and images 32"),
        (lambda one: _edit(one, "config.json", lambda all_: all_["vision_config"].update(vision_use_head=False)),
         "no head"),
        (lambda one: _edit(one, "processor_config.json",
                           lambda all_: all_["image_processor"].update(image_processor_type="CLIPImageProcessor")),
         "image processor `CLIPImageProcessor`"),
        (lambda one: (one / "processor_config.json").unlink(), "no image processor"),
        (_of_the_first, "sentencepiece"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("without_sentencepiece")
def test_what_else_keeps_it_from_running(change: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    build_fixed(tmp_path)
    assert Siglip2Adapter().inspect_support(tmp_path, files_of(tmp_path), "image_embedding").compatible
    change(tmp_path)
    reasons = Siglip2Adapter().inspect_support(tmp_path, files_of(tmp_path), "image_embedding").reasons
    assert [reason.code for reason in reasons] == [Code.RUNTIME_INCOMPATIBLE]
    assert words in reasons[0].message


@pytest.mark.usefixtures("without_sentencepiece")
def test_a_vocabulary_that_only_sentencepiece_reads(tmp_path: Path) -> None:
    build_naflex(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "spiece.model")
    seen = Siglip2Adapter().inspect_support(tmp_path, files_of(tmp_path), "image_embedding")
    assert any("`spiece.model` needs packages that are not installed" in reason.message for reason in seen.reasons)
