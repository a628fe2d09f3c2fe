"""Tiny SigLIP2 models with random weights: one that keeps an image's shape (NaFlex), for both tasks, and one of fixed
resolution. Their tokenizers are the real classes, with a small vocabulary, set as the real checkpoints have them."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from schemas.profiles import ImageSettings, RuntimeProfile
from schemas.tasks.image import Classified, ClassifyRequest, EmbedImagesRequest, ImagesEmbedded
from schemas.tasks.requests import Request, Result
from services.showcase.model import Model
from services.showcase.trocr import line

POSITIONS = 16
SETTINGS = ImageSettings(pixels_max=10_000)
EMBED = RuntimeProfile(adapter="transformers_siglip2", task="image_embedding", threads=1, image=SETTINGS)
CLASSIFY = RuntimeProfile(adapter="transformers_siglip2", task="zero_shot_image", threads=1, image=SETTINGS)
LONG = "a cat and a dog " * 10
EMBED_REQUESTS: list[Request] = [
    EmbedImagesRequest([line(1)], ["a cat"]),
    EmbedImagesRequest([line(2, 40), line(3, 200, 40), line(4, 64, 64, "BMP")], ["A Dog!", "", LONG]),
    EmbedImagesRequest([], ["only a text"]),
    EmbedImagesRequest([line(5)], []),
]
CLASSIFY_REQUESTS: list[Request] = [
    ClassifyRequest([line(1)], ["a cat"]),
    ClassifyRequest([line(2, 40), line(3, 200, 40)], ["a dog", "A Cat", LONG, ""]),
    ClassifyRequest([line(5), line(1), line(4, 64, 64)], ["and", "no"]),
]
BAD_IMAGE = b"\x89PNG\r\n\x1a\n no more"
_TOWER: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip


def _tokenizer(kind: Any) -> Any:
    letters = "abcdefghijklmnopqrstuvwxyz.,'0123456789"
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *letters, "ca", "cat", "do", "dog", "▁a"]
    merges = [("c", "a"), ("ca", "t"), ("d", "o"), ("do", "g"), ("▁", "a")]
    return kind(
        vocab={token: number for number, token in enumerate(tokens)}, merges=merges, add_eos_token=True,
        add_bos_token=False, padding_side="right", model_input_names=["input_ids"],
    )  # fmt: skip


def _spread(model: Any) -> Any:
    """The library's own beginnings are so alike that a mistake would not show."""
    import torch

    made = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=made) * 0.2)
        model.logit_scale.fill_(2.0)
        model.logit_bias.fill_(-1.0)
    return model.eval()


def build_naflex(folder: Path) -> None:
    import torch
    from transformers import Siglip2Config, Siglip2ImageProcessorPil, Siglip2Model, Siglip2Tokenizer

    tokenizer = _tokenizer(Siglip2Tokenizer)
    torch.manual_seed(5)
    config = Siglip2Config(
        text_config={**_TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS, **_ENDS},
        vision_config={**_TOWER, "patch_size": 4, "num_patches": 64},
    )
    _spread(Siglip2Model(config)).save_pretrained(folder)
    Siglip2ImageProcessorPil(patch_size=4, max_num_patches=48).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


_ENDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}


def build_fixed(folder: Path) -> None:
    import torch
    from transformers import GemmaTokenizer, SiglipConfig, SiglipImageProcessorPil, SiglipModel, SiglipProcessor

    tokenizer = _tokenizer(GemmaTokenizer)
    torch.manual_seed(5)
    config = SiglipConfig(
        text_config={**_TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS, **_ENDS},
        vision_config={**_TOWER, "image_size": 32, "patch_size": 8},
    )
    _spread(SiglipModel(config)).save_pretrained(folder)
    image_processor = SiglipImageProcessorPil(size={"height": 32, "width": 32}, resample=2)
    SiglipProcessor(image_processor, tokenizer).save_pretrained(folder)


@functools.lru_cache(maxsize=2)
def library(folder: Path) -> tuple[Any, Any, Any]:
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    return model, AutoImageProcessor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def _images(processor: Any, images: list[bytes]) -> Any:
    opened = [Image.open(io.BytesIO(data)).convert("RGB") for data in images]
    return processor(opened, return_tensors="pt")


def _texts(tokenizer: Any, texts: list[str]) -> Any:
    return tokenizer(texts, padding="max_length", truncation=True, max_length=POSITIONS, return_tensors="pt")


def _counts(tokenizer: Any, texts: list[str]) -> dict[str, list[Any]]:
    counts = [len(tokenizer(text)["input_ids"]) for text in texts]
    return {"tokens": counts, "truncated": [count > POSITIONS for count in counts]}


def embeddings(folder: Path, profile: RuntimeProfile, request: Request) -> Result:
    """As the library's documentation does it."""
    import torch

    assert isinstance(request, EmbedImagesRequest)
    model, processor, tokenizer = library(folder)

    def rows(features: Any) -> np.ndarray:
        made = features.pooler_output
        return np.asarray(made / made.norm(dim=-1, keepdim=True))

    images = texts = np.zeros((0, 32), dtype=np.float32)
    with torch.inference_mode():
        if request.images:
            images = rows(model.get_image_features(**_images(processor, request.images)))
        if request.texts:
            texts = rows(model.get_text_features(**_texts(tokenizer, request.texts)))
    return ImagesEmbedded(
        image_vectors=images.tobytes(), images=len(images), text_vectors=texts.tobytes(), texts=len(texts),
        dimensions=32, conversions=[[] for _ in request.images], **_counts(tokenizer, request.texts),
    )  # fmt: skip


def probabilities(folder: Path, profile: RuntimeProfile, request: Request) -> Result:
    """The whole model at once, as the library's documentation does it."""
    import torch

    assert isinstance(request, ClassifyRequest)
    model, processor, tokenizer = library(folder)
    with torch.inference_mode():
        out = model(**_images(processor, request.images), **_texts(tokenizer, request.labels))
    scores = torch.sigmoid(out.logits_per_image)
    return Classified(
        scores=scores.tolist(),
        order=[sorted(range(len(row)), key=lambda place: -row[place]) for row in scores.tolist()],
        conversions=[[] for _ in request.images],
        **_counts(tokenizer, request.labels),
    )


def _embedding(name: str, build: Callable[[Path], None]) -> Model:
    return Model(
        name=name,
        profile=EMBED,
        build=build,
        requests=EMBED_REQUESTS,
        reference=embeddings,
        tolerance=2e-6,
        empty=EmbedImagesRequest([], []),
        bad=[
            (EmbedImagesRequest([line(1), BAD_IMAGE], ["a cat"]), "INPUT_INVALID"),
            (EmbedImagesRequest([line(1, 200, 60)]), "INPUT_TOO_LARGE"),
        ],
    )


MODELS = [
    _embedding("siglip2-naflex", build_naflex),
    _embedding("siglip2-fixed", build_fixed),
    Model(
        name="siglip2-naflex-zero-shot",
        profile=CLASSIFY,
        build=build_naflex,
        requests=CLASSIFY_REQUESTS,
        reference=probabilities,
        tolerance=2e-6,
        bad=[(ClassifyRequest([BAD_IMAGE], ["a cat"]), "INPUT_INVALID")],
    ),
]
