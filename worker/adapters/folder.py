"""Reads a model's folder for static inspection: the files its manifest names, as JSON and safetensors headers only.

`ModelFolder` is one inspection. It collects every obstacle as a reason with RUNTIME_INCOMPATIBLE and never raises for
what a folder may hold, so that one look tells all that is wrong. No weights are read, nothing is imported from the
folder and no file is looked at that the manifest does not name. Each JSON file is read up to JSON_BYTES_MAX.

What all adapters refuse is here and in `folder_rules`: pickles, code, weights that are missing, cut or not
safetensors. What one adapter expects of a model (its type, its modules, its processor) is in that adapter's own file.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.evidence import Reason
from worker.adapters.contract import Inspection
from worker.adapters.folder_rules import pickle_reasons, remote_code_reasons
from worker.adapters.safetensors_header import MalformedHeader, read_header

JSON_BYTES_MAX = 8 * 1024 * 1024
SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCEPIECE_FILES)
SENTENCEPIECE_PACKAGES = ("sentencepiece", "protobuf")
_PACKAGES = {"gemma3_text": "gemma3"}  # of the library, where it is not named as the model type


class ModelFolder:
    """One inspection: reasons and facts over the files that the manifest names."""

    def __init__(self, folder: Path, files: Iterable[FileEntry]) -> None:
        self.folder = folder
        self.paths = {entry.path for entry in files}
        self.reasons: list[Reason] = []
        self.parameters = 0
        self.weights_bytes = 0
        self.tensors: set[str] = set()

    def refuse(self, message: str) -> None:
        self.reasons.append(Reason(Code.RUNTIME_INCOMPATIBLE, message))

    def read_object(self, path: str, *, needed: bool) -> dict[str, Any]:
        """A JSON object; empty where there is none, with a reason unless it merely is not there and not needed."""
        found = self.read(path, dict[str, Any], needed=needed)
        return found if isinstance(found, dict) else {}

    def read(self, path: str, kind: Any, *, needed: bool) -> Any:
        """A JSON file as this type, or None."""
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
        except (msgspec.DecodeError, RecursionError) as error:
            self.refuse(f"`{path}` is not what is expected: {error}")
        return None

    def check_no_code(self) -> None:
        """Code and pickles under any name, and configurations that ask for code; see `folder_rules`."""
        self.reasons += pickle_reasons(self.folder, self.paths)
        self.reasons += remote_code_reasons(self.folder, self.paths)

    def check_model_type(self, config: dict[str, Any], allowed: Collection[str], *, path: str = "config.json") -> str:
        """The configuration's `model_type`, empty where it has none that can run. An empty configuration says nothing:
        why there is none has been said when it was read."""
        if not config:
            return ""
        model_type = config.get("model_type")
        if not isinstance(model_type, str) or model_type not in allowed:
            self.refuse(f"`{path}` has model type `{model_type}`, which is not one of {', '.join(sorted(allowed))}")
            return ""
        if not transformers_has(model_type):
            self.refuse(f"the installed transformers library has no code for model type `{model_type}`")
            return ""
        return model_type

    def check_tokenizer(self, prefix: str = "") -> None:
        found = [name for name in TOKENIZER_FILES if f"{prefix}{name}" in self.paths]
        if not found:
            where = f" in `{prefix}`" if prefix else ""
            self.refuse(f"there is no tokenizer{where}; one of {', '.join(TOKENIZER_FILES)} is needed")
        elif set(found) <= set(SENTENCEPIECE_FILES):
            self.check_packages(f"the tokenizer `{prefix}{found[0]}`", SENTENCEPIECE_PACKAGES)

    def check_packages(self, what: str, names: Collection[str]) -> None:
        """What only some models of an adapter need."""
        missing = missing_distributions(names)
        if missing:
            self.refuse(f"{what} needs packages that are not installed: {', '.join(missing)}")

    def check_weights(self, prefix: str = "", name: str = "model.safetensors") -> None:
        """The file `prefix + name`, or the shards its index names, whole by their headers; adds up the facts."""
        names = [f"{prefix}{name}"]
        index_name = f"{prefix}{name}.index.json"
        if names[0] not in self.paths and index_name in self.paths:
            shards = self.read_object(index_name, needed=True).get("weight_map")
            if not isinstance(shards, dict) or not shards or not all(isinstance(each, str) for each in shards.values()):
                self.refuse(f"`{index_name}` has no usable `weight_map`")
                return
            names = [prefix + shard for shard in sorted(set(shards.values()))]
        for each in names:
            self._check_weights_file(each)

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
            self.tensors |= header.names

    def outcome(
        self, config: dict[str, Any], *, dimensions: int | None = None, max_length: int | None = None
    ) -> Inspection:
        """What was found, with the architecture that the main configuration names."""
        architectures = config.get("architectures")
        return Inspection(
            reasons=self.reasons,
            architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else None,
            parameters=self.parameters or None,
            weights_bytes=self.weights_bytes or None,
            dimensions=dimensions,
            max_length=max_length,
        )


def transformers_has(model_type: str) -> bool:
    """Whether the installed transformers has a package for this model type; finds it without importing it."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return False
    package = _PACKAGES.get(model_type, model_type.replace("-", "_"))
    return (Path(spec.origin).parent / "models" / package).is_dir()


def missing_distributions(names: Iterable[str]) -> list[str]:
    """Those that are not installed here."""
    missing = []
    for name in names:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return missing
