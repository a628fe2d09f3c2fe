"""Loads a diffusers pipeline part by part, so that what the files lack is noticed.

Each model is loaded by its own class, as `inspect_files` allows it, and is refused where the library would make up some
of its weights. What has no weights is left to the pipeline's own loading, from the same folder.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import msgspec

from schemas.codes import Code, Refusal
from worker.adapters.image.diffusion_files import INDEX, PIPELINES, Part, named, variant_of, weights_name
from worker.adapters.image.processor_files import image_processor
from worker.adapters.weights import refuse_made_up


def load_pipeline(folder: Path, dtype: Any) -> Any:
    """The pipeline on the CPU, in evaluation mode. Raises Refusal; whatever else the libraries raise."""
    import diffusers

    index: dict[str, Any] = msgspec.json.decode((folder / INDEX).read_bytes())
    name = str(index.get("_class_name"))
    parts = PIPELINES.get(name)
    if parts is None:
        raise Refusal(Code.LOAD_FAILED, f"the pipeline `{name}` is not one of {', '.join(PIPELINES)}")
    paths = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    given: dict[str, Any] = {}
    for place, part in parts.items():
        found = named(index, place)
        if place == "image_encoder" or (found is None and not part.needed):
            given[place] = None  # no request has an image to be encoded
        elif found is not None and part.kind == "model":
            given[place] = _load_model(folder, paths, place, part, *found, dtype)
        elif found is not None and part.kind == "processor":
            given[place] = image_processor(folder / place)
    if "add_watermarker" in _arguments(getattr(diffusers, name)):
        given["add_watermarker"] = False  # else pixels would depend on whether a package is installed
    pipeline = getattr(diffusers, name).from_pretrained(
        str(folder), local_files_only=True, use_safetensors=True, trust_remote_code=False, **given
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _load_model(folder: Path, paths: set[str], place: str, part: Part, library: str, name: str, dtype: Any) -> Any:
    if f"{library}:{name}" not in part.classes:
        raise Refusal(Code.LOAD_FAILED, f"`{library}.{name}` is not one of those that may be the `{place}`")
    module = library if library in {"diffusers", "transformers"} else f"diffusers.pipelines.{library}"
    variant = variant_of(paths, place, weights_name(library))
    model, loading = getattr(importlib.import_module(module), name).from_pretrained(
        str(folder / place),
        local_files_only=True,
        use_safetensors=True,
        dtype=dtype,
        output_loading_info=True,
        **({"variant": variant} if variant else {}),
    )
    refuse_made_up(loading)
    return model.eval()


def _arguments(kind: Any) -> set[str]:
    code = kind.__init__.__code__
    return set(code.co_varnames[: code.co_argcount])
