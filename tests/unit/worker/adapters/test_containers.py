"""A sound file that is not whole is refused, wherever it was cut; one that cannot say its length is told to be."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile

from schemas.codes import Code, Refusal
from schemas.profiles import AudioSettings
from schemas.tasks.audio import Audio
from worker.adapters.audio.sound import Sound, sound_of

RATE_HZ = 16_000
FRAMES = 5 * RATE_HZ
WAVE = np.random.default_rng(0).normal(0, 0.1, FRAMES).astype("f4")
PCM = (WAVE * 32_767).astype("<i2").tobytes()
STREAMED = ["the file was written as a stream and says no length: read to its end"]
LIST = b"LIST" + struct.pack("<I", 4) + b"INFO"
KINDS = [
    *[("WAV", subtype) for subtype in ("PCM_16", "PCM_U8", "FLOAT", "DOUBLE", "ULAW", "MS_ADPCM", "GSM610")],
    *[("WAVEX", "PCM_24"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS")],
]


def file_of(kind: str, subtype: str, **more: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, WAVE, RATE_HZ, format=kind, subtype=subtype, **more)
    return file.getvalue()


def wav(pcm: bytes, declared: int, *, before: bytes = b"", after: bytes = b"", riff: int | None = None) -> bytes:
    kind = struct.pack("<HHIIHH", 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16)
    head = b"WAVEfmt " + struct.pack("<I", 16) + kind + before
    body = head + b"data" + struct.pack("<I", declared) + pcm + after
    return b"RIFF" + struct.pack("<I", len(body) if riff is None else riff) + body


def pages(ogg: bytes) -> list[bytes]:
    found = []
    while ogg:
        segments = ogg[26]
        size = 27 + segments + sum(ogg[27 : 27 + segments])
        found.append(ogg[:size])
        ogg = ogg[size:]
    return found


def heard(data: bytes) -> Sound:
    return sound_of(Audio(data, RATE_HZ, 1, "file"), AudioSettings(), RATE_HZ)


def refused(data: bytes) -> str:
    with pytest.raises(Refusal) as caught:
        heard(data)
    assert caught.value.code == Code.INPUT_INVALID
    return caught.value.message


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
def test_whole_files_are_heard_whole(kind: str, subtype: str) -> None:
    sound = heard(file_of(kind, subtype))
    assert FRAMES <= len(sound.samples) < 1.02 * FRAMES  # block codecs fill their last block
    assert sound.conversions == []


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
@pytest.mark.parametrize("part", [0.02, 0.25, 0.5, 0.9, 0.999])
def test_cut_files_are_refused(kind: str, subtype: str, part: float) -> None:
    data = file_of(kind, subtype)
    assert "the audio file" in refused(data[: int(len(data) * part)])


def test_a_big_endian_wav_is_the_same() -> None:
    data = file_of("WAV", "PCM_16", endian="BIG")
    assert data.startswith(b"RIFX")
    assert len(heard(data).samples) == FRAMES
    assert "cut short" in refused(data[:-2])


@pytest.mark.parametrize("riff", [None, 0, 36, 0xFFFFFFFF])
@pytest.mark.parametrize("declared", [0, 0xFFFFFFFF])
@pytest.mark.parametrize("before", [b"", LIST])
def test_a_wav_of_a_stream_is_read_to_its_end_and_told(declared: int, riff: int | None, before: bytes) -> None:
    sound = heard(wav(PCM, declared, riff=riff, before=before))
    assert np.array_equal(sound.samples, np.frombuffer(PCM, "<i2").astype("f4") / 32_768)
    assert sound.conversions == STREAMED


@pytest.mark.parametrize("after", [b"", LIST, LIST + b"id3 " + struct.pack("<I", 3) + b"abc"])
def test_a_wav_of_nothing_is_nothing(after: bytes) -> None:
    sound = heard(wav(b"", 0, after=after))
    assert (len(sound.samples), sound.conversions) == (0, [])


def test_chunks_after_the_sound_are_none_and_other_bytes_are_told() -> None:
    assert heard(wav(PCM, len(PCM), after=LIST)).conversions == []
    assert len(heard(wav(PCM, len(PCM), after=LIST)).samples) == FRAMES
    less = heard(wav(PCM, 2_000))
    assert len(less.samples) == 1_000
    assert less.conversions == [f"{len(PCM) - 2_000} bytes after the sound that the file declares left out"]


def test_a_wav_behind_something_else_is_refused() -> None:
    """libsndfile passes over such a tag, and loses as many bytes at the end."""
    tag = b"ID3\x04\0\0\0\0\0\x0a" + bytes(10)
    assert "comes before" in refused(tag + wav(PCM, len(PCM)))


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_every_page_of_an_ogg_must_be_there_and_sound(subtype: str) -> None:
    whole = pages(file_of("OGG", subtype))
    assert len(whole) > 5
    assert "no end-of-stream mark" in refused(b"".join(whole[:-1]))
    assert "follows where page 3 should" in refused(b"".join(whole[:3] + whole[4:]))
    for number in (2, len(whole) - 1):
        broken = bytearray(whole[number])
        broken[-1] ^= 1
        assert "checksum" in refused(b"".join([*whole[:number], bytes(broken), *whole[number + 1 :]]))
    assert "no page begins" in refused(b"".join([*whole[:3], b"junk" * 8, *whole[3:]]))


def test_of_several_oggs_in_one_file_none_is_heard() -> None:
    """libsndfile would play the first and leave out the others."""
    vorbis, opus = file_of("OGG", "VORBIS"), file_of("OGG", "OPUS")
    assert "more than one stream" in refused(vorbis + opus)
    one, two = pages(vorbis), pages(opus)
    assert "more than one stream" in refused(b"".join([one[0], two[0], *one[1:], *two[1:]]))
    assert len(heard(vorbis + bytes(128)).samples) == FRAMES


def test_a_flac_without_a_length_is_refused() -> None:
    """As ffmpeg writes one to a pipe: libsndfile cannot read it to its end."""
    data = bytearray(file_of("FLAC", "PCM_16"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    assert "says no length" in refused(bytes(data))
