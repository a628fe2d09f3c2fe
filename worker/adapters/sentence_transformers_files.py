"""Static inspection of a folder for the sentence_transformers adapter: JSON files and safetensors headers only.

Compatible means: the module chain is one this adapter runs, the model type is one the installed
transformers library has code for, the weights are whole safetensors files, and nothing in the folder asks
for code or pickles of its own. Each obstacle is one reason with RUNTIME_INCOMPATIBLE; all are collected.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from schemas.artifacts import PICKLE_SUFFIXES, FileEntry
from schemas.codes import Code
from schemas.evidence import Reason
from worker.adapters.contract import Inspection
from worker.adapters.safetensors_header import MalformedHeader, read_header

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
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "sentencepiece.bpe.model", "spiece.model")
JSON_BYTES_MAX = 8 * 1024 * 1024
MODULES_MAX = 16


class _Module(Struct):
    path: str
    type: str


class _Inspector:
    """One inspection: collects reasons and facts over the files the manifest names."""

    def __init__(self, folder: Path, files: list[FileEntry]) -> None:
        self.folder = folder
        self.paths = {entry.path for entry in files}
        self.reasons: list[Reason] = []
        self.parameters = 0
        self.weights_bytes = 0

    def refuse(self, message: str) -> None:
        self.reasons.append(Reason(Code.RUNTIME_INCOMPATIBLE, message))

    def read_object(self, path: str, *, needed: bool) -> dict[str, Any] | None:
        found = self.read(path, dict[str, Any], needed=needed)
        return found if isinstance(found, dict) else None

    def read(self, path: str, kind: Any, *, needed: bool) -> Any:
        if path not in self.paths:
            if needed:
                self.refuse(f"`{path}` is missing")
            return None
        try:
            with open(self.folder / path, "rb") as file:
                raw = file.read(JSON_BYTES_MAX + 1)
            if len(raw) > JSON_BYTES_MAX:
                self.refuse(f"`{path}` is over {JSON_BYTES_MAX} bytes")
                return None
            return msgspec.json.decode(raw, type=kind)
        except OSError as error:
            self.refuse(f"`{path}` can't be read: {error.strerror}")
        except msgspec.DecodeError as error:
            self.refuse(f"`{path}` is not what is expected: {error}")
        return None

    def check_no_code(self) -> None:
        for path in sorted(self.paths):
            suffix = PurePosixPath(path).suffix.lower()
            if suffix in PICKLE_SUFFIXES:
                self.refuse(f"`{path}` is a pickle; only safetensors are read")
            if suffix == ".py":
                self.refuse(f"`{path}` is code; code from the folder is never run")
        for path in sorted(self.paths):
            if PurePosixPath(path).name in {"config.json", "tokenizer_config.json", "processor_config.json"}:
                content = self.read(path, Any, needed=False)
                if isinstance(content, dict) and "auto_map" in content:
                    self.refuse(f"`{path}` has `auto_map`: the model needs code from its folder")

    def modules(self) -> list[_Module]:
        """The module chain, each of a type this adapter runs, with a path inside the folder."""
        chain = self.read("modules.json", list[_Module], needed=True)
        if not isinstance(chain, list):
            return []
        if not 1 <= len(chain) <= MODULES_MAX:
            self.refuse(f"`modules.json` names {len(chain)} modules; 1 to {MODULES_MAX} are expected")
            return []
        for module in chain:
            name = module.type.rpartition(".")[2]
            if not module.type.startswith("sentence_transformers.") or name not in MODULES:
                self.refuse(f"module type `{module.type}` is not one of {', '.join(sorted(MODULES))}")
            if module.path.startswith("/") or ".." in PurePosixPath(module.path).parts:
                self.refuse(f"module path `{module.path}` leaves the folder")
        if chain[0].type.rpartition(".")[2] != "Transformer":
            self.refuse(f"the first module is `{chain[0].type}`, not a Transformer")
        return [] if self.reasons else chain

    def check_weights(self, prefix: str) -> None:
        """`model.safetensors`, or the shards its index names, whole by their headers."""
        names = [f"{prefix}model.safetensors"]
        index_name = f"{prefix}model.safetensors.index.json"
        if names[0] not in self.paths and index_name in self.paths:
            index = self.read_object(index_name, needed=True) or {}
            shards = index.get("weight_map")
            if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
                self.refuse(f"`{index_name}` has no usable `weight_map`")
                return
            names = [prefix + shard for shard in sorted(set(shards.values()))]
        for name in names:
            self._check_weights_file(name)

    def _check_weights_file(self, name: str) -> None:
        if name not in self.paths:
            self.refuse(f"`{name}` is missing; the weights must be safetensors")
            return
        try:
            header = read_header(self.folder / name)
        except MalformedHeader as error:
            self.refuse(f"`{name}` {error}")
        except OSError as error:
            self.refuse(f"`{name}` can't be read: {error.strerror}")
        else:
            self.parameters += header.parameters
            self.weights_bytes += header.file_bytes


def inspect_files(folder: Path, files: list[FileEntry]) -> Inspection:
    """Blocking; reads no more than JSON_BYTES_MAX of each JSON file and each weights file's header."""
    look = _Inspector(folder, files)
    look.check_no_code()
    chain = look.modules()
    prefix = _prefix(chain[0].path) if chain else ""
    config = look.read_object(f"{prefix}config.json", needed=True) or {}
    model_type = config.get("model_type")
    if config and model_type not in MODEL_TYPES:
        look.refuse(f"model type `{model_type}` is not one of {', '.join(sorted(MODEL_TYPES))}")
    elif config and not _library_has(str(model_type)):
        look.refuse(f"the installed transformers library has no code for model type `{model_type}`")
    if not any(f"{prefix}{name}" in look.paths for name in TOKENIZER_FILES):
        look.refuse(f"there is no tokenizer; one of {', '.join(TOKENIZER_FILES)} is needed")
    look.check_weights(prefix)
    dimensions = _dimensions(look, chain, config)
    architectures = config.get("architectures")
    return Inspection(
        reasons=look.reasons,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else None,
        parameters=look.parameters or None,
        weights_bytes=look.weights_bytes or None,
        dimensions=dimensions,
        max_length=_max_length(look, prefix, config),
    )


def _prefix(path: str) -> str:
    return f"{path.rstrip('/')}/" if path else ""


def _library_has(model_type: str) -> bool:
    """Whether the installed transformers has a package for it; finds it without importing it."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return False
    return (Path(spec.origin).parent / "models" / model_type.replace("-", "_")).is_dir()


def _dimensions(look: _Inspector, chain: list[_Module], config: dict[str, Any]) -> int | None:
    """Follow the chain: hidden size, times the pooling modes, or what a Dense module makes of it."""
    hidden = config.get("hidden_size", config.get("dim"))
    dimensions = hidden if isinstance(hidden, int) else None
    for module in chain:
        name, prefix = module.type.rpartition(".")[2], _prefix(module.path)
        if name == "Pooling":
            pooling = look.read_object(f"{prefix}config.json", needed=True) or {}
            modes = sum(1 for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True)
            stated = pooling.get("pooling_mode")
            if isinstance(stated, list):
                modes = len(stated)
            dimensions = dimensions * max(modes, 1) if dimensions is not None else None
        elif name == "Dense":
            dense = look.read_object(f"{prefix}config.json", needed=True) or {}
            look.check_weights(prefix)
            out = dense.get("out_features")
            dimensions = out if isinstance(out, int) else None
    return dimensions


def _max_length(look: _Inspector, prefix: str, config: dict[str, Any]) -> int | None:
    stated = (look.read_object(f"{prefix}sentence_bert_config.json", needed=False) or {}).get("max_seq_length")
    if isinstance(stated, int):
        return stated
    tokenizer = (look.read_object(f"{prefix}tokenizer_config.json", needed=False) or {}).get("model_max_length")
    positions = config.get("max_position_embeddings")
    known = [value for value in (tokenizer, positions) if isinstance(value, int) and 0 < value < 1_000_000]
    return min(known) if known else None
