"""The diffusers adapter: images from a text, by pipelines whose code is in the diffusers library itself.

A request is computed by itself, up to `batch_max` of its images together, so that its images depend on nothing but the
request, the model and the profile. The starting noise of image i comes from a generator of its own on the CPU, seeded
with `seed + i`: the same on every device, and image i is the first image of a request with that seed. Without a seed a
random one is taken and told. Sides are multiples of what the pipeline needs; sides, steps and guidance that a request
does not say are the profile's, and its bounds hold for all. A negative prompt needs a guidance over 1, and a pipeline
that takes one. A number of steps that the scheduler cannot do is refused before anything is computed.

At each step it is asked whether anybody still waits, and whether the latents are finite: a request stops there, and is
refused, without the rest of its steps. Prompts over the tokenizer's length are cut and told to be, or refused. Images
are PNG files without any metadata. A safety checker runs where the pipeline has one; what it blanks is told.
"""

from __future__ import annotations

import contextlib
import io
import math
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct, UnsetType

from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.profiles import DiffusionSettings, RuntimeProfile
from schemas.tasks.image import Imagined, ImagineRequest
from schemas.tasks.requests import Request, Result
from worker.adapters.contract import Inspection, Turn
from worker.adapters.guard import Guarded
from worker.adapters.image.batches import NOBODY_WAITS
from worker.adapters.image.diffusion_files import T5_TOKENS, inspect_files
from worker.adapters.image.diffusion_parts import load_pipeline
from worker.adapters.image.scheduling import Scheduling
from worker.adapters.torch_runtime import TorchAdapter
from worker.model.frames import Refused

SIDE_MULTIPLE = 8  # of latents that the U-Net halves and doubles again
SEEDS = 2**32
HEALTH_SIDE, HEALTH_STEPS = 64, 2


class _Order(Struct, frozen=True):
    """A request with everything said."""

    prompt: str
    negative: str | None
    width: int
    height: int
    steps: int
    guidance: float
    seed: int
    tokens: int
    truncated: bool


class _Stopped(Exception):
    """Leaves the pipeline between two steps: it would else decode what nobody looks at."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class DiffusionAdapter(TorchAdapter):
    """See the module. `model` is the pipeline."""

    LIBRARIES: ClassVar[tuple[str, ...]] = ("torch", "transformers", "diffusers")

    def __init__(self) -> None:
        super().__init__()
        self._scheduling = Scheduling(None, fixed_times=True)

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection:
        return inspect_files(folder, files)

    def prepare(self, profile: RuntimeProfile) -> dict[str, str]:
        versions = super().prepare(profile)
        import diffusers

        diffusers.utils.logging.set_verbosity_error()
        diffusers.utils.logging.disable_progress_bar()
        return versions

    def load(self, folder: Path) -> None:
        pipeline = load_pipeline(folder, self.dtype)
        self._set_attention(pipeline)
        pipeline.to(self.device)
        self.model = pipeline
        self._scheduling = Scheduling(pipeline.scheduler, fixed_times=self._is_transformer)
        settings = self.settings
        if self.profile.max_length is not None:
            raise Refusal(Code.LOAD_FAILED, "max_length is the tokenizer's and can't be set for this pipeline")
        try:
            self._check_size(settings.width, settings.height)
            self._check_steps(settings.steps)
        except Refusal as refusal:
            raise Refusal(Code.LOAD_FAILED, f"what the profile says for all requests: {refusal.message}") from refusal

    def _set_attention(self, pipeline: Any) -> None:
        if isinstance(self.profile.attention, UnsetType):
            return
        from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

        if not hasattr(pipeline, "unet"):
            raise Refusal(Code.LOAD_FAILED, "`attention` can be chosen for pipelines with a U-Net only")
        kind = AttnProcessor if self.profile.attention == "eager" else AttnProcessor2_0
        pipeline.unet.set_attn_processor(kind())

    @property
    def settings(self) -> DiffusionSettings:
        said = self.profile.diffusion
        return DiffusionSettings() if isinstance(said, UnsetType) else said

    @property
    def _is_transformer(self) -> bool:
        """Flux, and not a U-Net."""
        return hasattr(self.model, "transformer")

    @property
    def _multiple(self) -> int:
        """Of both sides."""
        if self._is_transformer:  # which takes latents two by two
            return int(self.model.vae_scale_factor) * 2
        return math.lcm(SIDE_MULTIPLE, int(self.model.vae_scale_factor))

    def parameters(self) -> int:
        models = [part for part in self.model.components.values() if isinstance(part, self.torch.nn.Module)]
        return sum(parameter.numel() for model in models for parameter in model.parameters())

    def max_length(self) -> int:
        return T5_TOKENS if self._is_transformer else int(self._tokenizer.model_max_length)

    def health_request(self) -> Request:
        multiple, settings = self._multiple, self.settings
        side = max(HEALTH_SIDE // multiple, 1) * multiple
        if side * side > settings.pixels_max:
            side = multiple
        steps = min(HEALTH_STEPS, settings.steps_max)
        if self._scheduling.obstacle(steps):
            steps = settings.steps
        return ImagineRequest("a picture", width=side, height=side, steps=steps, seed=0)

    def unsound(self, result: Result) -> str:
        return "" if isinstance(result, Imagined) and len(result.images) == 1 else "the model gave no image"

    def answer(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        answers: dict[int, Result | Refused] = {}
        for index, request in enumerate(requests):
            with Guarded(index, answers):
                answers[index] = self._imagined(index, request, turn)
        return [answers[index] for index in range(len(requests))]

    def _imagined(self, index: int, request: Request, turn: Turn) -> Result | Refused:
        if not isinstance(request, ImagineRequest):
            raise Refusal(Code.INPUT_INVALID, "this deployment makes images")
        order = self._order(request)
        images: list[bytes] = []
        flagged: list[bool] = []
        size = self.profile.limits.batch_max
        try:
            for begin in range(0, request.count, size):
                numbers = range(begin, min(begin + size, request.count))
                made, flags = self._make(order, numbers, index, turn)
                images += made
                flagged += flags
        except _Stopped as stopped:
            return stopped.refused
        except self.torch.OutOfMemoryError as error:  # of this request's size; the next may be smaller
            self.torch.cuda.empty_cache()
            return Refused(Code.OUT_OF_MEMORY, str(error))
        finally:
            self._restore_decoder()
        return Imagined(
            images=images,
            width=order.width,
            height=order.height,
            steps=order.steps,
            seed=order.seed,
            truncated=order.truncated,
            tokens=order.tokens,
            flagged=flagged,
        )

    def _restore_decoder(self) -> None:
        """XL's decoder is made float32 while it decodes, and stays so where that fails."""
        if self.model.vae.dtype != self.dtype:
            self.model.vae.to(dtype=self.dtype)

    def _order(self, request: ImagineRequest) -> _Order:
        settings = self.settings
        width = settings.width if request.width is None else request.width
        height = settings.height if request.height is None else request.height
        steps = settings.steps if request.steps is None else request.steps
        guidance = settings.guidance if request.guidance is None else request.guidance
        self._check_size(width, height)
        self._check_steps(steps)
        if request.negative_prompt and self._is_transformer:
            raise Refusal(Code.INPUT_INVALID, "this pipeline takes no negative prompt")
        if request.negative_prompt and guidance <= 1:
            raise Refusal(Code.INPUT_INVALID, f"a negative prompt needs a guidance over 1, and it is {guidance:g}")
        counts = [self._tokens(text) for text in (request.prompt, request.negative_prompt)]
        limit = self.max_length()
        if not self.profile.truncate and max(counts) > limit:
            raise Refusal(Code.INPUT_TOO_LARGE, f"a prompt has {max(counts)} tokens and the limit is {limit}")
        seed = secrets.randbelow(SEEDS) if request.seed is None else request.seed
        negative = request.negative_prompt or None
        return _Order(request.prompt, negative, width, height, steps, guidance, seed, counts[0], max(counts) > limit)

    def _check_size(self, width: int, height: int) -> None:
        settings, multiple = self.settings, self._multiple
        if width % multiple or height % multiple:
            raise Refusal(Code.INPUT_INVALID, f"{width} by {height}: both sides must be multiples of {multiple}")
        if width * height > settings.pixels_max:
            raise Refusal(
                Code.INPUT_TOO_LARGE,
                f"{width} by {height} is {width * height} pixels; the profile allows {settings.pixels_max}",
            )

    def _check_steps(self, steps: int) -> None:
        most = self.settings.steps_max
        if steps > most:
            raise Refusal(Code.INPUT_TOO_LARGE, f"{steps} steps; the profile allows {most}")
        if why := self._scheduling.obstacle(steps):
            name = self._scheduling.name
            raise Refusal(Code.INPUT_INVALID, f"{steps} steps are not possible with this model's {name}: {why}")

    @property
    def _tokenizer(self) -> Any:
        """The one whose encoder reads the whole prompt: where there is a T5, the other gives a summary only."""
        return self.model.tokenizer_2 if self._is_transformer else self.model.tokenizer

    def _tokens(self, text: str) -> int:
        return len(self._tokenizer(text, truncation=False, padding=False, verbose=False)["input_ids"])

    def _make(self, order: _Order, numbers: range, index: int, turn: Turn) -> tuple[list[bytes], list[bool]]:
        """These images of one request; raises _Stopped."""
        torch, pipeline = self.torch, self.model
        seeds = [(order.seed + number) % SEEDS for number in numbers]

        def after_step(_: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            _check(torch.isfinite(tensors["latents"]), numbers)
            if turn.stopped(index):
                raise _Stopped(NOBODY_WAITS)
            return {}

        if turn.stopped(index):
            raise _Stopped(NOBODY_WAITS)
        pipeline.scheduler = self._scheduling.fresh()
        with torch.inference_mode(), self._watched(numbers):
            out = pipeline(
                prompt=order.prompt,
                width=order.width,
                height=order.height,
                num_inference_steps=order.steps,
                guidance_scale=order.guidance,
                num_images_per_prompt=len(numbers),
                generator=[torch.Generator("cpu").manual_seed(seed) for seed in seeds],
                output_type="np",
                callback_on_step_end=after_step,
                **({"negative_prompt": order.negative} if order.negative is not None else {}),
            )
        flags = getattr(out, "nsfw_content_detected", None) or []
        return [_png(pixels) for pixels in out.images], [bool(flag) for flag in flags]

    @contextlib.contextmanager
    def _watched(self, numbers: range) -> Iterator[None]:
        """What leaves the decoder must be finite: afterwards it is bent into the range of colours, whatever it was."""
        seen: list[Any] = []
        hook = self.model.vae.decoder.register_forward_hook(
            lambda module, inputs, output: seen.append(self.torch.isfinite(output).flatten(1).all(dim=1))
        )
        try:
            yield
        finally:
            hook.remove()
        if seen:
            _check(self.torch.cat(seen), numbers)


def _check(finite: Any, numbers: range) -> None:
    rows = finite.flatten(1).all(dim=1).tolist() if finite.dim() > 1 else finite.tolist()
    for number, sound in zip(numbers, rows, strict=True):
        if not sound:
            raise _Stopped(Refused(Code.OUTPUT_NOT_FINITE, f"the model gave NaN or infinity for image {number}"))


def _png(pixels: Any) -> bytes:
    """As the library itself rounds it."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray((pixels * 255).round().astype("uint8")).save(out, "PNG")
    return out.getvalue()
