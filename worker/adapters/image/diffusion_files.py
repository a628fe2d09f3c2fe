"""Static inspection of a folder for the diffusers adapter, from its `model_index.json`.

Compatible means: the pipeline is one of PIPELINES, every part that it must have is there and every part that the index
names is of a class listed for its place, with its own files; weights are whole safetensors, in the plain files or, for
a part that has only those, in the files of the variant `fp16`. A pipeline or part of another class, one that needs code
of its own and one from another library are refused: `diffusers` would import what the index names.

A safety checker is part of the pipeline: an index that names one whose files are not there is refused. One that names
none (`[null, null]`) runs without, as it says.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from schemas.artifacts import FileEntry
from worker.adapters.contract import Inspection
from worker.adapters.folder import ModelFolder

INDEX = "model_index.json"
VARIANT = "fp16"
CLIP_TOKENS = 77  # where a tokenizer does not say
T5_TOKENS = 512  # the pipeline's own bound, whatever the tokenizer says

Kind = Literal["model", "tokenizer", "scheduler", "processor"]


class Part(Struct, frozen=True):
    """What may stand in one place of a pipeline: `library:class`."""

    kind: Kind
    classes: frozenset[str]
    needed: bool = True


def _diffusers(*names: str) -> frozenset[str]:
    return frozenset(f"diffusers:{name}" for name in names)


def _transformers(*names: str) -> frozenset[str]:
    return frozenset(f"transformers:{name}" for name in names)


_SCHEDULER = Part(
    "scheduler",
    _diffusers(
        *("DDIMScheduler", "DDPMScheduler", "DEISMultistepScheduler", "DPMSolverMultistepScheduler"),
        *("DPMSolverSinglestepScheduler", "EulerAncestralDiscreteScheduler", "EulerDiscreteScheduler"),
        *("HeunDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "KDPM2DiscreteScheduler", "LCMScheduler"),
        *("LMSDiscreteScheduler", "PNDMScheduler", "TCDScheduler", "UniPCMultistepScheduler"),
    ),
)
_VAE = Part("model", _diffusers("AutoencoderKL"))
_UNET = Part("model", _diffusers("UNet2DConditionModel"))
_CLIP = Part("model", _transformers("CLIPTextModel"))
_CLIP_TOKENIZER = Part("tokenizer", _transformers("CLIPTokenizer", "CLIPTokenizerFast"))
# Parts for images as a further input, which a request does not have; the index may name them.
_SEEING = {
    "feature_extractor": Part(
        "processor",
        _transformers("CLIPFeatureExtractor", "CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPImageProcessorPil"),
        needed=False,
    ),
    "image_encoder": Part("model", _transformers("CLIPVisionModelWithProjection"), needed=False),
}

PIPELINES: dict[str, dict[str, Part]] = {
    "StableDiffusionPipeline": {
        "scheduler": _SCHEDULER,
        "text_encoder": _CLIP,
        "tokenizer": _CLIP_TOKENIZER,
        "unet": _UNET,
        "vae": _VAE,
        "safety_checker": Part("model", frozenset({"stable_diffusion:StableDiffusionSafetyChecker"}), needed=False),
        **_SEEING,
    },
    "StableDiffusionXLPipeline": {
        "scheduler": _SCHEDULER,
        "text_encoder": _CLIP,
        "text_encoder_2": Part("model", _transformers("CLIPTextModelWithProjection")),
        "tokenizer": _CLIP_TOKENIZER,
        "tokenizer_2": _CLIP_TOKENIZER,
        "unet": _UNET,
        "vae": _VAE,
        **_SEEING,
    },
    "FluxPipeline": {
        "scheduler": Part("scheduler", _diffusers("FlowMatchEulerDiscreteScheduler")),
        "text_encoder": _CLIP,
        "text_encoder_2": Part("model", _transformers("T5EncoderModel")),
        "tokenizer": _CLIP_TOKENIZER,
        "tokenizer_2": Part("tokenizer", _transformers("T5Tokenizer", "T5TokenizerFast")),
        "transformer": Part("model", _diffusers("FluxTransformer2DModel")),
        "vae": _VAE,
        **_SEEING,
    },
}


def inspect_files(folder: Path, files: list[FileEntry]) -> Inspection:
    look = ModelFolder(folder, files)
    look.check_no_code()
    index = look.read_object(INDEX, needed=True)
    name = index.get("_class_name")
    parts = PIPELINES.get(name) if isinstance(name, str) else None
    if index and parts is None:
        look.refuse(f"`{INDEX}` names the pipeline `{name}`, which is not one of {', '.join(PIPELINES)}")
    if index and parts is not None:
        _check_parts(look, index, parts)
    checker = "yes" if named(index, "safety_checker") else "no"
    return msgspec.structs.replace(
        look.outcome({}, max_length=_tokens(look, parts) if parts else None),
        architecture=name if isinstance(name, str) else None,
        details={"safety checker": checker} if parts and "safety_checker" in parts else {},
    )


def _tokens(look: ModelFolder, parts: dict[str, Part]) -> int:
    """What the encoder that reads the whole prompt takes."""
    if "transformer" in parts:
        return T5_TOKENS
    stated = look.read_object("tokenizer/tokenizer_config.json", needed=False).get("model_max_length")
    return stated if isinstance(stated, int) else CLIP_TOKENS


def named(index: dict[str, Any], place: str) -> tuple[str, str] | None:
    """Library and class of what the index names for this place; None where it names nothing."""
    value = index.get(place)
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(each, str) for each in value):
        return None
    return value[0], value[1]


def variant_of(paths: Collection[str], place: str, weights: str) -> str | None:
    """The variant whose file is to be read, where a part has only that; None for the plain one."""
    plain, index = f"{place}/{weights}", f"{place}/{weights}.index.json"
    other = f"{place}/{_with_variant(weights)}"
    return VARIANT if plain not in paths and index not in paths and other in paths else None


def weights_name(library: str) -> str:
    return "diffusion_pytorch_model.safetensors" if library == "diffusers" else "model.safetensors"


def _with_variant(weights: str) -> str:
    return weights.replace(".safetensors", f".{VARIANT}.safetensors")


def _check_parts(look: ModelFolder, index: dict[str, Any], parts: dict[str, Part]) -> None:
    for place, value in index.items():
        if not place.startswith("_") and isinstance(value, list) and value[:1] != [None] and place not in parts:
            look.refuse(f"`{INDEX}` names a part `{place}`, which this pipeline does not have")
    for place, part in parts.items():
        found = named(index, place)
        if found is None:
            if part.needed:
                look.refuse(f"`{INDEX}` names no `{place}`")
            continue
        library, name = found
        if f"{library}:{name}" not in part.classes:
            allowed = ", ".join(sorted(each.partition(":")[2] for each in part.classes))
            look.refuse(f"`{INDEX}` names `{library}.{name}` as `{place}`, which is not one of {allowed}")
            continue
        if not any(path.startswith(f"{place}/") for path in look.paths):
            hint = "; an index with `[null, null]` there runs without it" if not part.needed else ""
            look.refuse(f"`{INDEX}` names a `{place}`, and the folder `{place}` is missing{hint}")
            continue
        _check_part(look, place, part.kind, library)


def _check_part(look: ModelFolder, place: str, kind: Kind, library: str) -> None:
    match kind:
        case "model":
            look.read_object(f"{place}/config.json", needed=True)
            weights = weights_name(library)
            chosen = _with_variant(weights) if variant_of(look.paths, place, weights) else weights
            look.check_weights(f"{place}/", chosen)
        case "tokenizer":
            look.check_tokenizer(f"{place}/")
        case "scheduler":
            look.read_object(f"{place}/scheduler_config.json", needed=True)
        case "processor":
            look.read_object(f"{place}/preprocessor_config.json", needed=True)
