"""Tasks on sound: `stt` (speech to text) and `tts` (text to speech).

The sampling rate is always said: raw samples without one mean nothing. Whatever was done to get to the model's rate
and to one channel is in `conversions`; audio is never cut silently.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.tasks.invocation import Conversions, Invocation, Seed

RateHz = Annotated[int, Meta(ge=1_000, le=768_000, description="Samples of one channel in a second.")]


class Audio(Struct, frozen=True, forbid_unknown_fields=True):
    """`f32le` and `s16le` are raw little-endian samples, channels interleaved; `file` is a WAV, FLAC or Ogg file.

    A file's own rate and channels must be those said here.
    """

    data: bytes
    rate_hz: RateHz
    channels: Annotated[int, Meta(ge=1, le=64)] = 1
    encoding: Literal["f32le", "s16le", "file"] = "f32le"


class TranscribeRequest(Invocation, frozen=True, tag="transcribe"):
    """Task `stt`. `language` None lets the model decide where it can. `translate` asks for English."""

    audio: Audio
    language: Annotated[str, Meta(min_length=2, max_length=40)] | None = None
    translate: bool = False


class Segment(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds from the start of the audio."""

    start_s: float
    end_s: float
    text: str


class Transcribed(Struct, frozen=True, tag="transcribed", forbid_unknown_fields=True):
    """`seconds` is how much audio the model was given, all of it; `truncated` that a chunk's text hit its bound.

    Segments are the model's own where the profile asks for timestamps, else one for each chunk.
    """

    text: str
    segments: list[Segment]
    seconds: float
    chunks: int
    truncated: bool
    conversions: Conversions


class SpeakRequest(Invocation, frozen=True, tag="speak"):
    """Task `tts`. `speaker` is a number below the model's count of speakers."""

    text: str
    speaker: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    seed: Seed | None = None


class Spoken(Struct, frozen=True, tag="spoken", forbid_unknown_fields=True):
    """`audio` is raw `f32le`, one channel. `seed` is the one used. `tokens` is what the model read of the text.

    A text of which the model can say nothing gives no samples. What was changed in the text is in `conversions`.
    """

    audio: Audio
    seconds: float
    tokens: int
    seed: int
    conversions: Conversions
