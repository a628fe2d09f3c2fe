"""The transformers_whisper adapter: speech to text with Whisper models, greedy and reproducible.

Audio goes through `sound`, is cut into pieces of at most the profile's `chunk_seconds` (30 at most: what the model
was built for) and each piece is decoded by itself, several together in a batch. Nothing is cut off: the pieces are the
whole sound. However many requests come together, one sound at a time is held, and the pieces of one batch. Decoding is
greedy; what the files say about sampling, beams and fallbacks would be a setting outside the profile and is taken out.
A piece whose text reaches the bound on new tokens is told by `truncated`.

No samples give an empty text. A language or a translation asked of a model that knows one language is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct, UnsetType

from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.profiles import AudioSettings
from schemas.tasks.audio import Audio, Segment, Transcribed, TranscribeRequest
from schemas.tasks.requests import Request, Result
from worker.adapters.audio.sound import chunks_of, sound_of
from worker.adapters.contract import Inspection, Turn
from worker.adapters.folder import ModelFolder
from worker.adapters.guard import Answers, Guarded
from worker.adapters.torch_runtime import TorchAdapter
from worker.model.frames import Refused

PROMPT_TOKENS = 4  # start, language, task, no timestamps
HEALTH_SECONDS = 1.0
HEALTH_HZ = 440.0
PREPROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


class _Piece(Struct, eq=False):
    """One piece of one request: where it is, and what came out."""

    index: int  # of the request
    begin_s: float
    end_s: float
    segments: list[Segment] = []
    text: str = ""
    truncated: bool = False
    unsound: bool = False


class _Heard(Struct, eq=False):
    """What is kept of a request's sound."""

    seconds: float
    conversions: list[str]
    pieces: list[_Piece] = []


class WhisperAdapter(TorchAdapter):
    """See the module."""

    LIBRARIES: ClassVar[tuple[str, ...]] = ("torch", "transformers")

    def __init__(self) -> None:
        super().__init__()
        self._processor: Any = None

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection:
        look = ModelFolder(folder, files)
        look.check_no_code()
        config = look.read_object("config.json", needed=True)
        look.check_model_type(config, {"whisper"})
        look.check_tokenizer()
        if not look.paths & set(PREPROCESSOR_FILES):
            look.refuse(f"there is no feature extractor; one of {', '.join(PREPROCESSOR_FILES)} is needed")
        look.read_object("generation_config.json", needed=True)
        look.check_weights()
        positions = config.get("max_target_positions")
        return look.outcome(config, max_length=positions if isinstance(positions, int) else None)

    def load(self, folder: Path) -> None:
        from transformers import WhisperForConditionalGeneration, WhisperProcessor

        self._processor = WhisperProcessor.from_pretrained(str(folder), local_files_only=True)
        model = WhisperForConditionalGeneration.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True, dtype=self.dtype, **self.attention()
        )
        model.to(self.device).eval()
        greedy = model.generation_config
        greedy.do_sample, greedy.num_beams, greedy.num_return_sequences = False, 1, 1
        greedy.temperature = greedy.top_p = greedy.top_k = None
        greedy.compression_ratio_threshold = greedy.logprob_threshold = greedy.no_speech_threshold = None
        greedy.max_length = None
        self.model = model

    @property
    def settings(self) -> AudioSettings:
        said = self.profile.audio
        return AudioSettings() if isinstance(said, UnsetType) else said

    @property
    def rate_hz(self) -> int:
        return int(self._processor.feature_extractor.sampling_rate)

    def max_length(self) -> int:
        return int(self.model.config.max_target_positions)

    def health_request(self) -> Request:
        import numpy as np

        times = np.arange(int(HEALTH_SECONDS * self.rate_hz)) / self.rate_hz
        tone = (0.1 * np.sin(2 * np.pi * HEALTH_HZ * times)).astype("<f4")
        return TranscribeRequest(Audio(tone.tobytes(), self.rate_hz))

    def unsound(self, result: Result) -> str:
        if not isinstance(result, Transcribed) or not result.segments:
            return "the model heard nothing of a second of sound"
        return ""

    def answer(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        answers: dict[int, Result | Refused] = {}
        audios: dict[tuple[str | None, bool], dict[int, Audio]] = {}
        for index, request in enumerate(requests):
            with Guarded(index, answers):
                if not isinstance(request, TranscribeRequest):
                    raise Refusal(Code.INPUT_INVALID, "this deployment turns speech into text")
                self._check_language(request)
                audios.setdefault((request.language, request.translate), {})[index] = request.audio
        heard: dict[int, _Heard] = {}
        for (language, translate), group in audios.items():
            self._decode_all(self._pieces(group, heard, answers, turn), language, translate, turn)
        for index in heard.keys() - answers.keys():
            answers[index] = self._transcribed(index, heard[index], turn)
        return [answers[index] for index in range(len(requests))]

    def _check_language(self, request: TranscribeRequest) -> None:
        known = getattr(self.model.generation_config, "lang_to_id", None) or {}
        multilingual = bool(getattr(self.model.generation_config, "is_multilingual", False)) and bool(known)
        if not multilingual and (request.language is not None or request.translate):
            raise Refusal(Code.INPUT_INVALID, "the model knows one language; leave out `language` and `translate`")
        if request.language is not None and f"<|{request.language}|>" not in known:
            languages = ", ".join(sorted(name.strip("<|>") for name in known))
            raise Refusal(Code.INPUT_INVALID, f"the model has no language `{request.language}`; it has: {languages}")

    def _pieces(
        self, audios: dict[int, Audio], heard: dict[int, _Heard], answers: Answers, turn: Turn
    ) -> Iterator[tuple[_Piece, Any]]:
        """Each piece and its samples, of one request after the other."""
        for index, audio in audios.items():
            with Guarded(index, answers):
                if turn.stopped(index):
                    raise Refusal(Code.INVOCATION_CANCELLED, "nobody waits for it any more")
                yield from self._pieces_of(index, audio, heard)

    def _pieces_of(self, index: int, audio: Audio, heard: dict[int, _Heard]) -> Iterator[tuple[_Piece, Any]]:
        """The sound is made when its turn comes, and no piece keeps it."""
        sound = sound_of(audio, self.settings, self.rate_hz)
        heard[index] = _Heard(sound.seconds, sound.conversions)
        for begin, end in chunks_of(sound, self.settings):
            piece = _Piece(index, begin / sound.rate_hz, end / sound.rate_hz)
            heard[index].pieces.append(piece)
            yield piece, sound.samples[begin:end].copy()

    def _decode_all(
        self, pieces: Iterator[tuple[_Piece, Any]], language: str | None, translate: bool, turn: Turn
    ) -> None:
        """Fill in what the model heard, `batch_max` pieces at once; those nobody waits for are left as they are."""
        while batch := list(islice(pieces, self.profile.limits.batch_max)):
            wanted = [(piece, samples) for piece, samples in batch if not turn.stopped(piece.index)]
            if wanted:
                self._decode(wanted, language, translate, turn)

    def _decode(self, wanted: list[tuple[_Piece, Any]], language: str | None, translate: bool, turn: Turn) -> None:
        torch, generation = self.torch, self.model.generation_config
        batch = [piece for piece, _ in wanted]
        inputs = self._processor.feature_extractor(
            [samples for _, samples in wanted],
            sampling_rate=self.rate_hz,
            return_tensors="pt",
            return_attention_mask=True,
        )
        watch = _Watch(torch, batch, turn)
        bound = min(self.settings.new_tokens_max, self.max_length() - PROMPT_TOKENS)
        said = {"language": language, "task": "translate" if translate else "transcribe"}
        with torch.inference_mode():
            out = self.model.generate(
                inputs.input_features.to(self.device, self.dtype),
                attention_mask=inputs.attention_mask.to(self.device),
                max_new_tokens=bound,
                return_timestamps=self.settings.timestamps,
                return_segments=True,
                logits_processor=watch.processors(),
                stopping_criteria=watch.criteria(),
                **(said if getattr(generation, "is_multilingual", False) else {}),
            )
        ends = generation.eos_token_id
        last = set(ends) if isinstance(ends, list) else {ends}
        for row, piece in enumerate(batch):
            piece.unsound = bool(watch.unsound[row])
            piece.truncated = bool(watch.steps >= bound) and not last & set(out["sequences"][row].tolist())
            self._take(piece, out["segments"][row])

    def _take(self, piece: _Piece, segments: list[dict[str, Any]]) -> None:
        """The text of the piece: in the model's own segments where it says when, else in one."""

        def text_of(parts: list[dict[str, Any]]) -> str:
            tokens = [token for part in parts for token in part["tokens"].tolist()]
            return str(self._processor.tokenizer.decode(tokens, skip_special_tokens=True))

        if self.settings.timestamps:
            for part in segments:
                begin, end = (min(piece.begin_s + float(part[key]), piece.end_s) for key in ("start", "end"))
                piece.segments.append(Segment(begin, max(begin, end), text_of([part])))
        else:
            piece.segments.append(Segment(piece.begin_s, piece.end_s, text_of(segments)))
        piece.text = "".join(segment.text for segment in piece.segments)

    def _transcribed(self, index: int, heard: _Heard, turn: Turn) -> Transcribed | Refused:
        if turn.stopped(index):
            return Refused(Code.INVOCATION_CANCELLED, "nobody waits for it any more")
        pieces = heard.pieces
        bad = [piece for piece in pieces if piece.unsound]
        if bad:
            return Refused(Code.OUTPUT_NOT_FINITE, f"the model gave NaN for the audio from {bad[0].begin_s:.1f} s on")
        texts = [piece.text.strip() for piece in pieces]
        return Transcribed(
            text=" ".join(text for text in texts if text),
            segments=[segment for piece in pieces for segment in piece.segments],
            seconds=heard.seconds,
            chunks=len(pieces),
            truncated=any(piece.truncated for piece in pieces),
            conversions=heard.conversions,
        )


class _Watch:
    """Looks at each step of one batch: NaN in a row's logits, and rows nobody waits for any more."""

    def __init__(self, torch: Any, batch: list[_Piece], turn: Turn) -> None:
        self._torch = torch
        self._batch = batch
        self._turn = turn
        self.steps = 0
        self.unsound = torch.zeros(len(batch), dtype=torch.bool)

    def processors(self) -> Any:
        from transformers import LogitsProcessor, LogitsProcessorList

        watch = self

        class NanWatch(LogitsProcessor):  # type: ignore[misc]
            def __call__(self, input_ids: Any, scores: Any) -> Any:
                watch.steps += 1
                found = watch._torch.isnan(scores).any(dim=-1).cpu()
                watch.unsound |= found if len(found) == len(watch.unsound) else found.any()
                return scores

        return LogitsProcessorList([NanWatch()])

    def criteria(self) -> Any:
        from transformers import StoppingCriteria, StoppingCriteriaList

        watch = self

        class Stopped(StoppingCriteria):  # type: ignore[misc]
            def __call__(self, input_ids: Any, scores: Any, **more: Any) -> Any:
                rows = [watch._turn.stopped(piece.index) for piece in watch._batch[: len(input_ids)]]
                return watch._torch.tensor(rows, dtype=watch._torch.bool, device=input_ids.device)

        return StoppingCriteriaList([Stopped()])
