"""From the bytes of one encoded image file to RGB, with every conversion recorded in words.

Files may be PNG, JPEG, WebP, BMP, TIFF or GIF. What a file says of itself is read first (`look`): its format, its size
and how many frames it has. Only then are its pixels decoded (`decode`), so an image over `pixels_max` is refused
before memory is taken for it. Refusals name the image by its place in the request, from 0.

| the file holds                          | the model sees              | recorded                                    |
|-----------------------------------------|-----------------------------|---------------------------------------------|
| RGB of 8 bits                           | the same                    |                                             |
| grey of 1 or 8 bits                     | grey in all channels        | `8-bit grey to RGB`                         |
| grey of 12 or 16 bits                   | the upper 8 bits            | `16-bit grey to 8 bits`, then as above      |
| RGB or RGBA of 16 bits                  | the upper 8 bits            | `16 bits of each channel to 8`              |
| alpha (LA, RGBA, PA)                    | it over the `background`    | `RGBA to RGB over white`                    |
| a transparent colour or palette entry   | it over the `background`    | `palette with transparency to RGB over ...` |
| the same, in RGB of 16 bits             | the colours, none missing   | `transparent colour ignored`                |
| a palette                               | its colours                 | `palette to RGB`                            |
| CMYK, YCbCr                             | the plain conversion        | `CMYK to RGB without a colour profile`      |
| channels of unknown meaning (TIFF)      | the others                  | `further channels dropped`                  |
| an EXIF orientation other than 1        | turned as it says           | `EXIF orientation 6 applied`                |
| an ICC profile                          | the numbers as they are     | `ICC profile ignored`                       |
| several pictures in one JPEG (MPO)      | the first                   | `first of 2 pictures`                       |

`background` is the profile's. ICC profiles are ignored because models were trained on images read so. A JPEG's further
pictures are previews and depth or gain maps, not frames.

Refused as INPUT_INVALID: what is none of the formats, broken or cut short, or has no pixels; more than one frame (GIF,
WebP, APNG, TIFF pages), because which one is meant is not for a server to guess; signed and 32-bit samples, because
nothing says which value is white; colour spaces without a plain conversion (Lab). Refused as INPUT_TOO_LARGE: more
pixels than `pixels_max`.

Pillow's own limit and its leniency for cut files are process-wide switches that other libraries set too. Here they
are what this page says while a file is read, and what they were afterwards. Its warnings are not shown.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import UnsetType

from schemas.codes import Code, Refusal
from schemas.profiles import ImageSettings, RuntimeProfile

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")
_PLUGINS = ("Png", "Jpeg", "Mpo", "WebP", "Bmp", "Tiff", "Gif")  # Pillow would else import all it has to find these
_ORIENTATION = 274  # the EXIF tag
_PHOTOMETRIC = 262  # the TIFF tag; 0: white is zero
_GREY = {"1": "1-bit grey", "L": "8-bit grey"}
_ALPHA = {"LA": "grey with alpha", "La": "grey with alpha", "RGBA": "RGBA", "RGBa": "RGBA", "PA": "palette with alpha"}
_PLAIN = {"CMYK": "CMYK to RGB without a colour profile", "YCbCr": "YCbCr to RGB"}
_UNCLEAR = {"I": "signed or 32-bit whole numbers", "F": "floating-point numbers"}


@dataclass
class Picture:
    """`image` is a Pillow image in mode RGB. `conversions` says what was done, in order."""

    image: Any
    conversions: list[str] = field(default_factory=list)


def image_settings(profile: RuntimeProfile) -> ImageSettings:
    return ImageSettings() if isinstance(profile.image, UnsetType) else profile.image


def look(data: bytes, number: int, settings: ImageSettings) -> None:
    """Check what the header says; raises Refusal. Decodes nothing."""
    with _reading(number, settings):
        _opened(data, number, settings)


def decode(data: bytes, number: int, settings: ImageSettings) -> Picture:
    """The picture; raises Refusal."""
    with _reading(number, settings):
        image = _opened(data, number, settings)
        said = _said_of_file(image)
        stored = _stored(image)
        orientation = _orientation(image)
        image.load()
        if orientation:
            said.append(f"EXIF orientation {orientation} applied")
            image = _ops().exif_transpose(image)  # nothing is left to turn of a TIFF, which did while it was loaded
        return Picture(_to_rgb(image, stored, said, number, settings), said)


def health_picture() -> bytes:
    """A small PNG for health checks: a dark bar on a light ground that gets darker."""
    from PIL import Image

    picture = Image.linear_gradient("L").resize((64, 32)).convert("RGB")
    picture.paste((16, 16, 16), (8, 12, 56, 20))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


@contextlib.contextmanager
def _reading(number: int, settings: ImageSettings) -> Iterator[None]:
    """Pillow with our limits, and whatever it raises as a refusal that names the image."""
    from PIL import Image, ImageFile, UnidentifiedImageError

    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    Image.MAX_IMAGE_PIXELS = settings.pixels_max / 2  # it raises over twice this, and only warns below
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (Refusal, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(number, _pixels_named(str(error)), settings) from error
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise _invalid(number, f"is none of {known}, or its header is broken") from error
    except Exception as error:  # whatever Pillow raises over somebody's bytes is about the bytes
        raise _invalid(number, f"can't be decoded: {error or type(error).__name__}") from error
    finally:
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


def _opened(data: bytes, number: int, settings: ImageSettings) -> Any:
    from PIL import Image

    if not data:
        raise _invalid(number, "is empty")
    for plugin in _PLUGINS:
        importlib.import_module(f"PIL.{plugin}ImagePlugin")
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    width, height = image.size
    if width < 1 or height < 1:
        raise _invalid(number, f"has no pixels: it is {width} by {height}")
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise _invalid(number, f"is a {image.format} with more than one frame; send the one that is meant")
    return image


def _orientation(image: Any) -> int:
    """2 to 8, or 0 where there is nothing to turn. EXIF that can't be read turns nothing, as in browsers."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - whatever Pillow's parsers raise; the pixels are none the worse for it
        return 0
    return found if isinstance(found, int) and 2 <= found <= 8 else 0


@dataclass
class _Stored:
    """What the file says of its samples. Asked before loading, after which Pillow no longer tells.

    `raw` is Pillow's word for how they lie there, such as `RGB;16B`; empty where it has none.
    """

    format: str
    raw: str
    white_is_zero: bool


def _stored(image: Any) -> _Stored:
    arguments = image.tile[0].args if image.tile else ""
    first = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    white_is_zero = image.format == "TIFF" and image.tag_v2.get(_PHOTOMETRIC) == 0
    return _Stored(image.format, first if isinstance(first, str) else "", white_is_zero)


def _said_of_file(image: Any) -> list[str]:
    said = []
    if image.format == "MPO" and image.n_frames > 1:
        said.append(f"first of {image.n_frames} pictures")
    if image.info.get("icc_profile"):
        said.append("ICC profile ignored")
    return said


def _to_rgb(image: Any, stored: _Stored, said: list[str], number: int, settings: ImageSettings) -> Any:
    transparent = image.info.get("transparency") is not None
    if image.mode.startswith("I;16"):
        image = _upper_bits(image, stored, said)
    elif ";16" in stored.raw:
        said.append("16 bits of each channel to 8")
        if transparent:  # it names a colour of 16 bits; of 8 there is more than one of them
            said.append("transparent colour ignored")
            transparent = False
    if stored.format == "TIFF" and "X" in stored.raw:
        said.append("further channels dropped")
    mode = image.mode
    if mode in _ALPHA or (transparent and mode in {"P", "L", "1", "RGB"}):
        what = _ALPHA.get(mode) or ("palette with transparency" if mode == "P" else "a transparent colour")
        said.append(f"{what} to RGB over {settings.background}")
        return _flattened(image, settings.background)
    if mode in _GREY or mode == "P":
        said.append(f"{_GREY.get(mode, 'palette')} to RGB")
    elif mode in _PLAIN:
        said.append(_PLAIN[mode])
    elif mode in _UNCLEAR:
        raise _invalid(number, f"has samples of {_UNCLEAR[mode]}, which say no white; convert it to 8 or 16 bits")
    elif mode != "RGB":
        raise _invalid(number, f"has the colour space {mode}, which is not converted here")
    return image if mode == "RGB" else image.convert("RGB")


def _upper_bits(image: Any, stored: _Stored, said: list[str]) -> Any:
    """Grey of more than 8 bits as 8-bit grey, with alpha where one value is transparent."""
    import numpy as np
    from PIL import Image

    bits = 12 if stored.raw == "I;12" else 16
    values = np.asarray(image).astype("uint16")
    if stored.white_is_zero:  # Pillow inverts only what has 8 bits or fewer
        values = np.uint16(2**bits - 1) - values
        said.append("white was zero: inverted")
    said.append(f"{bits}-bit grey to 8 bits")
    grey = Image.fromarray((values >> (bits - 8)).astype("uint8"))
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype("uint8")))
    return grey


def _flattened(image: Any, background: str) -> Any:
    from PIL import Image

    if image.mode == "La":  # alpha multiplied in: Pillow takes it out only on this way
        image = image.convert("LA")
    if image.mode != "RGBA":
        image = image.convert("RGBA")
    flat = Image.new("RGB", image.size, background)
    flat.paste(image, mask=image.getchannel("A"))
    return flat


def _ops() -> Any:
    from PIL import ImageOps

    return ImageOps


def _invalid(number: int, what: str) -> Refusal:
    return Refusal(Code.INPUT_INVALID, f"image {number} {what}")


def _too_large(number: int, what: str, settings: ImageSettings) -> Refusal:
    return Refusal(Code.INPUT_TOO_LARGE, f"image {number} has {what}; the profile allows {settings.pixels_max}")


def _pixels_named(message: str) -> str:
    """Pillow raises while it reads the header, before it tells the size other than in words."""
    found = re.search(r"\((\d+) pixels\)", message)
    return f"{found[1]} pixels" if found else "too many pixels"
