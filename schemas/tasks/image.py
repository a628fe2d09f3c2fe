"""Tasks on images: `ocr`, `image_embedding`, `zero_shot_image` and `image_generation`.

An image is the bytes of one encoded file (PNG, JPEG, WebP, BMP, TIFF or GIF with one frame). Its size in pixels is
checked before it is decoded. The model sees RGB; whatever was done to get there is in `conversions[i]`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from schemas.tasks.invocation import Conversions, Invocation, Seed

Side = Annotated[int, Meta(ge=8, le=16_384, description="Pixels.")]


class OcrRequest(Invocation, frozen=True, tag="ocr"):
    """Task `ocr`: the text of each image; each is one line or block as the model was trained for."""

    images: list[bytes]


class Recognised(Struct, frozen=True, tag="recognised", forbid_unknown_fields=True):
    """`tokens[i]` counts what the model wrote for text i, its end mark included.

    `truncated[i]` says that text i reached the bound on new tokens and may go on.
    """

    texts: list[str]
    tokens: list[int]
    truncated: list[bool]
    conversions: list[Conversions]


class EmbedImagesRequest(Invocation, frozen=True, tag="embed_images"):
    """Task `image_embedding`: images and texts in one space."""

    images: list[bytes] = []  # noqa: RUF012 - msgspec copies it for each struct
    texts: list[str] = []  # noqa: RUF012


class ImagesEmbedded(Struct, frozen=True, tag="images_embedded", forbid_unknown_fields=True):
    """Raw float32 rows of the images and of the texts. `tokens` and `truncated` are the texts'."""

    image_vectors: bytes
    images: int
    text_vectors: bytes
    texts: int
    dimensions: int
    tokens: list[int]
    truncated: list[bool]
    conversions: list[Conversions]


class ClassifyRequest(Invocation, frozen=True, tag="classify"):
    """Task `zero_shot_image`: how well each label fits each image."""

    images: list[bytes]
    labels: Annotated[list[str], Meta(min_length=1)]


class Classified(Struct, frozen=True, tag="classified", forbid_unknown_fields=True):
    """`scores[i][j]` is of image i and label j: the probability the model gives the pair by itself.

    `order[i]` lists the labels' numbers for image i, best first; equal scores keep the labels' order. `truncated` and
    `tokens` are the labels', counted before they were cut.
    """

    scores: list[list[float]]
    order: list[list[int]]
    truncated: list[bool]
    conversions: list[Conversions]
    tokens: list[int] = []


class ImagineRequest(Invocation, frozen=True, tag="imagine"):
    """Task `image_generation`. What is None takes the profile's value; sides are multiples of what the model says."""

    prompt: str
    negative_prompt: str = ""
    width: Side | None = None
    height: Side | None = None
    steps: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    guidance: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    seed: Seed | None = None
    count: Annotated[int, Meta(ge=1, le=16)] = 1


class Imagined(Struct, frozen=True, tag="imagined", forbid_unknown_fields=True):
    """PNG files. `seed` is the one used, so that the same request with it gives the same images.

    Image i starts from the random numbers of `seed + i` (modulo 2**32): it is the first image of a request with that
    seed. `tokens` counts the prompt's before it was cut; `truncated` says that it or the negative prompt was.
    `flagged[i]` says that the model's own safety checker blanked image i; the list is empty where there is none.
    """

    images: list[bytes]
    width: int
    height: int
    steps: int
    seed: int
    truncated: bool
    tokens: int = 0
    flagged: list[bool] = []
