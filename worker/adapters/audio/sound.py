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
| a file that is cut short               | refused: see `containers`                                              |
| a WAV file without a length (a stream) | read to its end, and told                                              |
| longer than `seconds_max`              | refused before it is decoded                                           |
| more samples in all channels than `seconds_max` seconds of SAMPLES_PER_SECOND_MAX | refused before it is decoded |
| more channels                          | mixed to their mean, or refused where the profile does not mix         |
| another rate                           | resampled by soxr (HQ), or refused where the profile does not resample |

Sound is decoded, checked, mixed and resampled some BLOCK_SAMPLES at a time, so that what it takes of memory is what
comes out, whatever rate and channels a small file unfolds to; the numbers are those of doing it all at once.

What was done is told in words. Raises Refusal with INPUT_INVALID or INPUT_TOO_LARGE.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from schemas.codes import Code, Refusal
from schemas.profiles import AudioSettings
from schemas.tasks.audio import Audio
from worker.adapters.audio.containers import check_whole, has_container

FULL_SCALE_MAX = 8.0  # float recordings overshoot 1.0 a little; 16-bit numbers sent as float by thousands
FILE_FORMATS = frozenset({"WAV", "WAVEX", "FLAC", "OGG"})
SAMPLES_PER_SECOND_MAX = 384_000  # of all channels, on an average: 8 channels of 48 kHz, or 2 of 192 kHz
BLOCK_SAMPLES = 1 << 18  # of all channels
LENGTH_UNKNOWN = 0x7FFFFFFFFFFFFFFF  # libsndfile's word for it
SPARE_SAMPLES = 64  # by which a resampler may give more than the ratio says
SELF_CHECKED = frozenset({"FLAC"})  # formats of which libsndfile notices that a file is cut short
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
    opened = _file(audio, conversions) if audio.encoding == "file" else _raw(audio, conversions)
    with opened as (frames, blocks):
        if not frames:
            return Sound(np.zeros(0, np.float32), rate_hz, [])
        _check_length(frames, audio, settings)
        _check_allowed(audio, settings, rate_hz)
        mono = _Mono(audio.rate_hz, rate_hz, frames)
        for block in blocks:
            _check_samples(block)
            mono.take(block)
    if audio.channels > 1:
        conversions.append(f"{audio.channels} channels mixed to their mean")
    if audio.rate_hz != rate_hz:
        conversions.append(f"{audio.rate_hz} Hz resampled to {rate_hz} Hz (soxr HQ)")
    return Sound(mono.end(), rate_hz, conversions)


class _Mono:
    """Takes frames by channels, block by block; keeps one channel at the model's rate."""

    def __init__(self, given_hz: int, rate_hz: int, frames: int) -> None:
        import numpy as np
        import soxr

        self._kept = np.empty(math.ceil(frames * rate_hz / given_hz) + SPARE_SAMPLES, np.float32)
        self._count = 0
        self._resampler: Any = None
        if given_hz != rate_hz:
            self._resampler = soxr.ResampleStream(given_hz, rate_hz, 1, dtype="float32", quality="HQ")

    def take(self, block: Any) -> None:
        import numpy as np

        mixed = block.mean(axis=1, dtype=np.float32) if block.shape[1] > 1 else block.reshape(-1)
        mixed = np.ascontiguousarray(mixed, dtype=np.float32)
        self._keep(mixed if self._resampler is None else self._resampler.resample_chunk(mixed))

    def end(self) -> Any:
        """All samples. Nothing can be taken afterwards."""
        import numpy as np

        if self._resampler is not None:
            self._keep(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        return self._kept[: self._count]

    def _keep(self, samples: Any) -> None:
        self._kept[self._count : self._count + len(samples)] = samples
        self._count += len(samples)


@contextlib.contextmanager
def _raw(audio: Audio, conversions: list[str]) -> Iterator[tuple[int, Iterator[Any]]]:
    """How many frames there are, and float32 blocks of frames by channels."""
    import numpy as np

    frame_bytes = _SAMPLE_BYTES[audio.encoding] * audio.channels
    frames, rest = divmod(len(audio.data), frame_bytes)
    if rest:
        message = f"{len(audio.data)} bytes are no whole frames of {frame_bytes} bytes ({audio.encoding})"
        raise Refusal(Code.INPUT_INVALID, message)
    whole = audio.encoding == "s16le"
    samples = np.frombuffer(audio.data, "<i2" if whole else "<f4").reshape(frames, audio.channels)
    if whole:
        conversions.append("16-bit samples divided by 32,768")
    step = _block_frames(audio.channels)
    scale = np.float32(32_768)
    pieces = (samples[begin : begin + step] for begin in range(0, frames, step))
    yield frames, (piece.astype(np.float32) / scale if whole else piece.astype(np.float32) for piece in pieces)


@contextlib.contextmanager
def _file(audio: Audio, conversions: list[str]) -> Iterator[tuple[int, Iterator[Any]]]:
    """The same of a file."""
    import soundfile

    data = check_whole(audio.data, conversions)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in FILE_FORMATS:
                raise Refusal(Code.INPUT_INVALID, f"a {file.format} file; {', '.join(sorted(FILE_FORMATS))} are read")
            if file.format not in SELF_CHECKED and not has_container(data):
                raise Refusal(Code.INPUT_INVALID, "something comes before the audio file's own header; take it away")
            said, found = (audio.rate_hz, audio.channels), (file.samplerate, file.channels)
            if said != found:
                message = f"the file has {found[0]} Hz and {found[1]} channels; {said[0]} Hz and {said[1]} were said"
                raise Refusal(Code.INPUT_INVALID, message)
            if file.frames == LENGTH_UNKNOWN:
                raise Refusal(Code.INPUT_INVALID, "the audio file says no length, as if written to a pipe; save it")
            yield file.frames, _blocks_of(file)
    except soundfile.LibsndfileError as error:
        raise Refusal(Code.INPUT_INVALID, f"the audio file can't be read: {error.error_string}") from error


def _blocks_of(file: Any) -> Iterator[Any]:
    step, count = _block_frames(file.channels), 0
    while count < file.frames:
        wanted = min(step, file.frames - count)
        block = file.read(wanted, dtype="float32", always_2d=True)
        count += len(block)
        if len(block) < wanted:  # the library would seek to where it should be, and go on from there
            raise Refusal(Code.INPUT_INVALID, f"the audio file ends after {count} of {file.frames} frames")
        yield block


def _block_frames(channels: int) -> int:
    return max(BLOCK_SAMPLES // channels, 1)


def _check_length(frames: int, audio: Audio, settings: AudioSettings) -> None:
    seconds, most = frames / audio.rate_hz, settings.seconds_max
    if frames > most * audio.rate_hz:
        raise Refusal(Code.INPUT_TOO_LARGE, f"{seconds:.1f} s of audio; the profile allows {most}")
    samples, samples_max = frames * audio.channels, most * SAMPLES_PER_SECOND_MAX
    if samples > samples_max:
        message = f"{seconds:.1f} s of {audio.channels} channels at {audio.rate_hz} Hz are {samples} samples;"
        raise Refusal(Code.INPUT_TOO_LARGE, f"{message} {samples_max} are decoded for the profile's {most} s")


def _check_allowed(audio: Audio, settings: AudioSettings, rate_hz: int) -> None:
    if audio.channels > 1 and not settings.mix_to_mono:
        raise Refusal(Code.INPUT_INVALID, f"{audio.channels} channels; the profile takes one and does not mix")
    if audio.rate_hz != rate_hz and not settings.resample:
        message = f"{audio.rate_hz} Hz; the model takes {rate_hz} Hz and the profile does not resample"
        raise Refusal(Code.INPUT_INVALID, message)


def _check_samples(block: Any) -> None:
    import numpy as np

    peak = float(np.abs(block).max())
    if not np.isfinite(peak):
        raise Refusal(Code.INPUT_INVALID, "the audio holds NaN or infinity")
    if peak > FULL_SCALE_MAX:
        raise Refusal(Code.INPUT_INVALID, f"samples reach {peak:.6g}; float samples are within -1 and 1")


def chunks_of(sound: Sound, settings: AudioSettings) -> list[tuple[int, int]]:
    """Where to cut, as (begin, end) samples; together they are the whole sound. Raises Refusal.

    Each piece is at most `chunk_seconds` long and at least a quarter of that. It ends in the quietest FRAME_SECONDS of
    its last QUIET_SECONDS, or of its last half where that is shorter, so that a cut seldom goes through a word.
    """
    longest, total = settings.chunk_seconds * sound.rate_hz, len(sound.samples)
    if total <= longest:
        return [(0, total)] if total else []
    if not settings.chunk:
        message = f"{sound.seconds:.1f} s of audio; the profile takes {settings.chunk_seconds} s and does not cut"
        raise Refusal(Code.INPUT_TOO_LARGE, message)
    cuts, begin = [], 0
    while total - begin > longest:
        latest = min(begin + longest, total - longest // 4)
        end = _quietest(sound, begin + (latest - begin) // 2, latest)
        cuts.append((begin, end))
        begin = end
    return [*cuts, (begin, total)]


def _quietest(sound: Sound, earliest: int, latest: int) -> int:
    """The middle of the quietest frame of the last QUIET_SECONDS before `latest`, and not before `earliest`."""
    import numpy as np

    frame = max(int(FRAME_SECONDS * sound.rate_hz), 1)
    count = min(int(QUIET_SECONDS * sound.rate_hz), latest - earliest) // frame
    if count < 1:
        return latest
    begin = latest - count * frame
    energy = np.square(sound.samples[begin:latest].reshape(count, frame)).mean(axis=1)
    # Of equally quiet frames the last: fewer, longer pieces.
    quietest = count - 1 - int(np.argmin(energy[::-1]))
    return int(begin + quietest * frame + frame // 2)
