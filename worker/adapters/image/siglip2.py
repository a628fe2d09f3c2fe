"""The transformers_siglip2 adapter: images and texts in one space, and how well labels fit images.

It runs SigLIP2 of both kinds, NaFlex (`siglip2`: an image keeps its shape and becomes up to a number of patches) and
fixed resolution (`siglip`), and the first SigLIP. Task `image_embedding` gives vectors of images and texts;
`zero_shot_image` gives the probability that the model gives each pair of image and label by itself (a sigmoid of the
scaled product, not a softmax over the labels).

Images are decoded by `pictures`; their pixels are prepared as the files say. Texts go through the files' tokenizer as
the library loads it, which for NaFlex models puts them in lower case, and are padded to `max_length` tokens (the
profile's, or as many as the model has positions: 64), as in training: the model reads the last place, padding or not.
With `text_padding: longest` nothing is padded: only texts of the same length are computed together, so that no text's
answer depends on its neighbours. Texts over the limit are cut and told to be, or refused.

Images, and texts, of several requests are computed together, up to `batch_max`. Vectors are float32, of length 1 where
the profile says `normalize`. A request is refused where one of its rows is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.profiles import ImageSettings
from schemas.tasks.image import Classified, ClassifyRequest, EmbedImagesRequest, ImagesEmbedded
from schemas.tasks.requests import Request, Result
from worker.adapters.contract import Inspection, Turn
from worker.adapters.guard import Guarded
from worker.adapters.image.batches import NOBODY_WAITS, ImageBatches, Item
from worker.adapters.image.pictures import health_picture, image_settings
from worker.adapters.image.processor_files import image_processor
from worker.adapters.image.siglip2_files import inspect_files
from worker.adapters.torch_runtime import TorchAdapter
from worker.adapters.weights import refuse_made_up
from worker.model.frames import Refused

HEALTH_TEXTS = ["a picture", "the quick brown fox"]


class _Texts(Struct, eq=False):
    """The texts of one request: how many tokens each has before it is cut, and their rows once computed."""

    texts: list[str]
    tokens: list[int]
    truncated: list[bool]
    rows: dict[int, Any]


class Siglip2Adapter(TorchAdapter):
    """See the module."""

    LIBRARIES: ClassVar[tuple[str, ...]] = ("torch", "transformers")

    def __init__(self) -> None:
        super().__init__()
        self._processor: Any = None
        self._tokenizer: Any = None

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection:
        return inspect_files(folder, files)

    def load(self, folder: Path) -> None:
        import transformers

        self._processor = image_processor(folder)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        kind = transformers.Siglip2Model if config.model_type == "siglip2" else transformers.SiglipModel
        model, loading = kind.from_pretrained(
            str(folder),
            local_files_only=True,
            use_safetensors=True,
            dtype=self.dtype,
            output_loading_info=True,
            **self.attention(),
        )
        refuse_made_up(loading)
        positions = int(model.config.text_config.max_position_embeddings)
        if self.profile.max_length is not None and self.profile.max_length > positions:
            raise Refusal(
                Code.LOAD_FAILED, f"max_length {self.profile.max_length} is over the model's {positions} positions"
            )
        model.to(self.device).eval()
        self.model = model

    @property
    def _settings(self) -> ImageSettings:
        return image_settings(self.profile)

    def max_length(self) -> int:
        return self.profile.max_length or int(self.model.config.text_config.max_position_embeddings)

    def dimensions(self) -> int:
        return int(self.model.config.vision_config.hidden_size)

    def health_request(self) -> Request:
        if self.profile.task == "zero_shot_image":
            return ClassifyRequest([health_picture()], HEALTH_TEXTS)
        return EmbedImagesRequest([health_picture()], HEALTH_TEXTS[:1])

    def unsound(self, result: Result) -> str:
        if isinstance(result, Classified):
            sound = len(result.scores) == 1 and len(result.scores[0]) == len(HEALTH_TEXTS)
            return "" if sound else "the model gave no score"
        if not isinstance(result, ImagesEmbedded) or (result.images, result.texts) != (1, 1):
            return "the model gave no vector"
        return "" if any(result.image_vectors) and any(result.text_vectors) else "the model gave a zero vector"

    def answer(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        wanted = ClassifyRequest if self.profile.task == "zero_shot_image" else EmbedImagesRequest
        refused: dict[int, Refused] = {}
        images: dict[int, list[bytes]] = {}
        texts: dict[int, _Texts] = {}
        for index, request in enumerate(requests):
            with Guarded(index, refused):
                if not isinstance(request, ClassifyRequest | EmbedImagesRequest) or not isinstance(request, wanted):
                    raise Refusal(Code.INPUT_INVALID, f"this deployment does `{self.profile.task}`")
                texts[index] = self._counted(request.labels if isinstance(request, ClassifyRequest) else request.texts)
                images[index] = request.images
        work = ImageBatches(images, self._settings, turn)
        work.refused.update(refused)
        rows = self._embed_images(work)
        self._embed_texts(texts, work, turn)
        return [
            work.refused[index] if index in work.refused else self._result(index, rows, texts[index], work)
            for index in range(len(requests))
        ]

    def _counted(self, texts: list[str]) -> _Texts:
        counts = []
        if texts:
            encoded = self._tokenizer(texts, truncation=False, padding=False, verbose=False)
            counts = [len(ids) for ids in encoded["input_ids"]]
        limit = self.max_length()
        if not self.profile.truncate:
            for number, count in enumerate(counts):
                if count > limit:
                    raise Refusal(Code.INPUT_TOO_LARGE, f"text {number} has {count} tokens and the limit is {limit}")
        return _Texts(texts, counts, [count > limit for count in counts], {})

    def _embed_images(self, work: ImageBatches) -> dict[Item, Any]:
        rows: dict[Item, Any] = {}
        for batch in work.batches(self.profile.limits.batch_max, self._pixels):
            inputs = {name: self.torch.cat([each[name] for _, each in batch]) for name in batch[0][1]}
            found = self._rows(self.model.get_image_features, inputs)
            for (item, _), row, finite in zip(batch, *found, strict=True):
                rows[item] = row
                if not finite:
                    work.refused.setdefault(item.index, _not_finite(f"image {item.number}"))
        return rows

    def _pixels(self, image: Any) -> Any:
        return dict(self._processor(image, return_tensors="pt"))

    def _embed_texts(self, texts: dict[int, _Texts], work: ImageBatches, turn: Turn) -> None:
        limit, longest = self.max_length(), self._settings.text_padding == "longest"
        waiting = [
            (max(min(count, limit), 1) if longest else limit, index, number)
            for index, each in texts.items()
            for number, count in enumerate(each.tokens)
        ]
        waiting.sort(key=lambda place: place[0])
        while waiting:
            length = waiting[0][0]
            batch = self._next_texts(waiting, work, turn)
            if not batch:
                continue
            inputs = self._tokenizer(
                [texts[index].texts[number] for index, number in batch],
                padding="max_length",
                truncation=True,
                max_length=length,
                return_tensors="pt",
            )
            found = self._rows(self.model.get_text_features, dict(inputs))
            for (index, number), row, finite in zip(batch, *found, strict=True):
                texts[index].rows[number] = row
                if not finite:
                    work.refused.setdefault(index, _not_finite(f"text {number}"))

    def _next_texts(self, waiting: list[tuple[int, int, int]], work: ImageBatches, turn: Turn) -> list[tuple[int, int]]:
        """Up to `batch_max` from the front that may be computed together, less those that are out."""
        size = self.profile.limits.batch_max
        taken = [place for place in waiting[:size] if place[0] == waiting[0][0]]
        del waiting[: len(taken)]
        for index in {index for _, index, _ in taken} - work.refused.keys():
            if turn.stopped(index):
                work.refused[index] = NOBODY_WAITS
        return [(index, number) for _, index, number in taken if index not in work.refused]

    def _rows(self, features: Any, inputs: dict[str, Any]) -> tuple[Any, list[bool]]:
        """float32 on the CPU, and whether each row is finite."""
        torch = self.torch
        moved = {
            name: tensor.to(device=self.device, dtype=self.dtype if tensor.is_floating_point() else None)
            for name, tensor in inputs.items()
        }
        with torch.inference_mode():
            found = features(**moved)
        found = getattr(found, "pooler_output", found)  # the tensor itself, in earlier releases
        rows = found.to("cpu", torch.float32)
        return rows, torch.isfinite(rows).all(dim=1).tolist()

    def _result(self, index: int, rows: dict[Item, Any], texts: _Texts, work: ImageBatches) -> Result | Refused:
        conversions = work.conversions_of(index)
        images = self._stacked([rows[Item(index, number)] for number in range(len(conversions))])
        words = self._stacked([texts.rows[number] for number in range(len(texts.texts))])
        if self.profile.task == "zero_shot_image":
            return self._classified(images, words, texts, conversions)
        return ImagesEmbedded(
            image_vectors=self._vectors(images),
            images=len(images),
            text_vectors=self._vectors(words),
            texts=len(words),
            dimensions=self.dimensions(),
            tokens=texts.tokens,
            truncated=texts.truncated,
            conversions=conversions,
        )

    def _stacked(self, rows: list[Any]) -> Any:
        return self.torch.stack(rows) if rows else self.torch.zeros((0, self.dimensions()))

    def _unit(self, rows: Any) -> Any:
        return self.torch.nn.functional.normalize(rows, dim=-1)

    def _vectors(self, rows: Any) -> bytes:
        kept = self._unit(rows) if self.profile.normalize else rows
        return bytes(kept.numpy().astype("<f4", copy=False).tobytes())

    def _classified(self, images: Any, words: Any, texts: _Texts, conversions: list[list[str]]) -> Result | Refused:
        torch, model = self.torch, self.model
        with torch.inference_mode():
            scale, bias = model.logit_scale.float().cpu().exp(), model.logit_bias.float().cpu()
            found = torch.sigmoid(self._unit(images) @ self._unit(words).T * scale + bias)
        if not torch.isfinite(found).all():
            return _not_finite("a pair of image and label")
        scores = found.tolist()
        return Classified(
            scores=scores,
            order=[sorted(range(len(row)), key=lambda label: -row[label]) for row in scores],
            truncated=texts.truncated,
            conversions=conversions,
            tokens=texts.tokens,
        )


def _not_finite(what: str) -> Refused:
    return Refused(Code.OUTPUT_NOT_FINITE, f"the model gave NaN or infinity for {what}")
