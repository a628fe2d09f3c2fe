"""What the diffusers adapter does of its own; what all adapters do alike is in the contract suite."""

from __future__ import annotations

import importlib.metadata
import io
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from schemas.codes import Code, Refusal
from schemas.profiles import DiffusionSettings, RuntimeProfile
from schemas.tasks.image import Imagined, ImagineRequest
from services.showcase.diffusion import (
    LONG,
    PROFILE,
    SETTINGS,
    TOKENS,
    clip_tokenizer,
    flux,
    pixels,
    stable_diffusion,
    stable_diffusion_xl,
)
from services.showcase.model import files_of
from worker.adapters import registry
from worker.adapters.contract import Inspection
from worker.adapters.image.diffusion import DiffusionAdapter
from worker.adapters.torch_runtime import AloneTurn
from worker.model.frames import Refused

ONE_STEP_OF_ONE_COLOUR = 1


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
        import diffusers.pipelines.flux.pipeline_flux
        import diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion  # noqa: F401


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sd")
    stable_diffusion(made)
    return made


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def adapters() -> Iterator[list[DiffusionAdapter]]:
    made: list[DiffusionAdapter] = []
    yield made
    for adapter in made:
        adapter.unload()


def started(
    folder: Path, adapters: list[DiffusionAdapter], profile: RuntimeProfile = PROFILE, **changes: Any
) -> DiffusionAdapter:
    adapter = DiffusionAdapter()
    adapter.prepare(msgspec.structs.replace(profile, **changes))
    adapters.append(adapter)
    adapter.start(folder)
    return adapter


def ask(adapter: DiffusionAdapter, *requests: Any) -> list[Any]:
    return adapter.invoke(requests, AloneTurn())


def made(answer: Any) -> Imagined:
    assert isinstance(answer, Imagined), answer
    return answer


def apart(one: bytes, other: bytes) -> int:
    return int(np.abs(pixels(one).astype(int) - pixels(other).astype(int)).max())


class Stopping(AloneTurn):
    """Nobody waits for this request any more, from the `after`th time it is asked."""

    def __init__(self, index: int, after: int) -> None:
        self.index = index
        self.left = after

    def stopped(self, index: int) -> bool:
        if index == self.index:
            self.left -= 1
        return index == self.index and self.left < 0


# Seeds.


def test_a_seed_gives_the_same_bytes_and_another_does_not(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    adapter = started(folder, adapters)
    first, again, other = ask(adapter, *(ImagineRequest("a cat", seed=seed) for seed in (5, 5, 6)))
    assert made(first) == again
    assert apart(first.images[0], made(other).images[0]) > 20


def test_without_a_seed_a_random_one_is_told(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    adapter = started(folder, adapters)
    first, second = (made(each) for each in ask(adapter, ImagineRequest("a cat"), ImagineRequest("a cat")))
    assert first.seed != second.seed
    assert made(ask(adapter, ImagineRequest("a cat", seed=first.seed))[0]) == first


def test_each_image_has_a_seed_of_its_own(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    adapter = started(folder, adapters)
    together = made(ask(adapter, ImagineRequest("a cat", seed=2**32 - 2, count=3))[0])
    assert len(set(together.images)) == 3
    for number, seed in enumerate((2**32 - 2, 2**32 - 1, 0)):
        (alone,) = made(ask(adapter, ImagineRequest("a cat", seed=seed))[0]).images
        assert apart(alone, together.images[number]) <= ONE_STEP_OF_ONE_COLOUR


# What is said and what is taken.


def test_images_are_plain_png_files(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    answer = made(ask(started(folder, adapters), ImagineRequest("a cat", width=48, height=16, seed=1))[0])
    assert (answer.width, answer.height, answer.steps, answer.flagged) == (48, 16, SETTINGS.steps, [])
    with Image.open(io.BytesIO(answer.images[0])) as image:
        assert (image.format, image.mode, image.size, image.info) == ("PNG", "RGB", (48, 16), {})


def test_what_a_request_does_not_say_is_the_profile_s(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    other = DiffusionSettings(width=16, height=24, steps=4, guidance=9.0, pixels_max=4_096, steps_max=4)
    silent = made(ask(started(folder, adapters, diffusion=other), ImagineRequest("a cat", seed=1))[0])
    said = ImagineRequest("a cat", seed=1, width=16, height=24, steps=4, guidance=9.0)
    assert silent == made(ask(started(folder, adapters), said)[0])
    assert silent != made(ask(started(folder, adapters), msgspec.structs.replace(said, guidance=1.0))[0])


def test_a_negative_prompt_matters(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    adapter = started(folder, adapters)
    request = ImagineRequest("a cat", seed=1, guidance=7.0, steps=4)
    plain, against = ask(adapter, request, msgspec.structs.replace(request, negative_prompt="a dog"))
    assert made(plain).images != made(against).images


def test_long_prompts_are_told_or_refused(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    cut, negative = ask(
        started(folder, adapters),
        ImagineRequest(LONG, seed=1),
        ImagineRequest("a cat", negative_prompt=LONG, seed=1),
    )
    assert (made(cut).truncated, cut.tokens) == (True, len(clip_tokenizer()(LONG)["input_ids"]))
    assert (made(negative).truncated, negative.tokens) == (True, 4)
    whole = ask(started(folder, adapters, truncate=False), ImagineRequest(LONG), ImagineRequest("a cat"))
    assert whole[0] == Refused(Code.INPUT_TOO_LARGE, f"a prompt has {cut.tokens} tokens and the limit is {TOKENS}")
    assert made(whole[1]).truncated is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"diffusion": DiffusionSettings(width=32, height=32, steps=9, steps_max=8)}, "9 steps"),
        ({"diffusion": DiffusionSettings(width=36, height=32)}, "multiples of 8"),
        ({"diffusion": DiffusionSettings(width=1_024, height=1_032)}, "1056768 pixels"),
        ({"max_length": 70}, "max_length"),
    ],
)
def test_profiles_that_no_request_could_meet_do_not_load(
    changes: dict[str, Any], words: str, folder: Path, adapters: list[DiffusionAdapter]
) -> None:
    with pytest.raises(Refusal, match=words) as caught:
        started(folder, adapters, **changes)
    assert caught.value.code == Code.LOAD_FAILED


def test_attention_of_the_profile(folder: Path, adapters: list[DiffusionAdapter], tmp_path: Path) -> None:
    request = ImagineRequest("a cat", seed=1)
    one, other = (made(ask(started(folder, adapters, attention=kind), request)[0]) for kind in ("eager", "sdpa"))
    assert apart(one.images[0], other.images[0]) <= ONE_STEP_OF_ONE_COLOUR
    assert type(next(iter(adapters[0].model.unet.attn_processors.values()))).__name__ == "AttnProcessor"
    flux(tmp_path)
    with pytest.raises(Refusal, match="attention"):
        started(tmp_path, adapters, attention="eager")


def test_smaller_dtype_runs(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    adapter = started(folder, adapters, dtype="bfloat16")
    assert adapter.health().capability
    exact = made(ask(started(folder, adapters), ImagineRequest("a cat", seed=1))[0])
    coarse = made(ask(adapter, ImagineRequest("a cat", seed=1))[0])
    assert np.abs(pixels(exact.images[0]).astype(int) - pixels(coarse.images[0]).astype(int)).mean() < 4


# Steps.


def counted(adapter: DiffusionAdapter) -> list[int]:
    """The sizes of the batches that the U-Net is given, one for each step."""
    sizes: list[int] = []
    adapter.model.unet.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    return sizes


def test_never_more_images_at_once_than_the_profile_allows(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    adapter = started(folder, adapters, limits=msgspec.structs.replace(PROFILE.limits, batch_max=2))
    sizes = counted(adapter)
    answer = made(ask(adapter, ImagineRequest("a cat", seed=1, count=3, guidance=1.0))[0])
    steps = len(sizes) // 2
    assert sizes == [2] * steps + [1] * steps
    assert len(answer.images) == 3


def test_a_request_nobody_waits_for_ends_after_its_step(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    adapter = started(folder, adapters)
    request = ImagineRequest("a cat", seed=1, steps=8)
    alone = ask(adapter, request)[0]
    sizes = counted(adapter)
    decoded: list[int] = []
    adapter.model.vae.decoder.register_forward_hook(lambda *_: decoded.append(1))
    answers = adapter.invoke([request, request], Stopping(0, after=3))
    assert isinstance(answers[0], Refused)
    assert answers[0].code == Code.INVOCATION_CANCELLED
    assert answers[1] == alone  # the pipeline is none the worse for it
    assert len(sizes) == 3 + 9  # the third step's end is when it was seen; eight steps take this scheduler nine
    assert decoded == [1]


def test_one_nobody_waits_for_is_not_begun(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    adapter = started(folder, adapters)
    adapter.model.text_encoder.register_forward_hook(lambda *_: pytest.fail("computed"))
    assert isinstance(adapter.invoke([ImagineRequest("a cat")], Stopping(0, after=0))[0], Refused)


# Numbers that are none.


def test_nan_in_a_step_refuses_its_request_at_once(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    adapter = started(folder, adapters)
    request = ImagineRequest("a cat", seed=1, steps=8)
    alone = ask(adapter, request)[0]
    sizes = counted(adapter)

    def poison(module: Any, inputs: Any, output: Any) -> Any:
        if len(sizes) == 2:
            output[0][1] = float("nan")
        return output

    hook = adapter.model.unet.register_forward_hook(poison)
    answer = ask(adapter, ImagineRequest("a cat", seed=1, steps=8, count=2, guidance=1.0))[0]
    hook.remove()
    assert answer == Refused(Code.OUTPUT_NOT_FINITE, "the model gave NaN or infinity for image 1")
    assert len(sizes) == 2
    assert ask(adapter, request)[0] == alone


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_the_decoder_gives_must_be_finite(value: float, folder: Path, adapters: list[DiffusionAdapter]) -> None:
    """Infinity would be bent into white, and nobody would see it."""
    adapter = started(folder, adapters)

    def poison(module: Any, inputs: Any, output: Any) -> Any:
        output[2, 0, 3, 3] = value
        return output

    adapter.model.vae.decoder.register_forward_hook(poison)
    answer = ask(adapter, ImagineRequest("a cat", seed=1, count=3))[0]
    assert answer == Refused(Code.OUTPUT_NOT_FINITE, "the model gave NaN or infinity for image 2")


def test_memory_that_runs_out_refuses_its_request_only(folder: Path, adapters: list[DiffusionAdapter]) -> None:
    import torch

    adapter = started(folder, adapters)
    small = ImagineRequest("a cat", seed=1)
    alone = ask(adapter, small)[0]

    def run_out(module: Any, inputs: Any) -> None:
        if inputs[0].shape[-1] > SETTINGS.width // 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    adapter.model.unet.register_forward_pre_hook(run_out)
    answers = ask(adapter, small, ImagineRequest("a cat", seed=1, width=64), small)
    assert (answers[0], answers[2]) == (alone, alone)
    assert answers[1] == Refused(Code.OUT_OF_MEMORY, "CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.filterwarnings("ignore:`upcast_vae`:FutureWarning")  # of the library about itself
def test_a_decoder_that_failed_in_float32_is_put_back(tmp_path: Path, adapters: list[DiffusionAdapter]) -> None:
    import torch

    stable_diffusion_xl(tmp_path)
    edit(tmp_path, lambda one: one.update(force_upcast=True), "vae/config.json")
    adapter = started(tmp_path, adapters, dtype="float16")
    seen = []

    def run_out(module: Any, inputs: Any) -> None:
        seen.append(adapter.model.vae.dtype)
        raise torch.OutOfMemoryError("out of memory")

    hook = adapter.model.vae.decoder.register_forward_pre_hook(run_out)
    assert ask(adapter, ImagineRequest("a cat", seed=1))[0].code == Code.OUT_OF_MEMORY
    hook.remove()
    assert seen == [torch.float32]
    assert adapter.model.vae.dtype == torch.float16
    assert made(ask(adapter, ImagineRequest("a cat", seed=1))[0]).images


# Files.


def inspect(folder: Path) -> Inspection:
    return registry.inspect("diffusers", "image_generation", folder, files_of(folder))


def edit(folder: Path, change: Callable[[dict[str, Any]], object], name: str = "model_index.json") -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: edit(one, lambda index: index.update(_class_name="WanPipeline")), "pipeline `WanPipeline`"),
        (lambda one: edit(one, lambda index: index.update(_class_name=["own", "Pipe"])), "names no pipeline class"),
        (lambda one: edit(one, lambda index: index.update(unet=["diffusers", "UNet3DConditionModel"])),
         "names `diffusers.UNet3DConditionModel` as `unet`"),
        (lambda one: edit(one, lambda index: index.update(unet=["os", "system"])), "takes `unet` from `os`"),
        (lambda one: edit(one, lambda index: index.update(controlnet=["diffusers", "ControlNetModel"])),
         "a part `controlnet`, which this pipeline does not have"),
        (lambda one: edit(one, lambda index: index.update(vae=[None, None])), "names no `vae`"),
        (lambda one: shutil.rmtree(one / "text_encoder"), "the folder `text_encoder` is missing"),
        (lambda one: (one / "scheduler/scheduler_config.json").unlink(), "the folder `scheduler` is missing"),
        (lambda one: (one / "tokenizer/tokenizer.json").unlink(), "there is no tokenizer in `tokenizer/`"),
        (lambda one: (one / "unet/config.json").unlink(), "`unet/config.json` is missing"),
        (lambda one: (one / "vae/diffusion_pytorch_model.safetensors").unlink(),
         "`vae/diffusion_pytorch_model.safetensors` is missing"),
        (lambda one: (one / "unet/my_unet.py").write_text(""), "my_unet.py"),
        (lambda one: edit(one, lambda index: index.update(
            safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"])),
         "names a `safety_checker`, and the folder `safety_checker` is missing; an index with `[null, null]` there"),
    ],
)  # fmt: skip
def test_what_keeps_a_pipeline_from_running(change: Callable[[Path], None], words: str, copy: Path) -> None:
    assert inspect(copy).compatible
    change(copy)
    reasons = inspect(copy).reasons
    assert reasons
    assert {reason.code for reason in reasons} == {Code.RUNTIME_INCOMPATIBLE}
    assert any(words in reason.message for reason in reasons), reasons


def test_a_part_that_the_table_does_not_allow_is_not_loaded_either(
    copy: Path, adapters: list[DiffusionAdapter]
) -> None:
    """Should an inspection ever be passed by."""
    edit(copy, lambda index: index.update(unet=["subprocess", "Popen"]))
    with pytest.raises(Refusal, match=r"subprocess\.Popen"):
        started(copy, adapters)
    edit(copy, lambda index: index.update(_class_name="OwnPipeline"))
    with pytest.raises(Refusal, match="OwnPipeline"):
        started(copy, adapters)


def test_weights_of_the_variant_only(folder: Path, copy: Path, adapters: list[DiffusionAdapter]) -> None:
    for part in ("unet", "vae"):
        plain = copy / part / "diffusion_pytorch_model.safetensors"
        plain.rename(plain.with_name("diffusion_pytorch_model.fp16.safetensors"))
    (copy / "text_encoder/model.safetensors").rename(copy / "text_encoder/model.fp16.safetensors")
    seen = inspect(copy)
    assert seen.compatible, seen.reasons
    assert seen.parameters == inspect(folder).parameters
    request = ImagineRequest("a cat", seed=1)
    assert ask(started(copy, adapters), request) == ask(started(folder, adapters), request)


def test_weights_that_the_files_lack_are_not_made_up(copy: Path, adapters: list[DiffusionAdapter]) -> None:
    from safetensors.torch import load_file, save_file

    for path in ("unet/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"):
        tensors = load_file(copy / path)
        gone = max(tensors)
        kept = tensors.pop(gone)
        save_file(tensors, copy / path, metadata={"format": "pt"})
        with pytest.raises(Refusal, match="lack 1 weights"):
            started(copy, adapters)
        save_file({**tensors, gone: kept}, copy / path, metadata={"format": "pt"})
    started(copy, adapters)


def _checker(threshold: float) -> dict[str, Any]:
    """A real checker that finds its one concept in everything that is nearer than `threshold`."""
    import torch
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPVisionConfig

    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=37, num_hidden_layers=1, num_attention_heads=4, image_size=30, patch_size=10
    )
    torch.manual_seed(1)
    checker = StableDiffusionSafetyChecker(CLIPConfig(vision_config=vision.to_dict(), projection_dim=16))
    checker.concept_embeds.data.fill_(1.0)
    checker.concept_embeds_weights.data.fill_(threshold)
    checker.special_care_embeds.data.fill_(1.0)
    checker.special_care_embeds_weights.data.fill_(10.0)
    seeing = CLIPImageProcessorPil(size={"shortest_edge": 30}, crop_size={"height": 30, "width": 30})
    return {"safety_checker": checker, "feature_extractor": seeing, "requires_safety_checker": True}


def test_a_safety_checker_runs_and_what_it_blanks_is_told(
    folder: Path, tmp_path: Path, adapters: list[DiffusionAdapter]
) -> None:
    request = ImagineRequest("a cat", seed=1, count=2)
    free = made(ask(started(folder, adapters), request)[0])
    for name, threshold, flagged in (("strict", -2.0, True), ("mild", 2.0, False)):
        stable_diffusion(tmp_path / name, **_checker(threshold))
        seen = inspect(tmp_path / name)
        assert seen.compatible, seen.reasons
        assert seen.details == {"safety checker": "yes"}
        answer = made(ask(started(tmp_path / name, adapters), request)[0])
        assert answer.flagged == [flagged] * 2
        assert all((pixels(image) == 0).all() == flagged for image in answer.images)
        assert (answer.images == free.images) is not flagged
    shutil.rmtree(tmp_path / "mild" / "safety_checker")
    assert "safety_checker" in inspect(tmp_path / "mild").reasons[0].message


def test_a_node_without_diffusers_says_so_and_tells_the_facts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str, real: Callable[[str], str] = importlib.metadata.version) -> str:
        if name == "diffusers":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    seen = inspect(folder)
    assert [reason.message for reason in seen.reasons] == [
        "adapter `diffusers` needs packages that are not installed: diffusers"
    ]
    assert (seen.architecture, seen.max_length) == ("StableDiffusionPipeline", TOKENS)
    assert seen.parameters
    assert "diffusers" not in registry.capabilities()
