"""What the transformers_trocr adapter does of its own; what all adapters do alike is in the contract suite."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.codes import Code, Refusal
from schemas.profiles import ImageSettings, RuntimeProfile
from schemas.tasks.image import OcrRequest, Recognised
from services.showcase.model import files_of
from services.showcase.trocr import BEAMS, NEW_TOKENS_MAX, PROFILE, REQUESTS, build_deit, build_vit, line, reference
from worker.adapters.image.trocr import TrocrAdapter
from worker.adapters.torch_runtime import AloneTurn
from worker.model.frames import Refused

THREE = [line(1), line(2), line(4, 64, 64)]


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
        import transformers.models.trocr.modeling_trocr
        import transformers.models.vision_encoder_decoder.modeling_vision_encoder_decoder  # noqa: F401


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("trocr")
    build_vit(made)
    return made


@pytest.fixture
def adapters() -> Iterator[list[TrocrAdapter]]:
    made: list[TrocrAdapter] = []
    yield made
    for adapter in made:
        adapter.unload()


def started(
    folder: Path, adapters: list[TrocrAdapter], profile: RuntimeProfile = PROFILE, **changes: Any
) -> TrocrAdapter:
    adapter = TrocrAdapter()
    adapter.prepare(msgspec.structs.replace(profile, **changes))
    adapters.append(adapter)
    adapter.start(folder)
    return adapter


def read(answer: Any) -> Recognised:
    assert isinstance(answer, Recognised), answer
    return answer


class Stopping(AloneTurn):
    """Nobody waits for this request any more, from the `after`th time it is asked."""

    def __init__(self, index: int, after: int) -> None:
        self.index = index
        self.left = after
        self.asked = 0

    def stopped(self, index: int) -> bool:
        if index != self.index:
            return False
        self.asked += 1
        self.left -= 1
        return self.left < 0


def test_conversions_are_told_for_each_image(folder: Path, adapters: list[TrocrAdapter]) -> None:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(line(1))).convert("L").save(out, "PNG")
    answer = read(started(folder, adapters).invoke([OcrRequest([line(1), out.getvalue()])], AloneTurn())[0])
    assert answer.conversions == [[], ["8-bit grey to RGB"]]


def test_a_text_that_hits_the_bound_is_told(folder: Path, adapters: list[TrocrAdapter]) -> None:
    request = OcrRequest([line(1), line(4, 64, 64, "BMP"), line(2, 40)])
    answer = read(started(folder, adapters).invoke([request], AloneTurn())[0])
    # The last ends with the very token that is the last allowed.
    assert list(zip(answer.tokens, answer.truncated, strict=True)) == [(12, True), (3, False), (12, False)]
    shorter = started(folder, adapters, image=ImageSettings(new_tokens_max=2))
    answer = read(shorter.invoke([request], AloneTurn())[0])
    assert list(zip(answer.tokens, answer.truncated, strict=True)) == [(2, True), (2, True), (2, True)]


def test_sampling_and_beams_of_the_files_are_not_taken(
    folder: Path, adapters: list[TrocrAdapter], tmp_path: Path
) -> None:
    build_vit(tmp_path)
    path = tmp_path / "generation_config.json"
    rules = json.loads(path.read_text())
    rules |= {"do_sample": True, "temperature": 5.0, "top_k": 50, "num_beams": 4, "num_return_sequences": 3}
    rules |= {"max_length": 3, "_from_model_config": False}
    path.write_text(json.dumps(rules))
    plain = started(folder, adapters).invoke(REQUESTS, AloneTurn())
    assert started(tmp_path, adapters).invoke(REQUESTS, AloneTurn()) == plain


def test_beams_of_the_profile_are(folder: Path, adapters: list[TrocrAdapter]) -> None:
    request = OcrRequest(THREE)
    beams = started(folder, adapters, BEAMS).invoke([request], AloneTurn())[0]
    assert beams == reference(folder, BEAMS, request)
    assert beams != started(folder, adapters).invoke([request], AloneTurn())[0]


@pytest.mark.parametrize("profile", [PROFILE, BEAMS], ids=["greedy", "beams"])
def test_nan_refuses_its_own_request_only(profile: RuntimeProfile, folder: Path, adapters: list[TrocrAdapter]) -> None:
    """One image whose encoding is not a number, in a batch with others."""
    adapter = started(folder, adapters, profile)
    alone = [adapter.invoke([OcrRequest([image])], AloneTurn())[0] for image in THREE]

    def poison(module: Any, inputs: Any, output: Any) -> Any:
        output.last_hidden_state[2] = float("nan")
        return output

    adapter.model.encoder.register_forward_hook(poison)
    answers = adapter.invoke(
        [OcrRequest(THREE[:1]), OcrRequest([THREE[1], THREE[1]]), OcrRequest(THREE[2:])], AloneTurn()
    )
    assert answers[0] == alone[0]
    assert answers[2] == alone[2]
    assert answers[1] == Refused(Code.OUTPUT_NOT_FINITE, "the model gave NaN or infinity for image 1")


@pytest.mark.parametrize("profile", [PROFILE, BEAMS], ids=["greedy", "beams"])
def test_a_request_nobody_waits_for_ends_at_the_next_token(
    profile: RuntimeProfile, folder: Path, adapters: list[TrocrAdapter]
) -> None:
    adapter = started(folder, adapters, profile)
    alone = adapter.invoke([OcrRequest(THREE[1:])], AloneTurn())[0]
    turn = Stopping(1, after=3)
    answers = adapter.invoke([OcrRequest(THREE[1:]), OcrRequest(THREE[:1])], turn)
    assert answers[0] == alone
    assert isinstance(answers[1], Refused)
    assert answers[1].code == Code.INVOCATION_CANCELLED
    assert turn.asked == 4  # then no more

    steps = []
    adapter.model.get_output_embeddings().register_forward_hook(lambda *_: steps.append(1))
    assert isinstance(adapter.invoke([OcrRequest(THREE[:1])], Stopping(0, after=3))[0], Refused)
    assert 1 <= len(steps) < NEW_TOKENS_MAX / 2


def test_one_nobody_waits_for_is_not_begun(folder: Path, adapters: list[TrocrAdapter]) -> None:
    adapter = started(folder, adapters)
    adapter.model.encoder.register_forward_hook(lambda *_: pytest.fail("computed"))
    assert isinstance(adapter.invoke([OcrRequest(THREE)], Stopping(0, after=0))[0], Refused)


def test_never_more_than_the_profile_allows_at_once(folder: Path, adapters: list[TrocrAdapter]) -> None:
    limits = msgspec.structs.replace(PROFILE.limits, batch_max=2)
    adapter = started(folder, adapters, limits=limits)
    sizes: list[int] = []
    adapter.model.encoder.register_forward_pre_hook(
        lambda module, inputs, more: sizes.append(len(more["pixel_values"])), with_kwargs=True
    )
    adapter.invoke([OcrRequest(THREE), OcrRequest(THREE[:2])], AloneTurn())
    assert sizes == [2, 2, 1]


def test_more_new_tokens_than_positions_are_refused(folder: Path, adapters: list[TrocrAdapter]) -> None:
    with pytest.raises(Refusal, match="new_tokens_max 41 is over the 40 positions"):
        started(folder, adapters, image=ImageSettings(new_tokens_max=41))
    for build in (build_vit, build_deit):  # learned positions and computed ones: the last token has one as well
        build(folder)
        adapter = started(folder, adapters, image=ImageSettings(new_tokens_max=40))
        assert 40 in read(adapter.invoke([OcrRequest(THREE)], AloneTurn())[0]).tokens
    build_vit(folder)


def test_weights_that_the_files_lack_are_not_made_up(
    folder: Path, adapters: list[TrocrAdapter], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    build_vit(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    gone = next(name for name in tensors if "encoder_attn" in name)
    del tensors[gone]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Refusal, match="lack 1 weights"):
        started(tmp_path, adapters)


def test_smaller_dtype_runs(folder: Path, adapters: list[TrocrAdapter]) -> None:
    adapter = started(folder, adapters, dtype="bfloat16")
    assert adapter.health().capability
    assert len(read(adapter.invoke([OcrRequest(THREE)], AloneTurn())[0]).texts) == 3


def _edit(folder: Path, name: str, change: Any) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: _edit(folder, "config.json", lambda one: one["encoder"].update(model_type="swin")), "encoder"),
        (lambda folder: _edit(folder, "config.json", lambda one: one["decoder"].update(model_type="gpt2")), "decoder"),
        (lambda folder: _edit(folder, "config.json", lambda one: one.pop("decoder")), "describes no decoder"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "no image processor"),
        (
            lambda folder: _edit(
                folder, "preprocessor_config.json", lambda one: one.update(image_processor_type="Own")
            ),
            "image processor `Own`",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
    ],
)
def test_what_else_keeps_it_from_running(change: Any, words: str, tmp_path: Path) -> None:
    build_deit(tmp_path)
    assert TrocrAdapter().inspect_support(tmp_path, files_of(tmp_path), "ocr").compatible
    change(tmp_path)
    reasons = TrocrAdapter().inspect_support(tmp_path, files_of(tmp_path), "ocr").reasons
    assert [reason.code for reason in reasons] == [Code.RUNTIME_INCOMPATIBLE]
    assert words in reasons[0].message


@pytest.mark.parametrize("name", ["ViTFeatureExtractor", "ViTImageProcessorFast", "DeiTImageProcessorPil"])
def test_names_of_older_and_newer_processors(name: str, tmp_path: Path) -> None:
    build_deit(tmp_path)
    key = "feature_extractor_type" if name.endswith("Extractor") else "image_processor_type"

    def change(content: dict[str, Any]) -> None:
        del content["image_processor_type"]
        content[key] = name

    _edit(tmp_path, "preprocessor_config.json", change)
    assert TrocrAdapter().inspect_support(tmp_path, files_of(tmp_path), "ocr").compatible
