"""What is special to speech: long audio in pieces, timestamps, cancels, seeds and speakers. Real tiny models."""

from __future__ import annotations

import warnings
import weakref
from pathlib import Path

import msgspec
import numpy as np
import pytest

from schemas.codes import Code
from schemas.profiles import AudioSettings, RuntimeProfile
from schemas.tasks.audio import Audio, SpeakRequest, Spoken, Transcribed, TranscribeRequest
from schemas.tasks.text import TextChunk
from services.showcase import speech, whisper
from services.showcase.model import files_of
from worker.adapters.audio.sound import Sound, sound_of
from worker.adapters.audio.speech import SpeechAdapter
from worker.adapters.audio.whisper import WhisperAdapter
from worker.adapters.torch_runtime import AloneTurn
from worker.model.frames import Refused

SHORT = AudioSettings(new_tokens_max=4)


class Gone:
    """Nobody waits for these requests."""

    def __init__(self, *indexes: int) -> None:
        self._indexes = indexes

    def stopped(self, index: int) -> bool:
        return index in self._indexes

    def partial(self, index: int, chunk: TextChunk) -> None:
        raise AssertionError("speech does not stream")


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
        whisper.build(folder)
    return folder


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vits")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        speech.build(folder, speakers=3)
    return folder


def listener(folder: Path, settings: AudioSettings = SHORT) -> WhisperAdapter:
    adapter = WhisperAdapter()
    adapter.prepare(RuntimeProfile("transformers_whisper", "stt", threads=1, audio=settings))
    adapter.start(folder)
    return adapter


def speaker(folder: Path) -> SpeechAdapter:
    adapter = SpeechAdapter()
    adapter.prepare(RuntimeProfile("transformers_tts", "tts", threads=1))
    adapter.start(folder)
    return adapter


def heard(answer: object) -> Transcribed:
    assert isinstance(answer, Transcribed), answer
    return answer


def spoken(answer: object) -> Spoken:
    assert isinstance(answer, Spoken), answer
    return answer


def test_long_audio_is_heard_whole_in_pieces(listening: Path) -> None:
    adapter = listener(listening, AudioSettings(new_tokens_max=4, chunk_seconds=5))
    whole = heard(adapter.invoke([TranscribeRequest(whisper.tone(12.0))], AloneTurn())[0])
    assert (whole.seconds, whole.chunks) == (12.0, 3)
    assert whole.segments[0].start_s == 0.0
    assert whole.segments[-1].end_s == 12.0
    assert [one.end_s for one in whole.segments[:-1]] == [one.start_s for one in whole.segments[1:]]
    parts = []
    for segment in whole.segments:
        samples = np.frombuffer(whisper.tone(12.0).data, "<f4")
        begin, end = round(segment.start_s * whisper.RATE_HZ), round(segment.end_s * whisper.RATE_HZ)
        audio = msgspec.structs.replace(whisper.tone(1.0), data=samples[begin:end].tobytes())
        parts.append(heard(adapter.invoke([TranscribeRequest(audio)], AloneTurn())[0]).text)
    assert whole.text == " ".join(part for part in parts if part)


def test_one_sound_at_a_time_is_held(listening: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of all requests that come together, though their last pieces are heard in one batch."""
    held: list[weakref.ref[np.ndarray]] = []

    def watched(audio: Audio, settings: AudioSettings, rate_hz: int) -> Sound:
        assert [each() for each in held if each() is not None] == []
        made = sound_of(audio, settings, rate_hz)
        held.append(weakref.ref(made.samples if made.samples.base is None else made.samples.base))
        return made

    monkeypatch.setattr("worker.adapters.audio.whisper.sound_of", watched)
    adapter = listener(listening, AudioSettings(new_tokens_max=2, chunk_seconds=2))
    requests = [TranscribeRequest(whisper.tone(seconds)) for seconds in (5.0, 1.0, 3.0, 1.5)]
    answers = [heard(each) for each in adapter.invoke(requests, AloneTurn())]
    assert len(held) == len(requests)
    assert [each.seconds for each in answers] == [5.0, 1.0, 3.0, 1.5]
    assert answers == [heard(adapter.invoke([request], AloneTurn())[0]) for request in requests]


def test_text_that_reaches_the_bound_says_so(listening: Path) -> None:
    answer = heard(listener(listening).invoke([TranscribeRequest(whisper.tone(1.0))], AloneTurn())[0])
    assert answer.truncated


def test_timestamps_stay_within_the_audio(listening: Path) -> None:
    adapter = listener(listening, AudioSettings(new_tokens_max=8, timestamps=True))
    answer = heard(adapter.invoke([TranscribeRequest(whisper.tone(2.0))], AloneTurn())[0])
    assert answer.segments
    assert all(0.0 <= one.start_s <= one.end_s <= 2.0 for one in answer.segments)


def test_what_nobody_waits_for_is_not_computed_and_its_neighbour_is(listening: Path) -> None:
    requests = [TranscribeRequest(whisper.tone(1.0)), TranscribeRequest(whisper.tone(0.5))]
    gone, kept = listener(listening).invoke(requests, Gone(0))
    assert isinstance(gone, Refused)
    assert gone.code == Code.INVOCATION_CANCELLED
    assert heard(kept).seconds == 0.5


def test_nan_refuses_its_own_request(listening: Path) -> None:
    adapter = listener(listening)
    adapter.model.model.decoder.embed_positions.weight.data[4] = float("nan")
    answer = adapter.invoke([TranscribeRequest(whisper.tone(1.0))], AloneTurn())[0]
    assert isinstance(answer, Refused)
    assert answer.code == Code.OUTPUT_NOT_FINITE
    assert not adapter.health().capability


def test_a_model_of_one_language_refuses_others(listening: Path) -> None:
    adapter = listener(listening)
    adapter.model.generation_config.is_multilingual = False
    for request in (
        TranscribeRequest(whisper.tone(0.5), language="en"),
        TranscribeRequest(whisper.tone(0.5), translate=True),
    ):
        refused = adapter.invoke([request], AloneTurn())[0]
        assert isinstance(refused, Refused)
        assert refused.code == Code.INPUT_INVALID
    assert heard(adapter.invoke([TranscribeRequest(whisper.tone(0.5))], AloneTurn())[0]).seconds == 0.5


def test_a_seed_gives_the_same_sound_and_another_another(speaking: Path) -> None:
    adapter = speaker(speaking)
    requests = [SpeakRequest("hello"), SpeakRequest("hello", seed=0), SpeakRequest("hello", seed=1)]
    first, same, other = (spoken(answer) for answer in adapter.invoke(requests, AloneTurn()))
    assert first.audio.data == same.audio.data != other.audio.data
    assert (first.seed, other.seed) == (0, 1)
    assert first.seconds == len(first.audio.data) / 4 / first.audio.rate_hz


def test_speakers_differ_and_unknown_ones_are_refused(speaking: Path) -> None:
    adapter = speaker(speaking)
    one, two = (spoken(adapter.invoke([SpeakRequest("hello", speaker=n)], AloneTurn())[0]) for n in (0, 2))
    assert one.audio.data != two.audio.data
    refused = adapter.invoke([SpeakRequest("hello", speaker=3)], AloneTurn())[0]
    assert isinstance(refused, Refused)
    assert "the model has 3" in refused.message


def test_what_was_changed_in_a_text_is_told(speaking: Path) -> None:
    adapter = speaker(speaking)
    answer = spoken(adapter.invoke([SpeakRequest("Hello, World!")], AloneTurn())[0])
    assert answer.conversions[0] == "to lower case"
    assert answer.conversions[1].startswith("2 characters left out")
    nothing = spoken(adapter.invoke([SpeakRequest("123 ?!")], AloneTurn())[0])
    assert (nothing.seconds, nothing.audio.data) == (0.0, b"")


def test_a_phonemizer_is_not_run(speaking: Path) -> None:
    path = speaking / "tokenizer_config.json"
    said = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**said, "phonemize": True}))
    try:
        seen = SpeechAdapter().inspect_support(speaking, files_of(speaking), "tts")
    finally:
        path.write_bytes(msgspec.json.encode(said))
    assert [reason.message for reason in seen.reasons if "phonemizer" in reason.message]
