"""The cross_encoder adapter: scores of documents for a query that equal the library's own.

The library is called as its users call it (`CrossEncoder(...).predict(pairs)`), with everything that changes a score
taken from the profile or from the inspected files:

* `dtype`, `device`, `threads`, `max_length` replace what the files say where they are given;
* the score function is the one the files name, a sigmoid or none; without a name it is a sigmoid;
* a prompt in the model's files is not put before anything: it would be a setting outside the profile.

The pairs of one batch are computed together, those of like length in one device batch. Each score is checked: one that
isn't finite refuses its own invocation. A pair over the length limit is cut by the tokenizer, the longer side first,
and said to be (`truncated`), or refused where the profile says not to truncate. Documents with equal scores keep their
order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import Reranked, RerankRequest
from worker.adapters.contract import Inspection, Turn
from worker.adapters.folder import ModelFolder
from worker.adapters.guard import Guarded
from worker.adapters.text.cross_encoder_files import activation_of, inspect_files
from worker.adapters.text.lengths import GONE, device_batches, usable_positions
from worker.adapters.torch_runtime import TorchAdapter
from worker.model.frames import Refused

HEALTH_QUERY = "What does the fox jump over?"
HEALTH_DOCUMENTS = ("The quick brown fox jumps over the lazy dog.", "It rains.")


class CrossEncoderAdapter(TorchAdapter):
    """See the module."""

    LIBRARIES: ClassVar[tuple[str, ...]] = ("torch", "transformers", "sentence_transformers")

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection:
        return inspect_files(folder, files)

    def load(self, folder: Path) -> None:
        from sentence_transformers import CrossEncoder

        profile = self.profile
        if profile.prompts or profile.pooling is not None:
            raise Refusal(Code.LOAD_FAILED, "the profile has prompts or pooling; ranking knows neither")
        model = CrossEncoder(
            str(folder),
            device=self.device,
            local_files_only=True,
            trust_remote_code=False,
            activation_fn=self._activation(folder),
            model_kwargs={"dtype": self.dtype, "use_safetensors": True, **self.attention()},
        )
        model.eval()
        model.prompts, model.default_prompt_name = {}, None
        if model.num_labels != 1:
            raise Refusal(Code.LOAD_FAILED, f"the model has {model.num_labels} labels; a score for ranking is one")
        model.max_seq_length = self._length(model)
        self.model = model

    def _activation(self, folder: Path) -> Any:
        """From the files and never by the name in them: the library would import that name."""
        names = ("config.json", "config_sentence_transformers.json", "modules.json")
        look = ModelFolder(folder, [FileEntry(name, 0, "") for name in names if (folder / name).is_file()])
        activation = activation_of(look, look.read_object("config.json", needed=True))
        if look.reasons:
            raise Refusal(Code.LOAD_FAILED, look.reasons[0].message)
        return self.torch.nn.Sigmoid() if activation == "sigmoid" else self.torch.nn.Identity()

    def _length(self, model: Any) -> int:
        usable = usable_positions(model.config.to_dict())
        wanted = self.profile.max_length
        if usable is not None and wanted is not None and wanted > usable:
            raise Refusal(Code.LOAD_FAILED, f"max_length {wanted} is over the model's {usable} positions")
        length = int(wanted or model.max_seq_length)
        return length if usable is None else min(length, usable)

    def max_length(self) -> int:
        return int(self.model.max_seq_length)

    def health_request(self) -> Request:
        return RerankRequest(HEALTH_QUERY, list(HEALTH_DOCUMENTS))

    def unsound(self, result: Result) -> str:
        if not isinstance(result, Reranked) or len(result.scores) != len(HEALTH_DOCUMENTS):
            return "the model gave another number of scores than documents"
        return ""

    def answer(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        answers: dict[int, Result | Refused] = {}
        counts: dict[int, list[int]] = {}
        pairs: list[tuple[int, str, str]] = []
        for index, request in enumerate(requests):
            with Guarded(index, answers):
                if not isinstance(request, RerankRequest):
                    raise Refusal(Code.INPUT_INVALID, "this deployment ranks documents for a query")
                counted = self._count_tokens(request)
                self._refuse_long(counted)
                counts[index] = counted
                pairs += [(index, request.query, document) for document in request.documents]
        scores = self._score(pairs, [count for counted in counts.values() for count in counted], turn)
        begin = 0
        for index, counted in counts.items():
            answers[index] = self._ranked(scores[begin : begin + len(counted)], counted)
            begin += len(counted)
        return [answers[index] for index in range(len(requests))]

    def _count_tokens(self, request: RerankRequest) -> list[int]:
        """Tokens of the query with each document and special tokens, before truncation."""
        if not request.documents:
            return []
        encoded = self.model.tokenizer(
            [request.query] * len(request.documents),
            request.documents,
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return [len(ids) for ids in encoded["input_ids"]]

    def _refuse_long(self, counts: list[int]) -> None:
        limit = self.max_length()
        if self.profile.truncate:
            return
        for index, count in enumerate(counts):
            if count > limit:
                message = f"the query and document {index} have {count} tokens and the limit is {limit}"
                raise Refusal(Code.INPUT_TOO_LARGE, message)

    def _score(self, pairs: list[tuple[int, str, str]], lengths: list[int], turn: Turn) -> list[float | None]:
        """One score for each pair; None where nobody waits for it any more."""
        scores: list[float | None] = [None] * len(pairs)
        limit = self.max_length()
        batch_max = self.profile.limits.batch_max
        for batch in device_batches([min(length, limit) for length in lengths], batch_max):
            wanted = [at for at in batch if not turn.stopped(pairs[at][0])]
            if not wanted:
                continue
            found = self.model.predict(
                [(pairs[at][1], pairs[at][2]) for at in wanted],
                batch_size=batch_max,
                show_progress_bar=False,
                convert_to_tensor=True,
            )
            for at, score in zip(wanted, found.float().cpu().tolist(), strict=True):
                scores[at] = score
        return scores

    def _ranked(self, scores: list[float | None], counts: list[int]) -> Reranked | Refused:
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return GONE
        bad = [index for index, score in enumerate(known) if not math.isfinite(score)]
        if bad:
            message = f"the model gave NaN or infinity for document {bad[0]} (of {len(bad)})"
            return Refused(Code.OUTPUT_NOT_FINITE, message)
        limit = self.max_length()
        return Reranked(
            scores=known,
            order=sorted(range(len(known)), key=lambda index: -known[index]),
            tokens=counts,
            truncated=[count > limit for count in counts],
        )
