"""Tiny decoders of real architectures with random weights and a tokenizer of single bytes and a few merges.

The weights are wide, so that texts differ and no two tokens are nearly as probable. `generation_config.json` asks for
what must not happen unseen: sampling, a penalty, two beams, a bound. Only its end tokens count.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.profiles import GenerationSettings, RuntimeProfile
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import ChatMessage, Generated, GenerateRequest
from services.showcase.made_tokenizers import byte_pairs
from services.showcase.model import Model

PROFILE = RuntimeProfile(
    adapter="transformers_text", task="text_generation", generation=GenerationSettings(new_tokens_max=24)
)
POSITIONS = 96
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
SIZES: dict[str, object] = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.25,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
UNSEEN = {
    "do_sample": True,
    "temperature": 3.0,
    "repetition_penalty": 4.0,
    "num_beams": 2,
    "max_new_tokens": 2,
    "eos_token_id": [1],
}
REQUESTS: list[Request] = [
    GenerateRequest(prompt="The quick brown fox"),
    GenerateRequest(prompt="and the end of it all is in sight, again and again", new_tokens_max=9),
    GenerateRequest(prompt="schön, 漢字, 🦊", new_tokens_max=16),
    GenerateRequest(prompt="x", new_tokens_max=1),
]
CHAT: Request = GenerateRequest(messages=[ChatMessage("system", "Be brief."), ChatMessage("user", "Who </s> are you?")])
BAD: list[tuple[Request, str]] = [
    (GenerateRequest(), "INPUT_INVALID"),
    (GenerateRequest(prompt="x", messages=[ChatMessage("user", "y")]), "INPUT_INVALID"),
    (GenerateRequest(messages=[]), "INPUT_INVALID"),
    (GenerateRequest(prompt="x", stop=[""]), "INPUT_INVALID"),
    (GenerateRequest(prompt="x", new_tokens_max=25), "INPUT_TOO_LARGE"),
    (GenerateRequest(prompt="x" * (POSITIONS - 10), new_tokens_max=11), "INPUT_TOO_LARGE"),
    (GenerateRequest(prompt="x" * POSITIONS), "INPUT_TOO_LARGE"),
]


def build(model_type: str, folder: Path, *, seed: int = 3, template: str | None = None, **changes: object) -> None:
    """Any architecture that the adapter knows, by its model type."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {**SIZES, **changes}
    if model_type == "gpt2":  # the only one with other names for its sizes
        sizes = {**sizes, "n_positions": POSITIONS, "n_embd": 32, "n_layer": 2, "n_head": 4}
        sizes = {name: value for name, value in sizes.items() if name not in _NOT_OF_GPT2}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes))
    model.eval().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(UNSEEN))
    byte_pairs(SPECIAL, template=template).save_pretrained(folder)


_NOT_OF_GPT2 = frozenset(
    {
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "max_position_embeddings"),
    }
)


@functools.lru_cache(maxsize=1)
def library(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=2)
    return model, AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def prompt_of(tokenizer: Any, request: GenerateRequest) -> list[int]:
    if request.prompt is not None:
        ids: list[int] = tokenizer(request.prompt)["input_ids"]
        return ids
    messages = [{"role": each.role, "content": each.content} for each in request.messages or []]
    rendered: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, sanitize_control_tokens=True
    )
    return rendered


def reference(folder: Path, profile: RuntimeProfile, request: Request) -> Result:
    """The library's own greedy `generate`, of one prompt alone."""
    import torch

    assert isinstance(request, GenerateRequest)
    model, tokenizer = library(folder)
    ids = prompt_of(tokenizer, request)
    bound = request.new_tokens_max or PROFILE.generation.new_tokens_max  # type: ignore[union-attr]
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones((1, len(ids)), dtype=torch.long),
        do_sample=False,
        max_new_tokens=bound,
    )[0, len(ids) :].tolist()
    text = tokenizer.decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Generated(text, "stop" if out[-1] == 1 else "length", len(ids), len(out))


def _model(name: str, make: Callable[[Path], None], requests: list[Request], bad: list[tuple[Request, str]]) -> Model:
    return Model(name, PROFILE, make, requests, reference, tolerance=0.0, bad=bad)


MODELS = [
    _model("generation_llama", functools.partial(build, "llama", template=TEMPLATE), [*REQUESTS, CHAT], BAD),
    _model("generation_qwen2", functools.partial(build, "qwen2"), REQUESTS, [*BAD, (CHAT, "INPUT_INVALID")]),
]
