"""The transformers_trocr adapter: the text of an image, by VisionEncoderDecoder models with a TrOCR decoder.

Each image is one line or block, as the model was trained for. It is decoded by `pictures`, resized and normalised as
the files say, and read greedily, or with the profile's `num_beams`. Sampling and beams that the files ask for would be
settings outside the profile and are taken out; what they say of suppressed tokens, repeats and length penalty stays.

A text ends with the model's end mark or at `new_tokens_max`, which `truncated` tells. Images of several requests are
read together, up to `batch_max`. A request is refused where the model gave NaN for one of its images, and at the next
token where nobody waits for it; the rest of the batch goes on.

Weights that the files lack would be made up by the library: the model is refused. The pooling head of the encoder is
not used here and may be missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import UnsetType

from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.profiles import ImageSettings
from schemas.tasks.image import OcrRequest, Recognised
from schemas.tasks.requests import Request, Result
from worker.adapters.contract import Inspection, Turn
from worker.adapters.guard import Guarded
from worker.adapters.image.batches import NOBODY_WAITS, ImageBatches, Item
from worker.adapters.image.pictures import health_picture, image_settings
from worker.adapters.image.processor_files import image_processor
from worker.adapters.image.trocr_files import inspect_files
from worker.adapters.torch_runtime import TorchAdapter
from worker.adapters.weights import refuse_made_up
from worker.model.frames import Refused

UNUSED = ("encoder.pooler.",)


class TrocrAdapter(TorchAdapter):
    """See the module."""

    LIBRARIES: ClassVar[tuple[str, ...]] = ("torch", "transformers")

    def __init__(self) -> None:
        super().__init__()
        self._processor: Any = None
        self._tokenizer: Any = None

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection:
        return inspect_files(folder, files)

    def load(self, folder: Path) -> None:
        from transformers import AutoTokenizer, VisionEncoderDecoderModel

        self._processor = image_processor(folder)
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        model, loading = VisionEncoderDecoderModel.from_pretrained(
            str(folder),
            local_files_only=True,
            use_safetensors=True,
            dtype=self.dtype,
            output_loading_info=True,
            **self.attention(),
        )
        refuse_made_up(loading, UNUSED)
        model.encoder.pooler = None
        model.to(self.device).eval()
        self._set_positions(model.decoder)
        rules = model.generation_config
        rules.do_sample, rules.num_return_sequences, rules.max_length = False, 1, None
        rules.temperature = rules.top_p = rules.top_k = None
        self.model = model

    def _set_positions(self, decoder: Any) -> None:
        """A table of positions has an end; the library fails on the first token past it."""
        bound, positions = self._settings.new_tokens_max, int(decoder.config.max_position_embeddings)
        if bound > positions:
            raise Refusal(
                Code.LOAD_FAILED, f"new_tokens_max {bound} is over the {positions} positions of the model's decoder"
            )
        table = decoder.model.decoder.embed_positions
        if getattr(table, "weights", None) is not None:
            # Computed, not learned: the library leaves it empty when it loads a model, or on the CPU.
            table.weights = table.get_embedding(table.weights.shape[0], table.embedding_dim, table.padding_idx).to(
                self.device
            )

    @property
    def _settings(self) -> ImageSettings:
        return image_settings(self.profile)

    @property
    def _beams(self) -> int:
        said = self._settings.num_beams
        return 1 if isinstance(said, UnsetType) else int(said)

    def health_request(self) -> Request:
        return OcrRequest([health_picture()])

    def unsound(self, result: Result) -> str:
        """Whatever it reads there: models differ in what they make of a picture without writing."""
        sound = isinstance(result, Recognised) and len(result.texts) == 1 and result.tokens[0] >= 1
        return "" if sound else "the model read nothing at all"

    def answer(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        images = {index: request.images for index, request in enumerate(requests) if isinstance(request, OcrRequest)}
        work = ImageBatches(images, self._settings, turn)
        texts: dict[Item, tuple[str, int, bool]] = {}
        for batch in work.batches(self.profile.limits.batch_max, self._pixels):
            texts.update(self._read(batch, work, turn))
        answers: list[Result | Refused] = []
        for index in range(len(requests)):
            if index not in images:
                answers.append(Refused(Code.INPUT_INVALID, "this deployment reads the text of images"))
            elif index in work.refused:
                answers.append(work.refused[index])
            else:
                found = [texts[Item(index, number)] for number in range(len(images[index]))]
                answers.append(
                    Recognised(
                        texts=[text for text, _, _ in found],
                        tokens=[count for _, count, _ in found],
                        truncated=[cut for _, _, cut in found],
                        conversions=work.conversions_of(index),
                    )
                )
        return answers

    def _pixels(self, image: Any) -> Any:
        return self._processor(image, return_tensors="pt").pixel_values

    def _read(self, batch: list[tuple[Item, Any]], work: ImageBatches, turn: Turn) -> dict[Item, tuple[str, int, bool]]:
        """Text, tokens and whether it was cut, of those items whose requests are still wanted and sound."""
        torch, items = self.torch, [item for item, _ in batch]
        pixels = torch.cat([tensor for _, tensor in batch]).to(self.device, self.dtype)
        ends = self.model.generation_config.eos_token_id
        last = ends if isinstance(ends, list) else [ends]
        watch = _Watch(torch, items, work, turn, last)
        with torch.inference_mode(), watch.over(self.model.get_output_embeddings()):
            written = self.model.generate(
                pixels,
                max_new_tokens=self._settings.new_tokens_max,
                num_beams=self._beams,
                stopping_criteria=watch.criteria(),
            ).cpu()
        found: dict[Item, tuple[str, int, bool]] = {}
        for item, row in zip(items, written[:, 1:].tolist(), strict=True):  # the first token is where it starts
            count = next((place + 1 for place, token in enumerate(row) if token in last), None)
            with Guarded(item.index, work.refused):
                text = self._tokenizer.decode(row, skip_special_tokens=True)
                found[item] = (text, len(row) if count is None else count, count is None)
        return {item: each for item, each in found.items() if item.index not in work.refused}


class _Watch:
    """Looks at each token of a batch: requests nobody waits for, and rows for which the model gave no numbers.

    With beams there are several rows for each item, next to each other.
    """

    def __init__(self, torch: Any, items: list[Item], work: ImageBatches, turn: Turn, last: list[Any]) -> None:
        self._torch = torch
        self._items = items
        self._work = work
        self._turn = turn
        self._last = torch.tensor([token for token in last if token is not None])
        self._ended = [False] * len(items)

    @contextlib.contextmanager
    def over(self, projection: Any) -> Iterator[None]:
        """While the model's last layer gives its numbers, before any rule of generation changes them."""
        hook = projection.register_forward_hook(lambda module, inputs, logits: self._check(logits))
        try:
            yield
        finally:
            hook.remove()

    def _check(self, logits: Any) -> None:
        """Rows that have ended are not looked at: what is computed for them is thrown away."""
        unsound = ~self._torch.isfinite(logits).flatten(1).all(dim=1)
        for item, rows, ended in zip(
            self._items, unsound.view(len(self._items), -1).tolist(), self._ended, strict=True
        ):
            if any(rows) and not ended:
                self._work.refused.setdefault(
                    item.index,
                    Refused(Code.OUTPUT_NOT_FINITE, f"the model gave NaN or infinity for image {item.number}"),
                )

    def criteria(self) -> Any:
        from transformers import StoppingCriteriaList

        return StoppingCriteriaList([self._stops])

    def _stops(self, tokens: Any, scores: Any, **more: Any) -> Any:
        """Which rows end here, besides those with an end mark."""
        refused = self._work.refused
        for index in {item.index for item in self._items} - refused.keys():
            if self._turn.stopped(index):
                refused[index] = NOBODY_WAITS
        rows = len(tokens) // len(self._items)
        if rows == 1:
            self._ended = self._torch.isin(tokens[:, 1:], self._last.to(tokens.device)).any(dim=1).tolist()
        out = [item.index in refused for item in self._items for _ in range(rows)]
        return self._torch.tensor(out, dtype=self._torch.bool, device=tokens.device)
