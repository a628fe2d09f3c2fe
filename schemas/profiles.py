"""RuntimeProfile: the immutable settings a model runs under, named by their digest.

The digest goes into all evidence, so two results are comparable only where it is equal. A field that
changes meaning changes the digest; there is no default outside this struct.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from schemas.canonical import digest_of
from schemas.tasks.golden import GOLDENS_MAX, GoldenProbe
from schemas.tasks.image import Side
from schemas.tokens import AT_THE_END, DurationMs

_NAME = rf"^[a-z][a-z0-9_]{{1,40}}${AT_THE_END}"

Adapter = Annotated[str, Meta(pattern=_NAME, description="Registered adapter name.")]
Task = Annotated[str, Meta(pattern=_NAME, description="Capability, such as `embedding`.")]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on one request and on each stage. Items and characters are per invocation."""

    items_max: Annotated[int, Meta(ge=1, le=4_096)] = 256
    characters_max: Annotated[int, Meta(ge=1, le=4_000_000)] = 1_000_000
    batch_max: Annotated[int, Meta(ge=1, le=1_024)] = 32
    queue_max: Annotated[int, Meta(ge=1, le=10_000)] = 256
    load_ms: DurationMs = 120_000
    health_ms: DurationMs = 15_000
    invoke_ms: DurationMs = 30_000
    drain_ms: DurationMs = 30_000
    unload_ms: DurationMs = 30_000


class ImageSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`pixels_max` bounds one image before it is decoded. `background` is what shows through transparency.

    `text_padding` is how labels are padded: models such as SigLIP2 were trained on texts padded to their full
    length and answer worse without. Resizing and normalisation are those of the model's own files. A text is read
    greedily, or with `num_beams` where that is said, whatever the files say.
    """

    pixels_max: Annotated[int, Meta(ge=64, le=1_000_000_000)] = 40_000_000
    background: Literal["white", "black"] = "white"
    text_padding: Literal["max_length", "longest"] = "max_length"
    new_tokens_max: Annotated[int, Meta(ge=1, le=100_000)] = 128
    num_beams: Annotated[int, Meta(ge=1, le=32)] | UnsetType = UNSET


class AudioSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`resample` and `mix_to_mono` allow what they say; without, such audio is refused.

    Audio longer than `chunk_seconds` is given to the model in pieces where `chunk` allows it, else refused.
    `timestamps` has the model say when it heard what, finer than by the piece.
    """

    resample: bool = True
    mix_to_mono: bool = True
    chunk: bool = True
    chunk_seconds: Annotated[int, Meta(ge=1, le=30)] = 30
    seconds_max: Annotated[int, Meta(ge=1, le=86_400)] = 3_600
    timestamps: bool = False
    new_tokens_max: Annotated[int, Meta(ge=1, le=10_000)] = 440


class GenerationSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Text generation: what a request that does not say takes, and the bound on new tokens of any request."""

    new_tokens_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    temperature: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0


class DiffusionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Image generation: what a request that does not say takes, and the bounds on any request."""

    width: Side = 512
    height: Side = 512
    steps: Annotated[int, Meta(ge=1, le=1_000)] = 25
    guidance: Annotated[float, Meta(ge=0.0, le=100.0)] = 7.5
    pixels_max: Annotated[int, Meta(ge=64, le=268_435_456)] = 1_048_576
    steps_max: Annotated[int, Meta(ge=1, le=1_000)] = 100


class RuntimeProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """What an adapter needs to give the same answer everywhere.

    `max_length` counts tokens, None takes the model's own. `pooling` None takes what the model's files
    say. `prompts` maps a prompt name to the text put before each input. Settings that are not said (UNSET) are not
    in the digest: an adapter that needs them takes the struct's own values, and a profile of before is the same one.
    `attention` unset leaves the choice to the library.
    """

    adapter: Adapter
    task: Task
    device: Literal["cpu", "cuda"] = "cpu"
    device_index: Annotated[int, Meta(ge=0, le=63)] = 0
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    threads: Annotated[int, Meta(ge=1, le=256)] = 2
    max_length: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    truncate: bool = True
    pooling: Literal["mean", "cls", "max"] | None = None
    normalize: bool = True
    prompts: dict[str, str] = {}
    require_offline_proof: bool = True
    limits: Limits = Limits()
    attention: Literal["eager", "sdpa"] | UnsetType = UNSET
    image: ImageSettings | UnsetType = UNSET
    audio: AudioSettings | UnsetType = UNSET
    generation: GenerationSettings | UnsetType = UNSET
    diffusion: DiffusionSettings | UnsetType = UNSET
    golden: Annotated[list[GoldenProbe], Meta(max_length=GOLDENS_MAX)] | UnsetType = UNSET


def profile_digest(profile: RuntimeProfile) -> str:
    """The RuntimeProfile id (SHA-256, hex)."""
    return digest_of(profile)
