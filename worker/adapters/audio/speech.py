"""The transformers_tts adapter: text to speech with VITS models (MMS-TTS and others of its architecture).

VITS draws random numbers: a request's seed, or DEFAULT_SEED, is where they start, so the same request gives the same
sound. Requests are spoken one by one, because a neighbour in the batch would move the random numbers.

What the tokenizer does to a text (lower case, characters it has no sound for left out) is told in `conversions`. A text
of which nothing is left gives no samples. A text over the limit is refused: speech is never cut. Models that need a
phonemizer are not run: it is a program of its own, and a model process starts none.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.tasks.audio import Audio, SpeakRequest, Spoken
from schemas.tasks.requests import Request, Result
from worker.adapters.contract import Inspection, Turn
from worker.adapters.folder import ModelFolder
from worker.adapters.guard import Guarded
from worker.adapters.torch_runtime import TorchAdapter
from worker.model.frames import Refused

DEFAULT_SEED = 0
TOKENS_MAX = 4_096  # where the profile has no limit; some four minutes of speech
HEALTH_CHARACTERS = 5
MESSAGE_CHARACTERS_MAX = 300


class SpeechAdapter(TorchAdapter):
    """See the module."""

    LIBRARIES: ClassVar[tuple[str, ...]] = ("torch", "transformers")

    def __init__(self) -> None:
        super().__init__()
        self._tokenizer: Any = None

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection:
        look = ModelFolder(folder, files)
        look.check_no_code()
        config = look.read_object("config.json", needed=True)
        look.check_model_type(config, {"vits"})
        if "vocab.json" not in look.paths:
            look.refuse("`vocab.json` is missing")
        tokenizer = look.read_object("tokenizer_config.json", needed=True)
        if tokenizer and tokenizer.get("phonemize", True):
            look.refuse("the tokenizer needs a phonemizer, a program of its own; a model process starts none")
        if tokenizer.get("is_uroman") and importlib.util.find_spec("uroman") is None:
            look.refuse("the tokenizer needs the package `uroman`, which is not installed")
        look.check_weights()
        return look.outcome(config)

    def load(self, folder: Path) -> None:
        from transformers import VitsModel, VitsTokenizer

        self._tokenizer = VitsTokenizer.from_pretrained(str(folder), local_files_only=True)
        model = VitsModel.from_pretrained(str(folder), local_files_only=True, use_safetensors=True, dtype=self.dtype)
        self.model = model.to(self.device).eval()

    def max_length(self) -> int:
        return self.profile.max_length or TOKENS_MAX

    @property
    def rate_hz(self) -> int:
        return int(self.model.config.sampling_rate)

    def health_request(self) -> Request:
        characters = [token for token in self._tokenizer.encoder if len(token) == 1 and token.isalnum()]
        return SpeakRequest("".join(sorted(characters)[:HEALTH_CHARACTERS]))

    def unsound(self, result: Result) -> str:
        if not isinstance(result, Spoken) or not result.audio.data:
            return "the model spoke no samples"
        return ""

    def answer(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        answers: dict[int, Result | Refused] = {}
        for index, request in enumerate(requests):
            with Guarded(index, answers):
                if turn.stopped(index):
                    raise Refusal(Code.INVOCATION_CANCELLED, "nobody waits for it any more")
                if not isinstance(request, SpeakRequest):
                    raise Refusal(Code.INPUT_INVALID, "this deployment turns text into speech")
                answers[index] = self._speak(request)
        return [answers[index] for index in range(len(requests))]

    def _speak(self, request: SpeakRequest) -> Spoken:
        speaker = self._speaker(request)
        prepared, _ = self._tokenizer.prepare_for_tokenization(request.text)
        conversions = _changes(request.text, prepared)
        seed = DEFAULT_SEED if request.seed is None else request.seed
        if not prepared:
            return Spoken(Audio(b"", self.rate_hz), 0.0, 0, seed, conversions)
        inputs = self._tokenizer(request.text, return_tensors="pt")
        tokens = int(inputs.input_ids.shape[1])
        if tokens > self.max_length():
            raise Refusal(Code.INPUT_TOO_LARGE, f"the text has {tokens} tokens and the limit is {self.max_length()}")
        devices = [self.profile.device_index] if self.profile.device == "cuda" else []
        with self.torch.random.fork_rng(devices=devices), self.torch.inference_mode():
            self.torch.manual_seed(seed)
            try:
                wave = self.model(**inputs.to(self.device), speaker_id=speaker).waveform[0]
            except ValueError as error:  # its flows check their own numbers; the input was checked before
                message = f"the model could not compute with its own numbers: {error}"
                raise Refusal(Code.OUTPUT_NOT_FINITE, message[:MESSAGE_CHARACTERS_MAX]) from error
        wave = wave.to("cpu", self.torch.float32)
        if not bool(self.torch.isfinite(wave).all()):
            raise Refusal(Code.OUTPUT_NOT_FINITE, "the model gave NaN or infinity for this text")
        data = wave.numpy().astype("<f4", copy=False).tobytes()
        return Spoken(Audio(data, self.rate_hz), len(wave) / self.rate_hz, tokens, seed, conversions)

    def _speaker(self, request: SpeakRequest) -> int | None:
        speakers = int(self.model.config.num_speakers)
        if request.speaker is not None and request.speaker >= max(speakers, 1):
            raise Refusal(Code.INPUT_INVALID, f"speaker {request.speaker}; the model has {max(speakers, 1)}")
        return (request.speaker or 0) if speakers > 1 else None


def _changes(text: str, prepared: str) -> list[str]:
    """What became of the text before the model read it, in words."""
    changes = []
    if any(character.isupper() for character in text) and not any(character.isupper() for character in prepared):
        changes.append("to lower case")
    left_out = len(text) - len(prepared)
    if left_out > 0:
        changes.append(f"{left_out} characters left out, at the ends or without a sound in the model's vocabulary")
    return changes
