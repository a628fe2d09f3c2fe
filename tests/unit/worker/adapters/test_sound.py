"""What a request's audio becomes before a model hears it: every rule of the table, and where long audio is cut."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import soundfile
import soxr

from schemas.codes import Code, Refusal
from schemas.profiles import AudioSettings
from schemas.tasks.audio import Audio
from worker.adapters.audio import sound as sounds
from worker.adapters.audio.sound import SAMPLES_PER_SECOND_MAX, Sound, chunks_of, sound_of

RATE_HZ = 16_000
PLAIN = AudioSettings()


def wave(seconds: float, rate_hz: int = RATE_HZ, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate_hz)) / rate_hz)).astype("<f4")


def raw(samples: np.ndarray, rate_hz: int = RATE_HZ, channels: int = 1) -> Audio:
    return Audio(samples.tobytes(), rate_hz, channels)


def file_of(samples: np.ndarray, rate_hz: int, kind: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=kind)
    return file.getvalue()


def test_what_fits_is_left_as_it_is() -> None:
    sound = sound_of(raw(wave(0.5)), PLAIN, RATE_HZ)
    assert np.array_equal(sound.samples, wave(0.5))
    assert sound.conversions == []


def test_no_samples_are_no_samples() -> None:
    assert len(sound_of(Audio(b"", RATE_HZ), PLAIN, RATE_HZ).samples) == 0
    assert len(sound_of(Audio(b"", 48_000, 2, "s16le"), PLAIN, RATE_HZ).samples) == 0


def test_silence_is_sound() -> None:
    sound = sound_of(raw(np.zeros(RATE_HZ, "<f4")), PLAIN, RATE_HZ)
    assert (sound.seconds, float(np.abs(sound.samples).max())) == (1.0, 0.0)


def test_48_khz_stereo_is_mixed_and_resampled_and_both_are_told() -> None:
    left, right = wave(1.0, 48_000), wave(1.0, 48_000, 880.0)
    sound = sound_of(raw(np.stack([left, right], axis=1), 48_000, 2), PLAIN, RATE_HZ)
    assert [word.split()[0] for word in sound.conversions] == ["2", "48000"]
    assert sound.seconds == pytest.approx(1.0, abs=1e-3)
    expected = (wave(1.0) + wave(1.0, hertz=880.0)) / 2
    assert float(np.abs(sound.samples[100:-100] - expected[100:-100]).max()) < 2e-3


def test_16_bit_samples_are_scaled() -> None:
    numbers = (wave(0.1) * 32_768).astype("<i2")
    sound = sound_of(Audio(numbers.tobytes(), RATE_HZ, 1, "s16le"), PLAIN, RATE_HZ)
    assert float(np.abs(sound.samples - wave(0.1)).max()) < 1e-4
    assert "32,768" in sound.conversions[0]


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_files_are_read(kind: str) -> None:
    audio = Audio(file_of(wave(0.5), RATE_HZ, kind), RATE_HZ, 1, "file")
    assert float(np.abs(sound_of(audio, PLAIN, RATE_HZ).samples - wave(0.5)).max()) < 1e-3


def damaged(length: int) -> bytes:
    return file_of(wave(0.5), RATE_HZ, "FLAC")[:length]


@pytest.mark.parametrize(
    ("make", "code", "word"),
    [
        (lambda: Audio(b"\0" * 6, RATE_HZ), Code.INPUT_INVALID, "whole frames"),
        (lambda: Audio(b"\0" * 4, RATE_HZ, 2), Code.INPUT_INVALID, "whole frames"),
        (lambda: raw(np.full(8, np.nan, "<f4")), Code.INPUT_INVALID, "NaN"),
        (lambda: raw(np.full(8, np.inf, "<f4")), Code.INPUT_INVALID, "infinity"),
        (lambda: raw(wave(0.1) * 32_768), Code.INPUT_INVALID, "within -1 and 1"),
        (lambda: Audio(file_of(wave(0.1), 8_000), RATE_HZ, 1, "file"), Code.INPUT_INVALID, "8000 Hz"),
        (lambda: Audio(file_of(wave(0.1), RATE_HZ), RATE_HZ, 2, "file"), Code.INPUT_INVALID, "1 channels"),
        (lambda: Audio(b"not a sound at all", RATE_HZ, 1, "file"), Code.INPUT_INVALID, "can't be read"),
        (lambda: Audio(b"", RATE_HZ, 1, "file"), Code.INPUT_INVALID, "can't be read"),
        (lambda: Audio(file_of(wave(0.1), RATE_HZ, "AIFF"), RATE_HZ, 1, "file"), Code.INPUT_INVALID, "AIFF"),
        (lambda: Audio(damaged(2_000), RATE_HZ, 1, "file"), Code.INPUT_INVALID, "audio file"),
        (lambda: Audio(damaged(20), RATE_HZ, 1, "file"), Code.INPUT_INVALID, "audio file"),
    ],
)
def test_what_is_no_sound_is_refused(make: Callable[[], Audio], code: Code, word: str) -> None:
    with pytest.raises(Refusal, match=word) as caught:
        sound_of(make(), PLAIN, RATE_HZ)
    assert caught.value.code == code


def test_a_profile_may_forbid_conversions_and_lengths() -> None:
    stereo, fast = raw(np.zeros((8, 2), "<f4"), RATE_HZ, 2), raw(wave(0.1, 8_000), 8_000)
    for audio, settings, word in (
        (stereo, AudioSettings(mix_to_mono=False), "channels"),
        (fast, AudioSettings(resample=False), "8000 Hz"),
    ):
        with pytest.raises(Refusal, match=word):
            sound_of(audio, settings, RATE_HZ)
    for audio in (raw(wave(2.1)), Audio(file_of(wave(2.1), RATE_HZ), RATE_HZ, 1, "file")):
        with pytest.raises(Refusal, match="2\\.1 s") as caught:
            sound_of(audio, AudioSettings(seconds_max=2), RATE_HZ)
        assert caught.value.code == Code.INPUT_TOO_LARGE


def noise(frames: int, channels: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, (frames, channels)).astype("<f4")


@pytest.mark.parametrize(("rate_hz", "channels"), [(48_000, 2), (44_100, 1), (RATE_HZ, 3), (8_000, 1), (655_350, 8)])
@pytest.mark.parametrize("encoding", ["f32le", "s16le", "FLAC", "WAV"])
def test_block_by_block_is_as_all_at_once(
    monkeypatch: pytest.MonkeyPatch, rate_hz: int, channels: int, encoding: str
) -> None:
    monkeypatch.setattr(sounds, "BLOCK_SAMPLES", 10_007)
    whole = noise(70_001, channels)
    if encoding == "f32le":
        audio = raw(whole, rate_hz, channels)
    elif encoding == "s16le":
        numbers = (whole * 32_768).astype("<i2")
        audio, whole = Audio(numbers.tobytes(), rate_hz, channels, "s16le"), numbers.astype("f4") / 32_768
    else:
        audio = Audio(file_of(whole, rate_hz, encoding), rate_hz, channels, "file")
        whole, _ = soundfile.read(io.BytesIO(audio.data), dtype="float32", always_2d=True)
    expected = np.ascontiguousarray(whole.mean(axis=1, dtype=np.float32))
    if rate_hz != RATE_HZ:
        expected = soxr.resample(expected, rate_hz, RATE_HZ, quality="HQ")
    assert np.array_equal(sound_of(audio, PLAIN, RATE_HZ).samples, expected)


def test_a_small_file_does_not_unfold_in_memory() -> None:
    """Some 50 kB that are 61 MB of samples."""
    data = file_of(np.zeros((10 * 192_000, 8), "<i2"), 192_000, "FLAC")
    tracemalloc.start()
    try:
        sound = sound_of(Audio(data, 192_000, 8, "file"), PLAIN, RATE_HZ)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sound.seconds == 10.0
    assert peak < 10_000_000


def test_samples_of_all_channels_are_bounded_before_they_are_decoded() -> None:
    settings = AudioSettings(seconds_max=1)
    for audio in (
        Audio(file_of(np.zeros((60_000, 8), "<i2"), 96_000, "FLAC"), 96_000, 8, "file"),
        raw(np.zeros((60_000, 8), "<f4"), 96_000, 8),
    ):
        with pytest.raises(Refusal, match=f"480000 samples; {SAMPLES_PER_SECOND_MAX}") as caught:
            sound_of(audio, settings, RATE_HZ)
        assert caught.value.code == Code.INPUT_TOO_LARGE


def test_long_sound_is_cut_where_it_is_quiet_and_nothing_is_lost() -> None:
    samples = wave(70.0)
    for second in (28.5, 56.0):  # two pauses, within reach of the cuts
        samples[int(second * RATE_HZ) : int((second + 0.2) * RATE_HZ)] = 0
    cuts = chunks_of(Sound(samples, RATE_HZ, []), PLAIN)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == len(samples)
    assert all(one[1] == two[0] for one, two in itertools.pairwise(cuts))
    assert all(end - begin <= 30 * RATE_HZ for begin, end in cuts)
    assert 28.5 <= cuts[0][1] / RATE_HZ <= 28.7


@pytest.mark.parametrize("seconds", [1, 2, 3, 30])
@pytest.mark.parametrize("over", [1, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("quiet_at", [None, 0.1, 0.6, 0.99])
def test_no_piece_is_tiny_or_empty_however_short_pieces_are(seconds: int, over: float, quiet_at: float | None) -> None:
    """Each goes on from the one before it, wherever it is quiet."""
    longest = seconds * RATE_HZ
    samples = noise(longest + (over if isinstance(over, int) else round(over * longest)), 1)[:, 0]
    for begin in range(0, len(samples), longest) if quiet_at is not None else []:
        at = begin + round((quiet_at or 0.0) * longest)
        samples[at : at + RATE_HZ // 10] = 0
    cuts = chunks_of(Sound(samples, RATE_HZ, []), AudioSettings(chunk_seconds=seconds))
    assert (cuts[0][0], cuts[-1][1]) == (0, len(samples))
    assert all(one[1] == two[0] for one, two in itertools.pairwise(cuts))
    assert all(longest // 4 <= end - begin <= longest for begin, end in cuts)


def test_short_sound_is_one_piece_and_none_is_none() -> None:
    assert chunks_of(Sound(wave(30.0), RATE_HZ, []), PLAIN) == [(0, 30 * RATE_HZ)]
    assert chunks_of(Sound(wave(0.0), RATE_HZ, []), PLAIN) == []
    with pytest.raises(Refusal, match="does not cut"):
        chunks_of(Sound(wave(31.0), RATE_HZ, []), AudioSettings(chunk=False))
