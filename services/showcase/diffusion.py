"""Tiny diffusion pipelines with random weights, saved by the library: Stable Diffusion, its XL and Flux."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from schemas.profiles import DiffusionSettings, RuntimeProfile
from schemas.tasks.image import Imagined, ImagineRequest
from schemas.tasks.requests import Request, Result
from services.showcase.model import Model

SETTINGS = DiffusionSettings(width=32, height=32, steps=2, guidance=4.0, pixels_max=64 * 64, steps_max=8)
PROFILE = RuntimeProfile(adapter="diffusers", task="image_generation", threads=1, diffusion=SETTINGS)
TOKENS = 77
LONG = "a cat and a dog " * 80
REQUESTS: list[Request] = [
    ImagineRequest("a cat", seed=1),
    ImagineRequest("a dog", negative_prompt="a cat", width=64, height=32, steps=3, guidance=7.0, seed=2, count=3),
    ImagineRequest("", seed=2**32 - 1, count=2),
    ImagineRequest(LONG, seed=3, guidance=1.0),
]


def clip_tokenizer() -> Any:
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "ca", "cat</w>", "do", "dog</w>"]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>")]
    vocab = {token: number for number, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=TOKENS)


def clip_config(tokenizer: Any, **more: Any) -> Any:
    from transformers import CLIPTextConfig

    return CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        **more,
    )  # fmt: skip


def _vae(channels: int = 4, **more: Any) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(4, 8), in_channels=3, out_channels=3, latent_channels=channels, norm_num_groups=2,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, **more,
    )  # fmt: skip


def _unet(**more: Any) -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        block_out_channels=(4, 8), layers_per_block=1, sample_size=16, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), norm_num_groups=2,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), **more,
    )  # fmt: skip


_NOISE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


def stable_diffusion(folder: Path, **parts: Any) -> None:
    import torch
    from diffusers import PNDMScheduler, StableDiffusionPipeline
    from transformers import CLIPTextModel

    torch.manual_seed(1)
    tokenizer = clip_tokenizer()
    made = {
        "vae": _vae(), "unet": _unet(cross_attention_dim=32), "tokenizer": tokenizer,
        "text_encoder": CLIPTextModel(clip_config(tokenizer)),
        "scheduler": PNDMScheduler(**_NOISE, skip_prk_steps=True), "safety_checker": None, "feature_extractor": None,
        "requires_safety_checker": False,
    }  # fmt: skip
    StableDiffusionPipeline(**{**made, **parts}).save_pretrained(folder)


def stable_diffusion_xl(folder: Path) -> None:
    import torch
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    torch.manual_seed(1)
    tokenizer = clip_tokenizer()
    StableDiffusionXLPipeline(
        vae=_vae(), tokenizer=tokenizer, tokenizer_2=clip_tokenizer(),
        unet=_unet(
            cross_attention_dim=64, attention_head_dim=(2, 4), use_linear_projection=True,
            addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=80,
            transformer_layers_per_block=(1, 2),
        ),
        text_encoder=CLIPTextModel(clip_config(tokenizer)),
        text_encoder_2=CLIPTextModelWithProjection(clip_config(tokenizer, projection_dim=32)),
        scheduler=EulerDiscreteScheduler(**_NOISE, timestep_spacing="leading"), add_watermarker=False,
    ).save_pretrained(folder)  # fmt: skip


def flux(folder: Path) -> None:
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
    from transformers import CLIPTextModel, T5Config, T5EncoderModel, T5TokenizerFast

    torch.manual_seed(1)
    tokenizer = clip_tokenizer()
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), ("▁", -2.0), ("▁cat", -3.0), ("▁dog", -3.0), ("▁a", -3.0)]
    pieces += [(letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    words = T5TokenizerFast(vocab=pieces, extra_ids=0, model_max_length=96)
    t5 = T5Config(
        vocab_size=len(words), d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=1
    )
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=_vae(1, use_quant_conv=False, use_post_quant_conv=False,
        shift_factor=0.0609, scaling_factor=1.5035), tokenizer=tokenizer, tokenizer_2=words,
        text_encoder=CLIPTextModel(clip_config(tokenizer)), text_encoder_2=T5EncoderModel(t5),
        transformer=FluxTransformer2DModel(
            patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
            guidance_embeds=True,
        ),
    ).save_pretrained(folder)  # fmt: skip


@functools.lru_cache(maxsize=3)
def library(folder: Path) -> Any:
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(str(folder))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def reference(folder: Path, profile: RuntimeProfile, request: Request) -> Result:
    """Image by image, as the library's documentation does it, and as PNG from the library's own images."""
    import torch

    assert isinstance(request, ImagineRequest)
    pipeline = library(folder)
    width, height = request.width or SETTINGS.width, request.height or SETTINGS.height
    steps = request.steps or SETTINGS.steps
    said = {"negative_prompt": request.negative_prompt} if request.negative_prompt else {}
    images = []
    for number in range(request.count):
        (image,) = pipeline(
            request.prompt, width=width, height=height, num_inference_steps=steps,
            guidance_scale=SETTINGS.guidance if request.guidance is None else request.guidance,
            generator=torch.Generator().manual_seed((request.seed or 0) + number), **said,
        ).images  # fmt: skip
        out = io.BytesIO()
        image.save(out, "PNG")
        images.append(out.getvalue())
    t5 = hasattr(pipeline, "transformer")
    tokens = len((pipeline.tokenizer_2 if t5 else pipeline.tokenizer)(request.prompt)["input_ids"])
    return Imagined(images, width, height, steps, request.seed or 0, tokens > (512 if t5 else TOKENS), tokens)


def pixels(file: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(file)))


def _case(name: str, build: Callable[[Path], None], requests: list[Request], weights: str) -> Model:
    return Model(
        name=name,
        profile=PROFILE,
        build=build,
        requests=requests,
        reference=reference,
        tolerance=1 / 255,  # one step of one colour: a batch rounds otherwise than an image alone
        bad=[
            (ImagineRequest("a cat", width=33), "INPUT_INVALID"),
            (ImagineRequest("a cat", width=64, height=72), "INPUT_TOO_LARGE"),
            (ImagineRequest("a cat", steps=9), "INPUT_TOO_LARGE"),
            (ImagineRequest("a cat", negative_prompt="a dog", guidance=1.0), "INPUT_INVALID"),
        ],
        weights=weights,
        config="model_index.json",
    )


_UNET_WEIGHTS = "unet/diffusion_pytorch_model.safetensors"
_POSITIVE = [msgspec.structs.replace(each, negative_prompt="") for each in REQUESTS]
MODELS = [
    _case("stable-diffusion", stable_diffusion, REQUESTS, _UNET_WEIGHTS),
    _case("stable-diffusion-xl", stable_diffusion_xl, REQUESTS, _UNET_WEIGHTS),
    _case("flux", flux, _POSITIVE, "transformer/diffusion_pytorch_model.safetensors"),
]
