"""Tiny TrOCR models with random weights: a ViT that reads greedily, saved with its processor in one file, and a DeiT
with beams and computed positions, saved as older checkpoints are. The weights are wide, so that different images have
different texts."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from schemas.profiles import ImageSettings, RuntimeProfile
from schemas.tasks.image import OcrRequest, Recognised
from schemas.tasks.requests import Request, Result
from services.showcase.made_tokenizers import byte_pairs
from services.showcase.model import Model

NEW_TOKENS_MAX = 12
SIDE = 32
SETTINGS = ImageSettings(new_tokens_max=NEW_TOKENS_MAX, pixels_max=10_000)
PROFILE = RuntimeProfile(adapter="transformers_trocr", task="ocr", threads=1, image=SETTINGS)
BEAMS = msgspec.structs.replace(PROFILE, image=msgspec.structs.replace(SETTINGS, num_beams=3))


def line(seed: int, width: int = 90, height: int = 24, kind: str = "PNG") -> bytes:
    """Strokes on paper, different for each seed."""
    made = np.random.default_rng(seed)
    paper = np.full((height, width, 3), 240, dtype=np.uint8)
    for at in range(4, width - 8, 8):
        begin, end = sorted(made.integers(2, height - 2, 2))
        paper[begin : end + 1, at : at + int(made.integers(1, 7))] = made.integers(0, 120, 3)
    out = io.BytesIO()
    Image.fromarray(paper).save(out, kind)
    return out.getvalue()


REQUESTS: list[Request] = [
    OcrRequest([line(1)]),
    OcrRequest([line(2, 40), line(3, 200, 40), line(4, 64, 64, "BMP")]),
    OcrRequest([line(5)]),
]


def _tokenizer() -> Any:
    return byte_pairs({"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"})


def _model(encoder: Any, seed: int, end: int | None, **more: object) -> Any:
    import torch
    from transformers import TrOCRConfig, TrOCRForCausalLM, VisionEncoderDecoderModel

    torch.manual_seed(seed)
    decoder = TrOCRConfig(
        vocab_size=len(_tokenizer()), d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=48,
        max_position_embeddings=40, init_std=0.4, **more,
    )  # fmt: skip
    model = VisionEncoderDecoderModel(encoder=encoder(), decoder=TrOCRForCausalLM(decoder)).eval()
    rules = model.generation_config
    rules.decoder_start_token_id, rules.pad_token_id, rules.eos_token_id = 0, 1, 2
    if end is not None:
        rows = model.decoder.output_projection.weight
        with torch.no_grad():
            rows[[2, end]] = rows[[end, 2]]  # nothing was trained to end a text: where it would write `end`, it ends
    return model


_ENCODER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "image_size": SIDE,
    "patch_size": 8, "initializer_range": 0.4,
}  # fmt: skip


def _vit() -> Any:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(**_ENCODER), add_pooling_layer=False)


def _deit() -> Any:
    from transformers import DeiTConfig, DeiTModel

    return DeiTModel(DeiTConfig(**_ENCODER), add_pooling_layer=False)


def build_vit(folder: Path) -> None:
    from transformers import TrOCRProcessor, ViTImageProcessorPil

    _model(_vit, seed=1, end=84).save_pretrained(folder)
    image_processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    TrOCRProcessor(image_processor, _tokenizer()).save_pretrained(folder)


def build_deit(folder: Path) -> None:
    from transformers import DeiTImageProcessorPil

    _model(_deit, seed=6, end=192, use_learned_position_embeddings=False, scale_embedding=True).save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    DeiTImageProcessorPil(size=size, do_center_crop=False).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


@functools.lru_cache(maxsize=2)
def library(folder: Path) -> tuple[Any, Any, Any]:
    """The weights go into a model that was made from its configuration, because the installed library's
    `from_pretrained` leaves a table of computed positions without numbers."""
    from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, VisionEncoderDecoderModel

    read = VisionEncoderDecoderModel.from_pretrained(folder)
    model = VisionEncoderDecoderModel(AutoConfig.from_pretrained(folder)).eval()
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    return model, AutoImageProcessor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def reference(folder: Path, profile: RuntimeProfile, request: Request) -> Result:
    """Image by image, as the library's documentation does it."""
    import torch

    assert isinstance(request, OcrRequest)
    assert isinstance(profile.image, ImageSettings)
    model, processor, tokenizer = library(folder)
    beams = profile.image.num_beams if isinstance(profile.image.num_beams, int) else 1
    texts, tokens, truncated = [], [], []
    for data in request.images:
        pixels = processor(Image.open(io.BytesIO(data)).convert("RGB"), return_tensors="pt").pixel_values
        with torch.inference_mode():
            written = model.generate(pixels, max_new_tokens=NEW_TOKENS_MAX, num_beams=beams, do_sample=False)[0, 1:]
        ended = (written == 2).nonzero()
        texts.append(tokenizer.decode(written, skip_special_tokens=True))
        tokens.append(int(ended[0]) + 1 if len(ended) else len(written))
        truncated.append(not len(ended))
    return Recognised(texts, tokens, truncated, [[] for _ in texts])


def _case(name: str, profile: RuntimeProfile, build: Callable[[Path], None]) -> Model:
    return Model(
        name=name,
        profile=profile,
        build=build,
        requests=REQUESTS,
        reference=reference,
        tolerance=0.0,
        empty=OcrRequest([]),
        bad=[
            (OcrRequest([line(1), b"no image"]), "INPUT_INVALID"),
            (OcrRequest([line(1, 200, 60)]), "INPUT_TOO_LARGE"),
            (OcrRequest([line(1), line(2)[:60]]), "INPUT_INVALID"),
        ],
    )


MODELS = [_case("trocr-vit", PROFILE, build_vit), _case("trocr-deit-beams", BEAMS, build_deit)]
