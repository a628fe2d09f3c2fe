"""Static inspection of a folder for the transformers_text adapter: JSON files and safetensors headers only.

Compatible means: a decoder of an architecture this adapter was tried with, whose code is in the installed library, with
whole safetensors weights that are not quantised, and a tokenizer of the library's own format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.artifacts import FileEntry
from worker.adapters.contract import Inspection
from worker.adapters.folder import ModelFolder

# Model type to architecture. Each is in the tests, made small: alone, padded in a batch, and with others leaving it.
ARCHITECTURES = {
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}
GENERATION_CONFIG = "generation_config.json"


def inspect_files(folder: Path, files: list[FileEntry]) -> Inspection:
    """Blocking; reads the JSON files and each weights file's header."""
    look = ModelFolder(folder, files)
    look.check_no_code()
    config = look.read_object("config.json", needed=True)
    model_type = look.check_model_type(config, ARCHITECTURES)
    named = config.get("architectures")
    if model_type and named != [ARCHITECTURES[model_type]]:
        look.refuse(f"`config.json` has the architectures {named}; `{ARCHITECTURES[model_type]}` alone is needed")
    if "quantization_config" in config:
        look.refuse("`config.json` has `quantization_config`: quantised weights are not run")
    if "adapter_config.json" in look.paths:
        look.refuse("`adapter_config.json` is of an adapter (PEFT); merge it into the model's weights")
    if "tokenizer.json" not in look.paths:
        look.refuse("`tokenizer.json` is missing")
    generation = look.read_object(GENERATION_CONFIG, needed=False)
    if config and not end_tokens(config, generation):
        look.refuse(f"no token ends a text: `eos_token_id` is in neither `config.json` nor `{GENERATION_CONFIG}`")
    if config and positions_of(config) is None:
        look.refuse("`config.json` does not say how many tokens the model can read")
    look.check_weights()
    return look.outcome(config, max_length=positions_of(config))


def positions_of(config: Mapping[str, Any]) -> int | None:
    """How many tokens, prompt and answer together, the model was made for."""
    stated = (config.get(name) for name in ("max_position_embeddings", "n_positions"))
    return next((value for value in stated if isinstance(value, int) and value > 0), None)


def end_tokens(config: Mapping[str, Any], generation: Mapping[str, Any]) -> frozenset[int]:
    """As the library has it: of generation_config.json, else of config.json."""
    for source in (generation, config):
        found = source.get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        if ids and all(isinstance(each, int) for each in ids):
            return frozenset(ids)
    return frozenset()
