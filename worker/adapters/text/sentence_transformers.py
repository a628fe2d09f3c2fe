"""The sentence_transformers adapter: text embeddings that equal the library's own.

The library computes as for its users (`SentenceTransformer(...).encode(...)`, see `encoding`), with everything that
changes a result taken from the profile:

* `dtype`, `device`, `threads`, `max_length`, `pooling` replace what the files say where they are given;
* `prompts` replace the model's own, and an invocation without a prompt name has no prompt: a default in
  the model's files would be a setting outside the profile;
* `normalize` is the library's `normalize_embeddings`: a model whose own chain normalises does so anyway.

Invocations of one batch are encoded together where their prompt is the same, texts of like length in one
device batch; those that nobody waits for any more are left out of the next one. Each row is checked: one
that isn't finite refuses its own invocation, not its neighbours'. Texts over the length limit are cut by
the tokenizer and said to be (`truncated`), or refused where the profile says not to truncate. The limit is
never over the positions the model has, whatever its files say.

torch and sentence_transformers are imported by `prepare`, never by importing this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import Embedded, EmbedRequest
from worker.adapters.contract import Inspection, Turn
from worker.adapters.text.encoding import Encoding
from worker.adapters.text.lengths import GONE, device_batches, usable_positions
from worker.adapters.text.sentence_transformers_files import inspect_files
from worker.adapters.torch_runtime import TorchAdapter
from worker.model.frames import Refused

HEALTH_TEXT = "The quick brown fox jumps over the lazy dog."


class SentenceTransformersAdapter(TorchAdapter):
    """See the module."""

    LIBRARIES: ClassVar[tuple[str, ...]] = ("torch", "transformers", "sentence_transformers")

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection:
        return inspect_files(folder, files)

    def load(self, folder: Path) -> None:
        from sentence_transformers import SentenceTransformer

        profile = self.profile
        model = SentenceTransformer(
            str(folder),
            device=self.device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"dtype": self.dtype, "use_safetensors": True, **self.attention()},
        )
        model.eval()
        model.prompts, model.default_prompt_name = dict(profile.prompts), None
        self._set_max_length(model)
        if profile.pooling is not None:
            self._set_pooling(model, profile.pooling)
        self.model = model
        self._encoding = Encoding(self.torch, self.device, normalize=profile.normalize)

    def _set_max_length(self, model: Any) -> None:
        usable = usable_positions(model[0].auto_model.config.to_dict())
        wanted = self.profile.max_length
        if usable is not None and wanted is not None and wanted > usable:
            raise Refusal(Code.LOAD_FAILED, f"max_length {wanted} is over the model's {usable} positions")
        length = wanted or model.max_seq_length
        if length is not None:
            model.max_seq_length = int(length) if usable is None else min(int(length), usable)

    def _set_pooling(self, model: Any, mode: str) -> None:
        from sentence_transformers.models import Pooling as pooling_type  # noqa: N813 - a class under a lower name

        for index, module in enumerate(model):
            if isinstance(module, pooling_type):
                width = model[0].auto_model.config.hidden_size
                include_prompt = getattr(module, "include_prompt", True)
                model[index] = pooling_type(width, pooling_mode=mode, include_prompt=include_prompt)
                return
        raise Refusal(Code.LOAD_FAILED, f"the profile asks for {mode} pooling and the model has no pooling module")

    def dimensions(self) -> int:
        # sentence-transformers 5 has only the longer name, later releases deprecate it.
        get = getattr(self.model, "get_embedding_dimension", None) or self.model.get_sentence_embedding_dimension
        return int(get() or 0)

    def max_length(self) -> int:
        return int(self.model.max_seq_length or 0)

    def health_request(self) -> Request:
        return EmbedRequest([HEALTH_TEXT])

    def unsound(self, result: Result) -> str:
        if not isinstance(result, Embedded) or result.rows != 1 or result.dimensions < 1:
            return "the model gave an empty vector"
        return "" if any(result.vectors) else "the model gave a zero vector"

    def answer(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        answers: dict[int, Result | Refused] = {}
        wanted: list[tuple[int, EmbedRequest]] = []
        for index, request in enumerate(requests):
            if not isinstance(request, EmbedRequest):
                answers[index] = Refused(Code.INPUT_INVALID, "this deployment embeds texts")
            elif request.prompt_name not in {None, *self.profile.prompts}:
                known = ", ".join(sorted(self.profile.prompts)) or "none"
                message = f"there is no prompt `{request.prompt_name}`; there are: {known}"
                answers[index] = Refused(Code.INPUT_INVALID, message)
            else:
                wanted.append((index, request))
        by_prompt: dict[str | None, list[tuple[int, EmbedRequest, list[int]]]] = {}
        for (index, request), counts in zip(wanted, self._count_tokens([each for _, each in wanted]), strict=True):
            refused = self._refuse_long(counts)
            if refused is not None:
                answers[index] = refused
            else:
                by_prompt.setdefault(request.prompt_name, []).append((index, request, counts))
        for name, group in by_prompt.items():
            texts = [(index, text) for index, request, _ in group for text in request.texts]
            lengths = [count for _, _, counts in group for count in counts]
            vectors, left_out = self._encode(texts, lengths, name, turn)
            finite = self.torch.isfinite(self.torch.from_numpy(vectors)).all(dim=1).tolist()
            begin = 0
            for index, _, counts in group:
                end = begin + len(counts)
                if left_out.intersection(range(begin, end)):
                    answers[index] = GONE
                else:
                    answers[index] = self._embedded(vectors[begin:end], finite[begin:end], counts)
                begin = end
        return [answers[index] for index in range(len(requests))]

    def _count_tokens(self, requests: Sequence[EmbedRequest]) -> list[list[int]]:
        """Tokens of each text of each request with its prompt and special tokens, before truncation."""
        prompts = [self.profile.prompts[each.prompt_name] if each.prompt_name else "" for each in requests]
        texts = [prompt + text for prompt, each in zip(prompts, requests, strict=True) for text in each.texts]
        if not texts:
            return [[] for _ in requests]
        encoded = self.model.tokenizer(
            texts,
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        counts = iter([len(ids) for ids in encoded["input_ids"]])
        return [list(islice(counts, len(each.texts))) for each in requests]

    def _refuse_long(self, counts: list[int]) -> Refused | None:
        limit = self.max_length()
        if self.profile.truncate or not limit:
            return None
        for index, count in enumerate(counts):
            if count > limit:
                return Refused(Code.INPUT_TOO_LARGE, f"text {index} has {count} tokens and the limit is {limit}")
        return None

    def _encode(
        self, texts: list[tuple[int, str]], lengths: list[int], prompt_name: str | None, turn: Turn
    ) -> tuple[Any, set[int]]:
        """float32, one row per text of its request; and the rows that were not computed, for nobody waits for them."""
        vectors = self.torch.zeros((len(texts), self.dimensions()), dtype=self.torch.float32).numpy()
        left_out: set[int] = set()
        batch_max, limit = self.profile.limits.batch_max, self.max_length()
        for batch in device_batches([min(length, limit or length) for length in lengths], batch_max):
            rows = [row for row in batch if not turn.stopped(texts[row][0])]
            left_out.update(set(batch) - set(rows))
            if not rows:
                continue
            vectors[rows] = self._encoding.vectors(self.model, [texts[row][1] for row in rows], prompt_name)
        return vectors, left_out

    def _embedded(self, vectors: Any, finite: list[bool], counts: list[int]) -> Embedded | Refused:
        if not all(finite):
            bad = [index for index, sound in enumerate(finite) if not sound]
            return Refused(Code.OUTPUT_NOT_FINITE, f"the model gave NaN or infinity for text {bad[0]} (of {len(bad)})")
        limit = self.max_length()
        return Embedded(
            vectors=vectors.astype("<f4", copy=False).tobytes(),
            rows=len(vectors),
            dimensions=int(vectors.shape[1]),
            tokens=counts,
            truncated=[bool(limit) and count > limit for count in counts],
        )
