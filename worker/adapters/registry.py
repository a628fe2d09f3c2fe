"""The closed tables of adapters: those that run, and those that only describe. Nothing falls through to other code.

A new adapter is one file and one entry here; docs/guide/adapters.md walks through it. An entry names the class by its
path, so that looking at the table imports no adapter, and no adapter's module imports an ML runtime.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import msgspec
from msgspec import Struct

from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.evidence import Reason
from schemas.tasks.requests import REQUEST_OF
from worker.adapters.contract import Inspection, RuntimeAdapter
from worker.adapters.folder import missing_distributions


class Entry(Struct, frozen=True):
    """One adapter. `version` is part of the environment's fingerprint: it grows whenever an answer could change.

    `packages` are the distributions it needs; `imports` the modules that a load would import, and `warm` what it
    would call (`module:function`) to make what its libraries make once, for whatever model. The fork server has done
    both beforehand. What is missing there costs a load time and nothing else.
    """

    path: str  # module:class
    version: str
    tasks: tuple[str, ...]
    packages: tuple[str, ...]
    imports: tuple[str, ...]
    warm: tuple[str, ...] = ()


class Recognised(Struct, frozen=True):
    """A runtime that doesn't run here, whose models are described all the same. It is never advertised.

    `why` is the reason that each inspection begins with.
    """

    path: str  # module:function
    tasks: tuple[str, ...]
    why: str


# Of the architectures that most models of text have: what is shared by all of them, and their own modules.
_TEXT_ARCHITECTURES = (
    *("transformers.generation.utils", "transformers.masking_utils", "transformers.modeling_layers"),
    *("transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert"),
    *("transformers.models.distilbert.modeling_distilbert", "transformers.models.mpnet.modeling_mpnet"),
    *("transformers.models.roberta.modeling_roberta", "transformers.models.xlm_roberta.modeling_xlm_roberta"),
    *("transformers.models.modernbert.modeling_modernbert",),
)

# Of the decoders that most models of text generation have.
_DECODERS = (
    *("transformers.models.llama.modeling_llama", "transformers.models.mistral.modeling_mistral"),
    *("transformers.models.qwen2.modeling_qwen2", "transformers.models.qwen3.modeling_qwen3"),
    *("transformers.models.gpt2.modeling_gpt2", "transformers.models.phi3.modeling_phi3"),
)

ENTRIES: dict[str, Entry] = {
    "sentence_transformers": Entry(
        path="worker.adapters.text.sentence_transformers:SentenceTransformersAdapter",
        version="3",
        tasks=("embedding",),
        packages=("torch", "transformers", "sentence-transformers", "safetensors"),
        imports=(
            *("torch", "transformers", "sentence_transformers", "sentence_transformers.models", "safetensors.torch"),
            *("worker.adapters.text.sentence_transformers", "tqdm.contrib.logging", "psutil"),
            *_TEXT_ARCHITECTURES,
        ),
        warm=("worker.adapters.transformers_tables:make",),
    ),
    "cross_encoder": Entry(
        path="worker.adapters.text.cross_encoder:CrossEncoderAdapter",
        version="1",
        tasks=("rerank",),
        packages=("torch", "transformers", "sentence-transformers", "safetensors"),
        imports=(
            *("torch", "transformers", "sentence_transformers", "safetensors.torch"),
            *("worker.adapters.text.cross_encoder", *_TEXT_ARCHITECTURES),
        ),
    ),
    "transformers_trocr": Entry(
        path="worker.adapters.image.trocr:TrocrAdapter",
        version="1",
        tasks=("ocr",),
        packages=("torch", "transformers", "safetensors", "pillow"),
        imports=(
            *(
                "torch",
                "transformers",
                "transformers.models.trocr.modeling_trocr",
                "transformers.models.vit.modeling_vit",
            ),
            *("transformers.models.vision_encoder_decoder.modeling_vision_encoder_decoder", "PIL.Image"),
        ),
    ),
    "transformers_text": Entry(
        path="worker.adapters.text.generation:TransformersTextAdapter",
        version="1",
        tasks=("text_generation",),
        packages=("torch", "transformers", "safetensors", "jinja2"),
        imports=(
            *("torch", "transformers", "safetensors.torch", "jinja2", "worker.adapters.text.generation"),
            *("transformers.generation.utils", "transformers.masking_utils", *_DECODERS),
        ),
    ),
    "transformers_siglip2": Entry(
        path="worker.adapters.image.siglip2:Siglip2Adapter",
        version="1",
        tasks=("image_embedding", "zero_shot_image"),
        packages=("torch", "transformers", "safetensors", "pillow"),
        imports=(
            *("torch", "transformers", "transformers.models.siglip.modeling_siglip", "PIL.Image"),
            "transformers.models.siglip2.modeling_siglip2",
        ),
    ),
    "diffusers": Entry(
        path="worker.adapters.image.diffusion:DiffusionAdapter",
        version="2",
        tasks=("image_generation",),
        packages=("torch", "transformers", "diffusers", "safetensors", "pillow"),
        imports=(
            *("torch", "transformers", "diffusers", "transformers.models.clip.modeling_clip", "PIL.Image"),
            "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion",
            "diffusers.pipelines.stable_diffusion_xl.pipeline_stable_diffusion_xl",
        ),
    ),
    "transformers_whisper": Entry(
        path="worker.adapters.audio.whisper:WhisperAdapter",
        version="2",
        tasks=("stt",),
        packages=("torch", "transformers", "safetensors", "soundfile", "soxr"),
        imports=("torch", "transformers", "transformers.models.whisper.modeling_whisper", "soundfile", "soxr"),
    ),
    "transformers_tts": Entry(
        path="worker.adapters.audio.speech:SpeechAdapter",
        version="1",
        tasks=("tts",),
        packages=("torch", "transformers", "safetensors"),
        imports=("torch", "transformers", "transformers.models.vits.modeling_vits"),
    ),
}

RECOGNISED: dict[str, Recognised] = {
    "vllm": Recognised(
        path="worker.adapters.static.vllm:describe",
        tasks=("text_generation", "embedding", "rerank"),
        why="`vllm` is a server with processes and device memory of its own, which this worker does not start;"
        " `transformers_text` runs many of its models",
    ),
    "llama_cpp": Recognised(
        path="worker.adapters.static.gguf:describe",
        tasks=("text_generation", "embedding", "rerank"),
        why="`llama_cpp` is a runtime that is not part of this worker; `transformers_text` runs a model's safetensors",
    ),
    "custom_runner": Recognised(
        path="worker.adapters.static.custom:describe",
        tasks=tuple(REQUEST_OF),
        why="a `custom_runner` that comes with a model is code of the model, and no such code is run",
    ),
}


def adapter_of(name: str) -> RuntimeAdapter:
    """A new instance. KeyError for a name that isn't registered."""
    module, _, kind = ENTRIES[name].path.partition(":")
    made: RuntimeAdapter = getattr(importlib.import_module(module), kind)()
    return made


def versions() -> dict[str, str]:
    """Adapter to version, for the environment's fingerprint."""
    return {name: entry.version for name, entry in ENTRIES.items()}


def packages() -> list[str]:
    """The distributions whose versions can change an answer, installed or not."""
    return sorted(
        {"numpy", "sentencepiece", "tokenizers", *(name for entry in ENTRIES.values() for name in entry.packages)}
    )


def ready_beforehand() -> tuple[list[str], list[str]]:
    """What the adapters that can run here import, and what they warm; each once, in their order."""
    entries = [entry for name, entry in ENTRIES.items() if not missing_packages(name)]
    imports = dict.fromkeys(module for entry in entries for module in entry.imports)
    return list(imports), list(dict.fromkeys(function for entry in entries for function in entry.warm))


def missing_packages(adapter: str) -> list[str]:
    """The distributions this adapter needs that aren't installed here."""
    return missing_distributions(ENTRIES[adapter].packages)


def capabilities() -> dict[str, list[str]]:
    """Adapter to tasks, only for what can run here."""
    return {name: list(entry.tasks) for name, entry in ENTRIES.items() if not missing_packages(name)}


def inspect(adapter: str, task: str, folder: Path, files: list[FileEntry]) -> Inspection:
    """Static inspection of the set for this adapter and task. Blocking: reads small files.

    What can't run here for a reason of its own is described none the less: that reason, then what the files say.
    """
    entry = ENTRIES.get(adapter) or RECOGNISED.get(adapter)
    if entry is None:
        known = ", ".join(sorted([*ENTRIES, *RECOGNISED]))
        return _refused(f"there is no adapter `{adapter}` here; there are: {known}")
    if task not in entry.tasks:
        return _refused(f"adapter `{adapter}` does not do `{task}`; it does: {', '.join(entry.tasks)}")
    if isinstance(entry, Recognised):
        module, _, function = entry.path.partition(":")
        seen: Inspection = getattr(importlib.import_module(module), function)(folder, files, task)
        why = entry.why
    else:
        seen = adapter_of(adapter).inspect_support(folder, files, task)
        missing = missing_packages(adapter)
        why = f"adapter `{adapter}` needs packages that are not installed: {', '.join(missing)}" if missing else ""
    first = [Reason(Code.RUNTIME_INCOMPATIBLE, why)] if why else []
    return msgspec.structs.replace(seen, reasons=[*first, *seen.reasons])


def _refused(why: str) -> Inspection:
    return Inspection(reasons=[Reason(Code.RUNTIME_INCOMPATIBLE, why)])
