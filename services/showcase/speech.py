"""A tiny VITS with a character vocabulary: the real architecture, untrained."""

from __future__ import annotations

import json
from pathlib import Path

from schemas.profiles import RuntimeProfile
from schemas.tasks.audio import Audio, SpeakRequest, Spoken
from schemas.tasks.requests import Request, Result
from services.showcase.model import Model

RATE_HZ = 16_000
SEED = 11


def build(folder: Path, speakers: int = 1) -> None:
    import torch
    from transformers import VitsConfig, VitsModel, VitsTokenizer

    vocab = {token: number for number, token in enumerate(["<pad>", *" abcdefghijklmnopqrstuvwxyz'", "<unk>"])}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    tokenizer = VitsTokenizer(str(folder / "vocab.json"), phonemize=False, is_uroman=False)
    torch.manual_seed(5)
    config = VitsConfig(
        vocab_size=len(vocab), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=32, flow_size=16,
        spectrogram_bins=9, prior_encoder_num_flows=1, prior_encoder_num_wavenet_layers=1,
        duration_predictor_num_flows=2, duration_predictor_filter_channels=16,
        depth_separable_num_layers=1, upsample_initial_channel=16,
        upsample_rates=[4, 4], upsample_kernel_sizes=[8, 8], resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]], sampling_rate=RATE_HZ, num_speakers=speakers,
        speaker_embedding_size=8 if speakers > 1 else 0,
    )  # fmt: skip
    VitsModel(config).eval().save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def reference(folder: Path, profile: RuntimeProfile, request: Request) -> Result:
    import torch
    from transformers import VitsModel, VitsTokenizer

    assert isinstance(request, SpeakRequest)
    assert request.seed is not None
    model = VitsModel.from_pretrained(folder).eval()
    inputs = VitsTokenizer.from_pretrained(folder)(request.text, return_tensors="pt")
    torch.manual_seed(request.seed)
    with torch.inference_mode():
        wave = model(**inputs).waveform[0]
    audio = Audio(wave.numpy().astype("<f4").tobytes(), RATE_HZ)
    return Spoken(audio, len(wave) / RATE_HZ, int(inputs.input_ids.shape[1]), request.seed, [])


MODELS = [
    Model(
        name="vits",
        profile=RuntimeProfile("transformers_tts", "tts", threads=1, max_length=200),
        build=build,
        requests=[
            SpeakRequest("hello there", seed=SEED),
            SpeakRequest("a", seed=3),
            SpeakRequest("one two three", seed=SEED),
        ],
        reference=reference,
        tolerance=1e-6,
        empty=SpeakRequest(""),
        bad=[
            (SpeakRequest("word " * 100), "INPUT_TOO_LARGE"),
            (SpeakRequest("a", speaker=3), "INPUT_INVALID"),
        ],
    )
]
