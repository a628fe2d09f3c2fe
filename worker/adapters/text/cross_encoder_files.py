"""Static inspection of a folder for the cross_encoder adapter: JSON files and safetensors headers only.

Compatible means: an encoder with a sequence classification head of exactly one label, whose head is in the weights
(a library makes up what is missing, at random), with a score function that this adapter knows. The folder is either
plain (`config.json` and weights) or one that sentence-transformers saved with a single Transformer module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from schemas.artifacts import FileEntry
from worker.adapters.contract import Inspection
from worker.adapters.folder import ModelFolder
from worker.adapters.text.lengths import known_length

# Encoders with a sequence classification head whose code is in the transformers library itself.
MODEL_TYPES = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "modernbert",
        "mpnet",
        "roberta",
        "xlm-roberta",
    }
)
ARCHITECTURE_ENDS = "ForSequenceClassification"
HEADS = frozenset({"classifier.weight", "classifier.out_proj.weight"})
LIBRARY_CONFIG = "config_sentence_transformers.json"
MODULE_CONFIG = "sentence_bert_config.json"

Activation = Literal["sigmoid", "identity"]
_ACTIVATIONS: dict[str, Activation] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.Identity": "identity",
}


class _Module(Struct):
    path: str
    type: str


def inspect_files(folder: Path, files: list[FileEntry]) -> Inspection:
    """Blocking; reads the JSON files and each weights file's header."""
    look = ModelFolder(folder, files)
    look.check_no_code()
    config = look.read_object("config.json", needed=True)
    look.check_model_type(config, MODEL_TYPES)
    if config:
        _check_head(look, config)
    _check_modules(look)
    tokenizer = look.read_object("tokenizer_config.json", needed=False)
    look.check_tokenizer()
    if "chat_template.jinja" in look.paths or "chat_template" in tokenizer:
        look.refuse("the tokenizer has a chat template; this adapter gives the model query and document as they are")
    activation_of(look, config)
    look.check_weights()
    if look.tensors and not look.tensors & HEADS:
        look.refuse(f"the weights hold no classification head; one of {', '.join(sorted(HEADS))} is needed")
    stated = (
        look.read_object(MODULE_CONFIG, needed=False).get("max_seq_length") if "modules.json" in look.paths else None
    )
    return look.outcome(config, max_length=known_length(config, tokenizer.get("model_max_length"), stated))


def labels_of(config: Mapping[str, Any]) -> int:
    """As the library counts them: two where nothing is said."""
    names = config.get("id2label")
    if isinstance(names, dict):
        return len(names)
    count = config.get("num_labels")
    return count if isinstance(count, int) else 2


def _check_head(look: ModelFolder, config: dict[str, Any]) -> None:
    architectures = config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else "none"
    if not name.endswith(ARCHITECTURE_ENDS):
        look.refuse(f"the architecture is {name}; one that ends with {ARCHITECTURE_ENDS} is needed")
    labels = labels_of(config)
    if labels != 1:
        look.refuse(f"the model has {labels} labels; a score for ranking is exactly one")


def _check_modules(look: ModelFolder) -> None:
    """Where sentence-transformers saved the folder: one Transformer at its root, for this very task."""
    if "modules.json" not in look.paths:
        return
    chain = look.read("modules.json", list[_Module], needed=True)
    if isinstance(chain, list) and (
        len(chain) != 1
        or chain[0].path
        or not chain[0].type.startswith("sentence_transformers.")
        or not chain[0].type.endswith(".Transformer")
    ):
        look.refuse("`modules.json` is not a single Transformer of sentence_transformers in the folder itself")
    kind = look.read_object(LIBRARY_CONFIG, needed=True).get("model_type")
    if kind != "CrossEncoder":
        look.refuse(f"`{LIBRARY_CONFIG}` is of a {kind or 'SentenceTransformer'}, not of a CrossEncoder")
    task = look.read_object(MODULE_CONFIG, needed=True).get("transformer_task")
    if task != "sequence-classification":
        look.refuse(f"`{MODULE_CONFIG}` has the task `{task}`; `sequence-classification` is needed")


def activation_of(look: ModelFolder, config: Mapping[str, Any]) -> Activation:
    """The score function that the files name, else a sigmoid. The library imports what is named; this does not.

    Looked for where the library does: its own configuration first, then `config.json` as its newer and older versions
    wrote it.
    """
    named = (
        look.read_object(LIBRARY_CONFIG, needed=False).get("activation_fn") if "modules.json" in look.paths else None
    )
    if named is None:
        section = config.get("sentence_transformers")
        if isinstance(section, dict) and "activation_fn" in section:
            named = section["activation_fn"]
        else:
            named = config.get("sbert_ce_default_activation_function")
    if named is None:
        return "sigmoid"
    found = _ACTIVATIONS.get(named) if isinstance(named, str) else None
    if found is None:
        look.refuse(f"the score function `{named}` is not one of {', '.join(sorted(_ACTIVATIONS))}")
    return found or "sigmoid"
