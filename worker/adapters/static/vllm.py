"""vLLM's models: a folder as transformers saves one. What it says of itself; it is not run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.artifacts import FileEntry
from worker.adapters.contract import Inspection
from worker.adapters.folder import ModelFolder


def describe(folder: Path, files: list[FileEntry], task: str) -> Inspection:
    look = ModelFolder(folder, files)
    look.check_no_code()
    config = look.read_object("config.json", needed=True)
    look.check_tokenizer()
    look.check_weights()
    text = config.get("text_config")  # of models that see as well
    inner: dict[str, Any] = text if isinstance(text, dict) else config
    found = look.outcome(
        config,
        dimensions=_whole(inner.get("hidden_size")),
        max_length=_whole(inner.get("max_position_embeddings")),
    )
    details = {"format": "safetensors"}
    for key in ("model_type", "torch_dtype", "dtype"):
        if isinstance(config.get(key), str):
            details["dtype" if "dtype" in key else key] = config[key]
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and isinstance(quantization.get("quant_method"), str):
        details["quantization"] = quantization["quant_method"]
    return Inspection(
        reasons=found.reasons,
        architecture=found.architecture,
        parameters=found.parameters,
        weights_bytes=found.weights_bytes,
        dimensions=found.dimensions,
        max_length=found.max_length,
        details=details,
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
