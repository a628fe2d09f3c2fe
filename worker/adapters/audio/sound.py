"""From the audio of a request to what a model hears: one channel, float32 in [-1, 1], at the model's rate.

| given                                  | done                                                                   |
|----------------------------------------|------------------------------------------------------------------------|
| no samples                             | nothing: no samples come out                                           |
| bytes that are no whole frames         | refused                                                                |
| NaN, infinity                          | refused                                                                |
| float samples over FULL_SCALE_MAX      | refused: integers in float's clothes, not sound                        |
| 16-bit samples                         | divided by 32,768                                                      |
| a file whose rate or channels differ from what was said | refused: one of the two is wrong                      |
| a file of another kind, or damaged     | refused                                                                |
| longer than `seconds_max`              | refused before it is decoded                                           |
| more channels                          | mixed to their mean, or refused where the profile does not mix         |
| another rate                           | resampled by soxr (HQ), or refused where the profile does not resample |

What was done is told in words. Raises Refusal with INPUT_INVALID or INPUT_TOO_LARGE.
"""

from __future__ import annotations

import io
from typing import Any

from msgspec import Struct

from schemas.codes import Code, Refusal
from schemas.profiles import AudioSettings
from schemas.tasks.audio import Audio

FULL_SCALE_MAX = 8.0  # float recordings overshoot 1.0 a little; 16-bit numbers sent as float by thousands
FILE_FORMATS = frozenset({"WAV", "WAVEX", "FLAC", "OGG"})
QUIET_SECONDS = 2.0  # how far before a chunk's end its cut is looked for
FRAME_SECONDS = 0.02
_SAMPLE_BYTES = {"f32le": 4, "s16le": 2}


class Sound(Struct, frozen=True, eq=False):
    """`samples` is a float32 array of one channel."""

    samples: Any
    rate_hz: int
    conversions: list[str]

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate_hz


def sound_of(audio: Audio, settings: AudioSettings, rate_hz: int) -> Sound:
    """The request's audio as the model takes it. Raises Refusal."""
    import numpy as np

    conversions: list[str] = []
    samples = _file(audio, settings) if audio.encoding == "file" else _raw(audio, settings, conversions)
    if not len(samples):
        return Sound(np.zeros(0, np.float32), rate_hz, conversions)
    peak = float(np.abs(samples).max())
    if not np.isfinite(peak):
        raise Refusal(Code.INPUT_INVALID, "the audio holds NaN or infinity")
    if peak > FULL_SCALE_MAX:
        raise Refusal(Code.INPUT_INVALID, f"samples reach {peak:.6g}; float samples are within -1 and 1")
    if audio.channels > 1:
        if not settings.mix_to_mono:
            raise Refusal(Code.INPUT_INVALID, f"{audio.channels} channels; the profile takes one and does not mix")
        samples = samples.mean(axis=1, dtype=np.float32)
        conversions.append(f"{audio.channels} channels mixed to their mean")
    samples = np.ascontiguousarray(samples.reshape(-1), dtype=np.float32)
    if audio.rate_hz != rate_hz:
        if not settings.resample:
            message = f"{audio.rate_hz} Hz; the model takes {rate_hz} Hz and the profile does not resample"
            raise Refusal(Code.INPUT_INVALID, message)
        import soxr

        samples = soxr.resample(samples, audio.rate_hz, rate_hz, quality="HQ").astype(np.float32, copy=False)
        conversions.append(f"{audio.rate_hz} Hz resampled to {rate_hz} Hz (soxr HQ)")
    return Sound(samples, rate_hz, conversions)


def _raw(audio: Audio, settings: AudioSettings, conversions: list[str]) -> Any:
    """An array of frames by channels."""
    import numpy as np

    frame_bytes = _SAMPLE_BYTES[audio.encoding] * audio.channels
    frames, rest = divmod(len(audio.data), frame_bytes)
    if rest:
        message = f"{len(audio.data)} bytes are no whole frames of {frame_bytes} bytes ({audio.encoding})"
        raise Refusal(Code.INPUT_INVALID, message)
    _check_length(frames, audio.rate_hz, settings)
    if audio.encoding == "s16le":
        samples = np.frombuffer(audio.data, "<i2").astype(np.float32) / np.float32(32_768)
        if frames:
            conversions.append("16-bit samples divided by 32,768")
    else:
        samples = np.frombuffer(audio.data, "<f4").astype(np.float32, copy=False)
    return samples.reshape(frames, audio.channels)


def _file(audio: Audio, settings: AudioSettings) -> Any:
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(audio.data)) as file:
            if file.format not in FILE_FORMATS:
                raise Refusal(Code.INPUT_INVALID, f"a {file.format} file; {', '.join(sorted(FILE_FORMATS))} are read")
            said, found = (audio.rate_hz, audio.channels), (file.samplerate, file.channels)
            if said != found:
                message = f"the file has {found[0]} Hz and {found[1]} channels; {said[0]} Hz and {said[1]} were said"
                raise Refusal(Code.INPUT_INVALID, message)
            _check_length(file.frames, file.samplerate, settings)
            frames = file.frames
            samples = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise Refusal(Code.INPUT_INVALID, f"the audio file can't be read: {error.error_string}") from error
    if len(samples) != frames:
        raise Refusal(Code.INPUT_INVALID, f"the audio file ends after {len(samples)} of {frames} frames")
    return samples


def _check_length(frames: int, rate_hz: int, settings: AudioSettings) -> None:
    if frames > settings.seconds_max * rate_hz:
        seconds = frames / rate_hz
        raise Refusal(Code.INPUT_TOO_LARGE, f"{seconds:.1f} s of audio; the profile allows {settings.seconds_max}")


def chunks_of(sound: Sound, settings: AudioSettings) -> list[tuple[int, int]]:
    """Where to cut, as (begin, end) samples; together they are the whole sound. Raises Refusal.

    Each piece is at most `chunk_seconds` long and ends in the quietest FRAME_SECONDS of its last QUIET_SECONDS, so
    that a cut seldom goes through a word.
    """
    longest, total = settings.chunk_seconds * sound.rate_hz, len(sound.samples)
    if total <= longest:
        return [(0, total)] if total else []
    if not settings.chunk:
        message = f"{sound.seconds:.1f} s of audio; the profile takes {settings.chunk_seconds} s and does not cut"
        raise Refusal(Code.INPUT_TOO_LARGE, message)
    cuts, begin = [], 0
    while total - begin > longest:
        end = _quietest(sound, begin + longest)
        cuts.append((begin, end))
        begin = end
    return [*cuts, (begin, total)]


def _quietest(sound: Sound, latest: int) -> int:
    """The middle of the quietest frame before `latest`."""
    import numpy as np

    frame = max(int(FRAME_SECONDS * sound.rate_hz), 1)
    count = int(QUIET_SECONDS * sound.rate_hz) // frame
    begin = latest - count * frame
    if begin <= 0 or count < 1:
        return latest
    energy = np.square(sound.samples[begin:latest].reshape(count, frame)).mean(axis=1)
    # Of equally quiet frames the last: fewer, longer pieces.
    quietest = count - 1 - int(np.argmin(energy[::-1]))
    return int(begin + quietest * frame + frame // 2)
