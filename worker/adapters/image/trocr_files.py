"""Static inspection of a folder for the transformers_trocr adapter.

Compatible means: a VisionEncoderDecoder of a ViT or DeiT encoder and the TrOCR decoder, all of which the installed
transformers has code for; whole safetensors weights; a tokenizer; an image processor of one of their kinds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.artifacts import FileEntry
from worker.adapters.contract import Inspection
from worker.adapters.folder import ModelFolder
from worker.adapters.image.processor_files import check_image_processor

MODEL_TYPES = frozenset({"vision-encoder-decoder"})
PARTS = {"encoder": frozenset({"vit", "deit"}), "decoder": frozenset({"trocr"})}
IMAGE_PROCESSORS = frozenset({"ViTImageProcessor", "DeiTImageProcessor"})


def inspect_files(folder: Path, files: list[FileEntry]) -> Inspection:
    look = ModelFolder(folder, files)
    look.check_no_code()
    config = look.read_object("config.json", needed=True)
    if look.check_model_type(config, MODEL_TYPES):
        for name, allowed in PARTS.items():
            part: Any = config.get(name)
            if isinstance(part, dict) and part:
                look.check_model_type(part, allowed, path=f"config.json: {name}")
            else:
                look.refuse(f"`config.json` describes no {name}")
    check_image_processor(look, IMAGE_PROCESSORS)
    look.check_tokenizer()
    look.check_weights()
    return look.outcome(config)
