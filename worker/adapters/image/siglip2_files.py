"""Static inspection of a folder for the transformers_siglip2 adapter.

Compatible means: a whole SigLIP or SigLIP2 model (not one of its halves, and not a classifier), both of whose towers
end in the same number of dimensions; an image processor of its kind; safetensors weights; a tokenizer whose packages
are here. The first SigLIP's own tokenizer takes punctuation out and needs sentencepiece; without it the library would
take another tokenizer, whose tokens are not those the model was trained on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.artifacts import FileEntry
from worker.adapters.contract import Inspection
from worker.adapters.folder import SENTENCEPIECE_PACKAGES, ModelFolder
from worker.adapters.image.processor_files import check_image_processor

ARCHITECTURES = {"siglip": "SiglipModel", "siglip2": "Siglip2Model"}
IMAGE_PROCESSORS = {
    "siglip": frozenset({"SiglipImageProcessor"}),
    "siglip2": frozenset({"Siglip2ImageProcessor"}),
}
# What the library takes where a configuration does not say.
HIDDEN = 768
POSITIONS = 64


def inspect_files(folder: Path, files: list[FileEntry]) -> Inspection:
    look = ModelFolder(folder, files)
    look.check_no_code()
    config = look.read_object("config.json", needed=True)
    model_type = look.check_model_type(config, ARCHITECTURES)
    text, vision = _part(config, "text_config"), _part(config, "vision_config")
    dimensions = vision.get("hidden_size", HIDDEN)
    if model_type:
        _check_architecture(look, config, model_type)
        projected = text.get("projection_size") or text.get("hidden_size", HIDDEN)
        if projected != dimensions:
            look.refuse(f"texts have {projected} dimensions and images {dimensions}: they can't be compared")
        if vision.get("vision_use_head") is False:
            look.refuse("the vision tower has no head, so that images have no embedding")
        check_image_processor(look, IMAGE_PROCESSORS[model_type])
    look.check_tokenizer()
    _check_first_tokenizer(look, model_type)
    look.check_weights()
    positions = text.get("max_position_embeddings", POSITIONS)
    known = bool(model_type) and isinstance(dimensions, int) and isinstance(positions, int)
    return look.outcome(config, dimensions=dimensions if known else None, max_length=positions if known else None)


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


def _check_architecture(look: ModelFolder, config: dict[str, Any], model_type: str) -> None:
    named = config.get("architectures")
    if isinstance(named, list) and named and named[0] != ARCHITECTURES[model_type]:
        look.refuse(f"`config.json` names the architecture `{named[0]}`; {ARCHITECTURES[model_type]} is needed")


def _check_first_tokenizer(look: ModelFolder, model_type: str) -> None:
    named = look.read_object("tokenizer_config.json", needed=False).get("tokenizer_class")
    own = str(named).removesuffix("Fast") == "SiglipTokenizer" or (named is None and model_type == "siglip")
    if own and "spiece.model" not in look.paths:
        look.refuse("`spiece.model` is missing, which the tokenizer of the first SigLIP reads")
    elif own and "tokenizer.json" in look.paths:
        look.check_packages("the tokenizer of the first SigLIP", SENTENCEPIECE_PACKAGES)
