"""Static inspection of a folder for the sentence_transformers adapter: JSON files and safetensors headers only.

Compatible means: the module chain is one this adapter runs, the model type is one the installed
transformers library has code for, the weights are whole safetensors files, and nothing in the folder asks
for code or pickles of its own. Each obstacle is one reason with RUNTIME_INCOMPATIBLE; all are collected.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from schemas.artifacts import FileEntry
from worker.adapters.contract import Inspection
from worker.adapters.folder import ModelFolder
from worker.adapters.text.lengths import known_length

# Text encoders whose code is in the transformers library itself.
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
MODULES = frozenset({"Transformer", "Pooling", "Dense", "Normalize"})
MODULES_MAX = 16


class _Module(Struct):
    path: str
    type: str


def inspect_files(folder: Path, files: list[FileEntry]) -> Inspection:
    """Blocking; reads the JSON files and each weights file's header."""
    look = ModelFolder(folder, files)
    look.check_no_code()
    chain = _modules(look)
    prefix = _prefix(chain[0].path) if chain else ""
    config = look.read_object(f"{prefix}config.json", needed=True)
    look.check_model_type(config, MODEL_TYPES, path=f"{prefix}config.json")
    look.check_tokenizer(prefix)
    look.check_weights(prefix)
    dimensions = _dimensions(look, chain, config)
    return look.outcome(config, dimensions=dimensions, max_length=_max_length(look, prefix, config))


def _modules(look: ModelFolder) -> list[_Module]:
    """The module chain, each of a type this adapter runs, with a path inside the folder."""
    chain = look.read("modules.json", list[_Module], needed=True)
    if not isinstance(chain, list):
        return []
    if not 1 <= len(chain) <= MODULES_MAX:
        look.refuse(f"`modules.json` names {len(chain)} modules; 1 to {MODULES_MAX} are expected")
        return []
    sound = True
    for module in chain:
        name = module.type.rpartition(".")[2]
        if not module.type.startswith("sentence_transformers.") or name not in MODULES:
            look.refuse(f"module type `{module.type}` is not one of {', '.join(sorted(MODULES))}")
            sound = False
        if module.path.startswith("/") or ".." in PurePosixPath(module.path).parts:
            look.refuse(f"module path `{module.path}` leaves the folder")
            sound = False
    if chain[0].type.rpartition(".")[2] != "Transformer":
        look.refuse(f"the first module is `{chain[0].type}`, not a Transformer")
        sound = False
    return chain if sound else []


def _prefix(path: str) -> str:
    return f"{path.rstrip('/')}/" if path else ""


def _dimensions(look: ModelFolder, chain: list[_Module], config: dict[str, Any]) -> int | None:
    """Follow the chain: hidden size, times the pooling modes, or what a Dense module makes of it."""
    hidden = config.get("hidden_size", config.get("dim"))
    dimensions = hidden if isinstance(hidden, int) else None
    for module in chain:
        name, prefix = module.type.rpartition(".")[2], _prefix(module.path)
        if name == "Pooling":
            pooling = look.read_object(f"{prefix}config.json", needed=True)
            modes = sum(1 for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True)
            stated = pooling.get("pooling_mode")
            if isinstance(stated, list):
                modes = len(stated)
            dimensions = dimensions * max(modes, 1) if dimensions is not None else None
        elif name == "Dense":
            dense = look.read_object(f"{prefix}config.json", needed=True)
            look.check_weights(prefix)
            out = dense.get("out_features")
            dimensions = out if isinstance(out, int) else None
    return dimensions


def _max_length(look: ModelFolder, prefix: str, config: dict[str, Any]) -> int | None:
    stated = look.read_object(f"{prefix}sentence_bert_config.json", needed=False).get("max_seq_length")
    if not isinstance(stated, int):
        stated = look.read_object(f"{prefix}tokenizer_config.json", needed=False).get("model_max_length")
    return known_length(config, stated)
