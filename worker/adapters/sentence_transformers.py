"""The sentence_transformers adapter: text embeddings that equal the library's own.

The library is called as its users call it (`SentenceTransformer(...).encode(...)`), with everything that
changes a result taken from the profile:

* `dtype`, `device`, `threads`, `max_length`, `pooling` replace what the files say where they are given;
* `prompts` replace the model's own, and an invocation without a prompt name has no prompt: a default in
  the model's files would be a setting outside the profile;
* `normalize` is the library's `normalize_embeddings`: a model whose own chain normalises does so anyway.

Invocations of one batch are encoded together where their prompt is the same. Each row is checked: one
that isn't finite refuses its own invocation, not its neighbours'. Texts over the length limit are cut by
the tokenizer and said to be (`truncated`), or refused where the profile says not to truncate.

torch and sentence_transformers are imported by `prepare`, never by importing this file.
"""

from __future__ import annotations

import gc
import hashlib
import time
from pathlib import Path
from typing import Any

from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.evidence import Health
from schemas.profiles import RuntimeProfile
from worker.adapters.contract import Inspection
from worker.adapters.sentence_transformers_files import inspect_files
from worker.model.frames import Embed, Facts, Refused, Rows

HEALTH_TEXT = "The quick brown fox jumps over the lazy dog."


class SentenceTransformersAdapter:
    """See the module. Libraries are `Any`: their types are not checked here."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._library: Any = None
        self._model: Any = None
        self._profile: RuntimeProfile | None = None
        self._stopped = False

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection:
        return inspect_files(folder, files)

    def prepare(self, profile: RuntimeProfile) -> dict[str, str]:
        import sentence_transformers
        import torch
        import transformers

        self._torch, self._library, self._profile = torch, sentence_transformers, profile
        torch.set_num_threads(profile.threads)
        transformers.logging.set_verbosity_error()
        if profile.device == "cuda" and not torch.cuda.is_available():
            raise Refusal(Code.LOAD_FAILED, "the profile runs on cuda and torch sees no usable CUDA device")
        return {
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "sentence-transformers": sentence_transformers.__version__,
        }

    @property
    def profile(self) -> RuntimeProfile:
        if self._profile is None:
            raise RuntimeError("prepare comes first")
        return self._profile

    @property
    def device(self) -> str:
        return f"cuda:{self.profile.device_index}" if self.profile.device == "cuda" else "cpu"

    def start(self, folder: Path) -> Facts:
        profile = self.profile
        model = self._library.SentenceTransformer(
            str(folder),
            device=self.device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"dtype": getattr(self._torch, profile.dtype), "use_safetensors": True},
        )
        model.eval()
        model.prompts, model.default_prompt_name = dict(profile.prompts), None
        if profile.max_length is not None:
            self._set_max_length(model, profile.max_length)
        if profile.pooling is not None:
            self._set_pooling(model, profile.pooling)
        self._model = model
        return self.collect_runtime_facts()

    def _set_max_length(self, model: Any, max_length: int) -> None:
        positions = getattr(model[0].auto_model.config, "max_position_embeddings", None)
        if isinstance(positions, int) and positions > 0 and max_length > positions:
            raise Refusal(
                Code.LOAD_FAILED, f"max_length {max_length} is over the model's {positions} position embeddings"
            )
        model.max_seq_length = max_length

    def _set_pooling(self, model: Any, mode: str) -> None:
        pooling_type = self._library.models.Pooling
        for index, module in enumerate(model):
            if isinstance(module, pooling_type):
                width = model[0].auto_model.config.hidden_size
                include_prompt = getattr(module, "include_prompt", True)
                model[index] = pooling_type(width, pooling_mode=mode, include_prompt=include_prompt)
                return
        raise Refusal(Code.LOAD_FAILED, f"the profile asks for {mode} pooling and the model has no pooling module")

    def collect_runtime_facts(self) -> Facts:
        model = self._model
        return Facts(
            dimensions=int(_dimensions(model)),
            max_length=int(model.max_seq_length or 0),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            allocator_bytes=self._allocator_bytes(),
        )

    def _allocator_bytes(self) -> int | None:
        if self.profile.device != "cuda":
            return None
        return int(self._torch.cuda.memory_allocated(self.profile.device_index))

    def probe(self) -> str:
        """Empty when the device computes, else what is wrong."""
        torch = self._torch
        ones = torch.ones(8, dtype=getattr(torch, self.profile.dtype), device=self.device)
        total = float((ones + ones).sum())
        return "" if total == 16.0 else f"a sum on {self.device} gave {total} where 16 is right"

    def health(self) -> Health:
        begun = time.perf_counter()
        wrong = self.probe()
        if wrong:
            return Health(True, False, False, False, _elapsed_ms(begun), detail=wrong)
        answer = self.embed([Embed(texts=[HEALTH_TEXT], prompt_name=None)])[0]
        latency_ms = _elapsed_ms(begun)
        if isinstance(answer, Refused):
            return Health(True, True, True, False, latency_ms, detail=f"{answer.code}: {answer.message}")
        if answer.rows != 1 or answer.dimensions < 1:
            return Health(True, True, True, False, latency_ms, detail="the model gave an empty vector")
        if not any(answer.vectors):
            return Health(True, True, True, False, latency_ms, detail="the model gave a zero vector")
        digest = hashlib.sha256(answer.vectors).hexdigest()
        return Health(True, True, True, True, latency_ms, output_digest=digest, output_dimensions=answer.dimensions)

    def embed(self, invocations: list[Embed]) -> list[Rows | Refused]:
        """Answers in the order asked. Raises only for what concerns the whole batch (out of memory, defects)."""
        if self._stopped:
            return [Refused(Code.DRAINING, "the model takes no more invocations")] * len(invocations)
        answers: list[Rows | Refused | None] = [None] * len(invocations)
        by_prompt: dict[str | None, list[int]] = {}
        counts: dict[int, list[int]] = {}
        for index, invocation in enumerate(invocations):
            name = invocation.prompt_name
            if name is not None and name not in self.profile.prompts:
                known = ", ".join(sorted(self.profile.prompts)) or "none"
                answers[index] = Refused(Code.INPUT_INVALID, f"there is no prompt `{name}`; there are: {known}")
                continue
            counts[index] = self._count_tokens(invocation)
            answers[index] = self._refuse_long(counts[index])
            if answers[index] is None:
                by_prompt.setdefault(name, []).append(index)
        for name, indexes in by_prompt.items():
            begun = time.perf_counter()
            texts = [text for index in indexes for text in invocations[index].texts]
            vectors = self._encode(texts, name)
            compute_ms = _elapsed_ms(begun)
            row = 0
            for index in indexes:
                taken = vectors[row : row + len(invocations[index].texts)]
                row += len(taken)
                answers[index] = self._answer(taken, counts[index], compute_ms)
        return [answer for answer in answers if answer is not None]

    def _count_tokens(self, invocation: Embed) -> list[int]:
        """Tokens of each text with its prompt and special tokens, before truncation."""
        if not invocation.texts:
            return []
        prompt = self.profile.prompts[invocation.prompt_name] if invocation.prompt_name else ""
        encoded = self._model.tokenizer(
            [prompt + text for text in invocation.texts],
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return [len(ids) for ids in encoded["input_ids"]]

    def _refuse_long(self, counts: list[int]) -> Refused | None:
        limit = int(self._model.max_seq_length or 0)
        if self.profile.truncate or not limit:
            return None
        for index, count in enumerate(counts):
            if count > limit:
                return Refused(Code.INPUT_TOO_LARGE, f"text {index} has {count} tokens and the limit is {limit}")
        return None

    def _encode(self, texts: list[str], prompt_name: str | None) -> Any:
        """float32, one row per text; an empty list gives no rows."""
        if not texts:
            return self._torch.zeros((0, _dimensions(self._model)), dtype=self._torch.float32).numpy()
        vectors = self._model.encode(
            texts,
            prompt_name=prompt_name,
            batch_size=self.profile.limits.batch_max,
            normalize_embeddings=self.profile.normalize,
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        return vectors.to(device="cpu", dtype=self._torch.float32).numpy()

    def _answer(self, vectors: Any, counts: list[int], compute_ms: float) -> Rows | Refused:
        finite = self._torch.isfinite(self._torch.from_numpy(vectors)).all(dim=1).tolist()
        if not all(finite):
            bad = [index for index, sound in enumerate(finite) if not sound]
            return Refused(Code.OUTPUT_NOT_FINITE, f"the model gave NaN or infinity for text {bad[0]} (of {len(bad)})")
        limit = int(self._model.max_seq_length or 0)
        return Rows(
            vectors=vectors.astype("<f4", copy=False).tobytes(),
            rows=len(vectors),
            dimensions=int(vectors.shape[1]),
            tokens=counts,
            truncated=[bool(limit) and count > limit for count in counts],
            compute_ms=compute_ms,
        )

    def stop(self) -> None:
        self._stopped = True

    def unload(self) -> int | None:
        self.stop()
        self._model = None
        gc.collect()
        if self._torch is not None and self.profile.device == "cuda":
            self._torch.cuda.empty_cache()
        return self._allocator_bytes()


def _dimensions(model: Any) -> int:
    # sentence-transformers 5 has only the longer name, later releases deprecate it.
    get = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    return get() or 0


def _elapsed_ms(begun: float) -> float:
    return (time.perf_counter() - begun) * 1_000.0
