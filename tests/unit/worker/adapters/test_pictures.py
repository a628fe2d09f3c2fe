"""What the pictures module makes of each kind of file, and what it refuses."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from schemas.codes import Code, Refusal
from schemas.profiles import ImageSettings, RuntimeProfile
from worker.adapters.image.pictures import Picture, decode, image_settings, look

WHITE = ImageSettings()
BLACK = ImageSettings(background="black")
PIXELS = np.random.default_rng(7).integers(0, 256, (6, 9, 3), dtype=np.uint8)


def file_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def rgb(picture: Picture) -> np.ndarray:
    assert picture.image.mode == "RGB"
    return np.asarray(picture.image)


def png(width: int, height: int, depth: int, colour: int, data: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG by hand, for what Pillow does not write."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = [b"\0" + data[at : at + len(data) // height] for at in range(0, len(data), len(data) // height)]
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            chunk(b"IHDR", head),
            *(chunk(*each) for each in chunks),
            chunk(b"IDAT", zlib.compress(b"".join(rows))),
            chunk(b"IEND", b""),
        ]
    )


def refusal(data: bytes, settings: ImageSettings = WHITE, number: int = 0) -> Refusal:
    with pytest.raises(Refusal) as caught:
        decode(data, number, settings)
    return caught.value


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_rgb_is_what_it_was(kind: str) -> None:
    picture = decode(file_of(Image.fromarray(PIXELS), kind), 0, WHITE)
    assert (rgb(picture) == PIXELS).all()
    assert picture.conversions == []


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {"quality": 100}), ("WEBP", {"lossless": True}), ("GIF", {})])
def test_the_other_formats_decode_as_pillow_decodes_them(kind: str, options: dict[str, Any]) -> None:
    data = file_of(Image.fromarray(PIXELS), kind, **options)
    assert (rgb(decode(data, 0, WHITE)) == np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).all()


def test_grey_of_one_and_eight_bits() -> None:
    grey = PIXELS[:, :, 0]
    picture = decode(file_of(Image.fromarray(grey), "PNG"), 0, WHITE)
    assert (rgb(picture) == grey[:, :, None]).all()
    assert picture.conversions == ["8-bit grey to RGB"]
    picture = decode(file_of(Image.fromarray(grey > 127), "PNG"), 0, WHITE)
    assert (rgb(picture) == np.where(grey > 127, 255, 0)[:, :, None]).all()
    assert picture.conversions == ["1-bit grey to RGB"]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_grey_of_sixteen_bits_is_scaled_not_clipped(kind: str) -> None:
    values = np.array([[0, 255, 256, 32_768, 65_535]], dtype=np.uint16)
    picture = decode(file_of(Image.fromarray(values), kind), 0, WHITE)
    assert rgb(picture)[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    assert picture.conversions == ["16-bit grey to 8 bits", "8-bit grey to RGB"]


def test_grey_of_sixteen_bits_with_white_zero() -> None:
    data = bytearray(file_of(Image.fromarray(np.array([[0, 65_535]], dtype=np.uint16)), "TIFF"))
    entry = data.index(struct.pack("<HHI", 262, 3, 1))  # PhotometricInterpretation, one SHORT
    data[entry + 8 : entry + 10] = b"\0\0"
    picture = decode(bytes(data), 0, WHITE)
    assert rgb(picture)[0, :, 0].tolist() == [255, 0]
    assert picture.conversions[0] == "white was zero: inverted"


def test_a_transparent_value_of_sixteen_bits() -> None:
    data = png(2, 1, 16, 0, struct.pack(">HH", 300, 301), (b"tRNS", struct.pack(">H", 300)))
    picture = decode(data, 0, WHITE)
    assert rgb(picture)[0, :, 0].tolist() == [255, 1]  # only the one of the two that is meant
    assert picture.conversions == ["16-bit grey to 8 bits", "grey with alpha to RGB over white"]


def test_colours_of_sixteen_bits() -> None:
    data = png(1, 1, 16, 2, struct.pack(">HHH", 65_535, 32_768, 255))
    picture = decode(data, 0, WHITE)
    assert rgb(picture)[0, 0].tolist() == [255, 128, 0]
    assert picture.conversions == ["16 bits of each channel to 8"]
    keyed = png(1, 1, 16, 2, struct.pack(">HHH", 65_535, 32_768, 255), (b"tRNS", struct.pack(">HHH", 1, 2, 3)))
    assert decode(keyed, 0, WHITE).conversions == ["16 bits of each channel to 8", "transparent colour ignored"]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("settings", [WHITE, BLACK])
def test_alpha_over_the_background(mode: str, settings: ImageSettings) -> None:
    base = Image.fromarray(PIXELS).convert(mode[:-1])
    base.putalpha(Image.linear_gradient("L").resize(base.size))
    picture = decode(file_of(base, "PNG"), 0, settings)
    alpha = np.asarray(base)[:, :, -1:].astype(float) / 255
    colours = np.asarray(base.convert("RGB")).astype(float)
    behind = 255.0 if settings.background == "white" else 0.0
    assert np.abs(rgb(picture) - (colours * alpha + behind * (1 - alpha))).max() <= 1.0
    named = {"RGBA": "RGBA", "LA": "grey with alpha"}[mode]
    assert picture.conversions == [f"{named} to RGB over {settings.background}"]


def test_palettes() -> None:
    plain = Image.fromarray(PIXELS).quantize(8)
    picture = decode(file_of(plain, "PNG"), 0, WHITE)
    assert (rgb(picture) == np.asarray(plain.convert("RGB"))).all()
    assert picture.conversions == ["palette to RGB"]
    for transparency in (3, bytes([255, 0, 128])):  # one entry, and an alpha for each of the first
        data = file_of(plain, "PNG", transparency=transparency)
        picture = decode(data, 0, BLACK)
        entries = np.asarray(plain)
        clear = entries == (3 if transparency == 3 else 1)
        assert clear.any()
        assert (rgb(picture)[clear] == 0).all()
        assert (rgb(picture)[entries > 3] == np.asarray(plain.convert("RGB"))[entries > 3]).all()
        assert picture.conversions == ["palette with transparency to RGB over black"]


def test_a_palette_with_alpha() -> None:
    plain = Image.fromarray(PIXELS).quantize(8).convert("PA")
    plain.putalpha(Image.new("L", plain.size, 0))
    picture = decode(file_of(plain, "TIFF"), 0, WHITE)
    assert (rgb(picture) == 255).all()
    assert picture.conversions == ["palette with alpha to RGB over white"]


def test_a_transparent_colour() -> None:
    image = Image.fromarray(PIXELS)
    key = image.getpixel((2, 1))
    picture = decode(file_of(image, "PNG", transparency=key), 0, WHITE)
    assert rgb(picture)[1, 2].tolist() == [255, 255, 255]
    assert picture.conversions == ["a transparent colour to RGB over white"]


def test_cmyk_and_ycbcr() -> None:
    cmyk = Image.fromarray(PIXELS).convert("CMYK")
    for kind in ("JPEG", "TIFF"):
        picture = decode(file_of(cmyk, kind), 0, WHITE)
        assert picture.conversions == ["CMYK to RGB without a colour profile"]
    ycbcr = Image.fromarray(PIXELS).convert("YCbCr")
    picture = decode(file_of(ycbcr, "TIFF"), 0, WHITE)
    assert (rgb(picture) == np.asarray(ycbcr.convert("RGB"))).all()
    assert picture.conversions == ["YCbCr to RGB"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation_is_applied_and_said(kind: str) -> None:
    upright = Image.new("RGB", (40, 20), "black")
    upright.paste("white", (0, 0, 20, 10))
    stored = upright.transpose(Image.Transpose.ROTATE_90)  # what a camera held sideways stores
    exif = Image.Exif()
    exif[274] = 6
    picture = decode(file_of(stored, kind, exif=exif), 0, WHITE)
    assert picture.image.size == (40, 20)
    assert np.abs(rgb(picture).astype(int) - np.asarray(upright).astype(int)).mean() < 8
    assert picture.conversions == ["EXIF orientation 6 applied"]


def test_unreadable_exif_turns_nothing() -> None:
    data = file_of(Image.fromarray(PIXELS), "PNG", exif=b"Exif\0\0MM\0\x2a\xff\xff\xff\xff")
    assert rgb(decode(data, 0, WHITE)).shape == PIXELS.shape


def test_what_pillow_warns_of_is_not_shown() -> None:
    data = png(1, 1, 8, 2, b"\1\2\3", (b"acTL", struct.pack(">II", 0, 0)))
    with pytest.warns(UserWarning, match="Invalid APNG"):
        Image.open(io.BytesIO(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rgb(decode(data, 0, WHITE)).tolist() == [[[1, 2, 3]]]


def test_a_colour_profile_is_ignored_and_said() -> None:
    data = file_of(Image.fromarray(PIXELS), "PNG", icc_profile=b"some profile")
    picture = decode(data, 0, WHITE)
    assert (rgb(picture) == PIXELS).all()
    assert picture.conversions == ["ICC profile ignored"]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_more_than_one_frame_is_refused(kind: str) -> None:
    frames = [Image.new("RGB", (9, 6), colour) for colour in ("red", "green", "blue")]
    found = refusal(file_of(frames[0], kind, save_all=True, append_images=frames[1:]), number=4)
    assert found.code == Code.INPUT_INVALID
    assert found.message == f"image 4 is a {kind} with more than one frame; send the one that is meant"
    assert decode(file_of(frames[0], kind, save_all=True), 0, WHITE).image.size == (9, 6)


def test_the_first_picture_of_a_jpeg_with_previews() -> None:
    first, preview = Image.new("RGB", (16, 8), "red"), Image.new("RGB", (8, 4), "blue")
    picture = decode(file_of(first, "MPO", save_all=True, append_images=[preview]), 0, WHITE)
    assert picture.image.size == (16, 8)
    assert picture.conversions == ["first of 2 pictures"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
def test_pixels_are_counted_before_decoding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(Image.new("RGB", (40, 40)), kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    found = refusal(data, ImageSettings(pixels_max=1_599), 2)
    assert found.code == Code.INPUT_TOO_LARGE
    assert found.message.startswith("image 2 has 1600 pixels")
    assert found.message.endswith("the profile allows 1599")
    look(data, 2, ImageSettings(pixels_max=1_600))


def test_the_limit_is_the_profile_s_and_not_pillow_s() -> None:
    """300 megapixels: refused by a number of ours; allowed where the profile allows them. No warning either way."""
    data = png(20_000, 15_000, 8, 0, b"\0" * 15_000)  # not decoded, so the rest of the pixels may be missing
    before = Image.MAX_IMAGE_PIXELS
    assert "300000000 pixels; the profile allows 40000000" in str(refusal(data))
    look(data, 0, ImageSettings(pixels_max=300_000_000))
    assert before == Image.MAX_IMAGE_PIXELS
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(data))


def test_a_switch_set_by_another_library_does_not_let_cut_files_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = file_of(Image.fromarray(np.tile(PIXELS, (20, 20, 1))), "JPEG")
    assert refusal(data[: len(data) // 2]).code == Code.INPUT_INVALID
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
def test_cut_files_are_refused_by_number(kind: str) -> None:
    data = file_of(Image.fromarray(np.tile(PIXELS, (9, 9, 1))), kind)
    for share in (0.3, 0.6, 0.9):
        found = refusal(data[: int(len(data) * share)], number=3)
        assert found.code == Code.INPUT_INVALID
        assert found.message.startswith("image 3 ")


def test_what_is_no_image_is_refused() -> None:
    assert refusal(b"").message == "image 0 is empty"
    for data in (b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.4", b"\0" * 1_000):
        assert "is none of PNG, JPEG" in refusal(data).message
    assert "is none of" in refusal(file_of(Image.fromarray(PIXELS), "PPM")).message  # a real image, not of the list


def test_what_has_no_pixels_is_refused() -> None:
    assert refusal(png(0, 3, 8, 0, b"\0\0\0")).code == Code.INPUT_INVALID
    jpeg = bytearray(file_of(Image.fromarray(PIXELS), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = b"\0\0\0\0"
    assert refusal(bytes(jpeg)).code == Code.INPUT_INVALID


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (Image.fromarray(np.zeros((2, 2), dtype=np.int32)), "signed or 32-bit whole numbers"),
        (Image.fromarray(np.zeros((2, 2), dtype=np.float32)), "floating-point numbers"),
        (Image.new("LAB", (2, 2)), "the colour space LAB"),
    ],
)
def test_samples_without_a_known_white_are_refused(image: Image.Image, words: str) -> None:
    found = refusal(file_of(image, "TIFF"))
    assert found.code == Code.INPUT_INVALID
    assert words in found.message


def test_broken_bytes_are_refused_and_never_anything_else() -> None:
    """Thousands of damaged files of every format: a picture or a refusal, no warning, no other exception."""
    source = random.Random(20_260)
    image = Image.fromarray(PIXELS)
    files = [file_of(image, kind) for kind in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")]
    files += [file_of(image, "TIFF", compression=each) for each in ("tiff_lzw", "tiff_deflate", "jpeg", "packbits")]
    files += [file_of(image.quantize(8), "PNG", transparency=1), file_of(image, "JPEG", exif=_turned())]
    outcomes: Counter[str] = Counter()
    settings = ImageSettings(pixels_max=1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4_000):
            data = bytearray(source.choice(files))
            for _ in range(source.randint(1, 6)):
                data[source.randrange(min(len(data), 400))] = source.randrange(256)
            if source.random() < 0.2:
                del data[source.randrange(len(data)) :]
            try:
                outcomes[decode(bytes(data), 0, settings).image.mode] += 1
            except Refusal as found:
                outcomes[found.code] += 1
    assert set(outcomes) == {"RGB", Code.INPUT_INVALID, Code.INPUT_TOO_LARGE}
    assert min(outcomes["RGB"], outcomes[Code.INPUT_INVALID]) > 200, outcomes


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[274] = 8
    return exif


def test_settings_that_are_not_said_are_the_struct_s_own() -> None:
    profile = RuntimeProfile(adapter="transformers_trocr", task="ocr")
    assert image_settings(profile) == ImageSettings()
