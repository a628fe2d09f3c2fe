"""A tiny Whisper with a byte-level tokenizer of its own: the real architecture, untrained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from schemas.profiles import AudioSettings, RuntimeProfile
from schemas.tasks.audio import Audio, Segment, Transcribed, TranscribeRequest
from schemas.tasks.requests import Request, Result
from services.showcase.model import Model

RATE_HZ = 16_000
LANGUAGES = ("en", "de", "fr")
NEW_TOKENS_MAX = 12


def tone(seconds: float, hertz: float = 440.0, rate_hz: int = RATE_HZ, channels: int = 1) -> Audio:
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    wave = 0.3 * np.sin(2 * np.pi * hertz * times) * (1 + 0.5 * np.sin(2 * np.pi * 3 * times))
    data = np.repeat(wave.astype("<f4")[:, None], channels, axis=1)
    return Audio(data.tobytes(), rate_hz, channels)


def build(folder: Path) -> None:
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperProcessor
    from transformers.models.whisper.tokenization_whisper import WhisperTokenizer

    vocab = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    control = [
        "<|endoftext|>", "<|startoftranscript|>", *(f"<|{name}|>" for name in LANGUAGES), "<|translate|>",
        "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
    ]  # fmt: skip
    times = [f"<|{number * 0.02:.2f}|>" for number in range(1_501)]
    tokenizer = WhisperTokenizer(vocab=vocab, merges=[], unk_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": control[1:]})
    tokenizer.add_tokens(times)
    number = tokenizer.convert_tokens_to_ids
    torch.manual_seed(7)
    config = WhisperConfig(
        vocab_size=len(tokenizer), num_mel_bins=80, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_source_positions=1_500, max_target_positions=64, decoder_start_token_id=number("<|startoftranscript|>"),
        bos_token_id=number("<|endoftext|>"), eos_token_id=number("<|endoftext|>"),
        pad_token_id=number("<|endoftext|>"), init_std=0.5, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    generation: Any = model.generation_config
    generation._from_model_config = False  # else the library makes it anew from the model's configuration
    generation.is_multilingual = True
    generation.lang_to_id = {f"<|{name}|>": number(f"<|{name}|>") for name in LANGUAGES}
    generation.task_to_id = {name: number(f"<|{name}|>") for name in ("transcribe", "translate")}
    generation.no_timestamps_token_id = number("<|notimestamps|>")
    generation.suppress_tokens = [number(token) for token in control[1:]]
    generation.begin_suppress_tokens = [number("<|endoftext|>")]
    generation.decoder_start_token_id = config.decoder_start_token_id
    generation.max_length = config.max_target_positions
    model.save_pretrained(folder, safe_serialization=True)
    WhisperProcessor(WhisperFeatureExtractor(feature_size=80), tokenizer).save_pretrained(folder)
    assert json.loads((folder / "generation_config.json").read_text())["is_multilingual"]


def reference(folder: Path, profile: RuntimeProfile, request: Request) -> Result:
    """One piece at a time through the library's own processor and `generate`."""
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    assert isinstance(request, TranscribeRequest)
    processor = WhisperProcessor.from_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    wave = np.frombuffer(request.audio.data, "<f4")
    inputs = processor(wave, sampling_rate=request.audio.rate_hz, return_tensors="pt", return_attention_mask=True)
    task = "translate" if request.translate else "transcribe"
    with torch.inference_mode():
        out = model.generate(
            inputs.input_features, attention_mask=inputs.attention_mask, language=request.language, task=task,
            max_new_tokens=NEW_TOKENS_MAX, do_sample=False, num_beams=1,
        )  # fmt: skip
    text = processor.batch_decode(out, skip_special_tokens=True)[0].strip()
    seconds = len(wave) / RATE_HZ
    return Transcribed(text, [Segment(0.0, seconds, text)], seconds, 1, True, [])


MODELS = [
    Model(
        name="whisper",
        profile=RuntimeProfile(
            "transformers_whisper", "stt", threads=1, audio=AudioSettings(new_tokens_max=NEW_TOKENS_MAX)
        ),
        build=build,
        requests=[
            TranscribeRequest(tone(1.0), language="en"),
            TranscribeRequest(tone(2.5, 220.0), language="de"),
            TranscribeRequest(tone(0.4, 880.0), language="en", translate=True),
        ],
        reference=reference,
        tolerance=0.0,
        empty=TranscribeRequest(Audio(b"", RATE_HZ), language="en"),
        bad=[
            (TranscribeRequest(Audio(b"123", RATE_HZ)), "INPUT_INVALID"),
            (TranscribeRequest(tone(0.1), language="tlh"), "INPUT_INVALID"),
            (TranscribeRequest(Audio(b"RIFF nonsense", RATE_HZ, encoding="file")), "INPUT_INVALID"),
        ],
    )
]
