"""Tiny rerankers of real architectures with random weights: BERT and XLM-R as plain folders, ModernBERT as saved by
sentence-transformers. The weights are wide, so that scores are far apart."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from schemas.profiles import RuntimeProfile
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import Reranked, RerankRequest
from services.showcase.made_tokenizers import word_pieces
from services.showcase.model import Model

PROFILE = RuntimeProfile(adapter="cross_encoder", task="rerank")
LENGTH_MAX = 40
LONG = "the quick brown fox jumps over the lazy dog in berlin " * 12
REQUESTS: list[Request] = [
    RerankRequest("what does the fox jump over?", ["the lazy dog", "a river in berlin", "", "the lazy dog", LONG]),
    RerankRequest("who plays piano", ["a song", "schön 漢字"]),
    RerankRequest("", ["x"]),
]


def _tiny(kind: Any, **more: object) -> Any:
    return kind(
        vocab_size=128,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.4,
        pad_token_id=0,
        num_labels=1,
        **more,
    )


def _bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(_tiny(BertConfig, max_position_embeddings=LENGTH_MAX))


def _xlm_roberta() -> Any:
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    config = _tiny(XLMRobertaConfig, max_position_embeddings=LENGTH_MAX + 1, type_vocab_size=1)
    config.sbert_ce_default_activation_function = "torch.nn.modules.linear.Identity"
    return XLMRobertaForSequenceClassification(config)


def _modernbert() -> Any:
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    config = _tiny(
        ModernBertConfig, max_position_embeddings=LENGTH_MAX, local_attention=8, global_attn_every_n_layers=2
    )
    return ModernBertForSequenceClassification(config)


def _build(make: Any, folder: Path) -> None:
    import torch

    torch.manual_seed(7)
    model = make()
    model.eval()
    model.save_pretrained(folder)
    word_pieces(LENGTH_MAX).save_pretrained(folder)


def _build_saved(folder: Path) -> None:
    """As sentence-transformers saves one itself."""
    import tempfile

    import torch
    from sentence_transformers import CrossEncoder

    with tempfile.TemporaryDirectory() as plain:
        _build(_modernbert, Path(plain))
        model = CrossEncoder(plain, device="cpu", local_files_only=True, activation_fn=torch.nn.Identity())
    model.save_pretrained(str(folder), create_model_card=False)


@functools.lru_cache(maxsize=1)
def _library(folder: Path) -> Any:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(folder), device="cpu", local_files_only=True)


def reference(folder: Path, profile: RuntimeProfile, request: Request) -> Result:
    assert isinstance(request, RerankRequest)
    model = _library(folder)
    ranked = model.rank(request.query, request.documents)
    scores = {each["corpus_id"]: each["score"] for each in ranked}
    tokens = [len(model.tokenizer(request.query, document)["input_ids"]) for document in request.documents]
    return Reranked(
        scores=[scores[index] for index in range(len(request.documents))],
        order=[each["corpus_id"] for each in ranked],
        tokens=tokens,
        truncated=[count > LENGTH_MAX for count in tokens],
    )


def _model(name: str, build: Callable[[Path], None], *, truncate: bool = True) -> Model:
    return Model(
        name=name,
        profile=msgspec.structs.replace(PROFILE, truncate=truncate),
        build=build,
        requests=REQUESTS if truncate else REQUESTS[1:],
        reference=reference,
        empty=RerankRequest("what", []),
        bad=[] if truncate else [(RerankRequest("what", ["a song", LONG]), "INPUT_TOO_LARGE")],
    )


MODELS = [
    _model("cross_encoder_bert", functools.partial(_build, _bert)),
    _model("cross_encoder_xlm_roberta", functools.partial(_build, _xlm_roberta), truncate=False),
    _model("cross_encoder_modernbert", _build_saved),
]
