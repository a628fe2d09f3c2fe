"""Runtimes that are recognised and not run: what is told of their models, and that nothing advertises them."""

from __future__ import annotations

import importlib.metadata
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.codes import Code
from services.showcase.model import files_of
from worker.adapters import registry
from worker.adapters.contract import Inspection
from worker.adapters.static import gguf_header
from worker.adapters.static.gguf_header import MalformedGguf, read_header

WHERE_IT_BEGINS = {"general.architecture": "llama", "general.file_type": 15}
WEIGHTS = [("token_embd.weight", (256, 8), 12), ("blk.0.attn_norm.weight", (256,), 0)]  # Q4_K and F32


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, value: Any) -> bytes:
    """A key with a value of the type that Python's own suggests: whole numbers as u32, lists as arrays of texts."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def gguf(
    pairs: dict[str, Any] | None = None,
    weights: list[tuple[str, tuple[int, ...], int]] | None = None,
    *,
    version: int = 3,
    more: bytes = b"",
    alignment: int = 32,
) -> bytes:
    """A whole file; `more` is one further pair, as bytes."""
    values = {
        **WHERE_IT_BEGINS, "llama.context_length": 4_096, "llama.embedding_length": 256, "llama.rope.freq_base": 1e4,
        "tokenizer.ggml.tokens": ["<s>", "a", "b"], **(pairs or {}),
    }  # fmt: skip
    weights = WEIGHTS if weights is None else weights
    head = b"GGUF" + struct.pack("<IQQ", version, len(weights), len(values) + bool(more))
    head += b"".join(pair(key, value) for key, value in values.items()) + more
    data = b""
    for name, shape, kind in weights:
        data += b"\0" * (-len(data) % alignment)
        _, elements, size = gguf_header._TYPES.get(kind, ("", 1, 1))
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, len(data))
        count = 1
        for side in shape:
            count *= side
        data += b"\1" * (count // elements * size)
    return head + b"\0" * (-len(head) % alignment) + data


def seen(folder: Path, adapter: str = "llama_cpp", task: str = "text_generation") -> Inspection:
    return registry.inspect(adapter, task, folder, files_of(folder))


@pytest.mark.parametrize("adapter", sorted(registry.RECOGNISED))
def test_none_is_advertised_or_can_be_made(adapter: str) -> None:
    assert adapter not in registry.capabilities()
    assert adapter not in registry.versions()
    with pytest.raises(KeyError):
        registry.adapter_of(adapter)


@pytest.mark.parametrize("adapter", sorted(registry.RECOGNISED))
def test_none_ever_finds_a_set_compatible(adapter: str, tmp_path: Path) -> None:
    for task in registry.RECOGNISED[adapter].tasks:
        reasons = registry.inspect(adapter, task, tmp_path, []).reasons
        assert reasons[0].code == Code.RUNTIME_INCOMPATIBLE
        assert reasons[0].message == registry.RECOGNISED[adapter].why
    other = registry.inspect("llama_cpp", "stt", tmp_path, [])
    assert [reason.message for reason in other.reasons] == [
        "adapter `llama_cpp` does not do `stt`; it does: text_generation, embedding, rerank"
    ]


def test_what_a_gguf_file_says(tmp_path: Path) -> None:
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(gguf())
    found = seen(tmp_path)
    assert [reason.message for reason in found.reasons] == [registry.RECOGNISED["llama_cpp"].why]
    assert (found.architecture, found.parameters) == ("llama", 256 * 8 + 256)
    assert (found.dimensions, found.max_length) == (256, 4_096)
    assert found.weights_bytes == (tmp_path / "model-Q4_K_M.gguf").stat().st_size
    assert found.details == {"format": "GGUF 3", "tensors": "2", "quantization": "Q4_K_M"}


def test_without_a_mixture_the_type_of_most_parameters_counts(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(gguf({"general.file_type": 9_999}))
    assert seen(tmp_path).details["quantization"] == "Q4_K"
    (tmp_path / "one.gguf").write_bytes(gguf({"general.file_type": 9_999}, [("x", (7,), 77)]))
    assert seen(tmp_path).details["quantization"] == "type 77"


def test_older_version_and_other_alignment(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(gguf({"general.alignment": 64}, version=2, alignment=64))
    found = seen(tmp_path)
    assert found.details["format"] == "GGUF 2"
    assert len(found.reasons) == 1


def test_a_model_in_parts(tmp_path: Path) -> None:
    for part in range(3):
        name = tmp_path / f"big-0000{part + 1}-of-00003.gguf"
        name.write_bytes(gguf({"split.no": part, "split.count": 3}, [(f"blk.{part}", (256, 2), 12)]))
    found = seen(tmp_path)
    assert len(found.reasons) == 1
    assert found.parameters == 3 * 512
    assert found.details["tensors"] == "3"
    (tmp_path / "big-00002-of-00003.gguf").unlink()
    assert seen(tmp_path).reasons[1].message == "the model has 3 parts; here are: 1, 3"


def test_two_models_are_not_one(tmp_path: Path) -> None:
    (tmp_path / "a-Q4.gguf").write_bytes(gguf())
    (tmp_path / "a-Q8.gguf").write_bytes(gguf())
    assert seen(tmp_path).reasons[1].message == "there are 2 models (a-Q4.gguf, a-Q8.gguf); a set holds one"
    (tmp_path / "a-Q8.gguf").write_bytes(gguf({"general.architecture": "clip"}))  # the part that sees
    assert len(seen(tmp_path).reasons) == 1


def nested(depth: int) -> bytes:
    head = text("nested") + struct.pack("<I", 9)
    return head + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 8, 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "ends in its header: it holds 0 bytes"),
        (b"GGML" + gguf()[4:], "begins with b'GGML'"),
        (gguf(version=1), "is of version 1; 2 and 3 are read"),
        (b"GGUF" + struct.pack(">I", 3) + gguf()[8:], "is big-endian"),
        (gguf()[:-1], "bytes by its header but holds"),
        (gguf()[:200], "ends in its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 1), "says 9223372036854775808 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**32), "and 4294967296 pairs"),
        (gguf(more=text("x") + struct.pack("<I", 99)), "unknown type 99"),
        (gguf(more=text("x") + struct.pack("<IIQ", 9, 10, 2**61)), "has a header of more than"),
        (gguf(more=text("x") + struct.pack("<IIQ", 9, 8, 2**40)), "more than 4000000 texts"),
        (gguf(more=struct.pack("<Q", 2**40)), "has a name of 1099511627776 bytes"),
        (gguf(more=nested(9)), "nested deeper than 4"),
        (gguf(weights=[("x", (1,) * 9, 0)]), "9 dimensions"),
        (gguf(weights=[("x", (100, 8), 12)]), "rows of 100; Q4_K needs 256 together"),
        (gguf({"general.alignment": 0}), "an alignment of 0"),
    ],
)
def test_malformed_headers_are_told(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "one.gguf").write_bytes(content)
    found = seen(tmp_path)
    assert len(found.reasons) == 2
    assert found.reasons[1].code == Code.RUNTIME_INCOMPATIBLE
    assert found.reasons[1].message.startswith("`one.gguf` ")
    assert words in found.reasons[1].message


def test_damaged_headers_are_malformed_and_never_anything_else(tmp_path: Path) -> None:
    source = random.Random(20_260)
    path, whole = tmp_path / "one.gguf", gguf()
    outcomes = {"read": 0, "malformed": 0}
    for _ in range(3_000):
        content = bytearray(whole)
        for _ in range(source.randint(1, 4)):
            content[source.randrange(500)] = source.randrange(256)
        path.write_bytes(content)
        try:
            read_header(path)
            outcomes["read"] += 1
        except MalformedGguf:
            outcomes["malformed"] += 1
    assert min(outcomes.values()) > 100, outcomes


def test_what_a_vllm_folder_says(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "torch_dtype": "bfloat16",
        "max_position_embeddings": 2_048, "quantization_config": {"quant_method": "awq", "bits": 4},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    save_file({"x": np.zeros((4, 4), dtype=np.float32)}, tmp_path / "model.safetensors")
    found = seen(tmp_path, "vllm")
    assert [reason.message for reason in found.reasons] == [registry.RECOGNISED["vllm"].why]
    assert (found.architecture, found.parameters, found.dimensions, found.max_length) == (
        "LlamaForCausalLM", 16, 64, 2_048,
    )  # fmt: skip
    assert found.details == {
        "format": "safetensors", "model_type": "llama", "dtype": "bfloat16", "quantization": "awq",
    }  # fmt: skip
    (tmp_path / "model.safetensors").unlink()
    assert any("`model.safetensors` is missing" in reason.message for reason in seen(tmp_path, "vllm").reasons)


def test_what_lies_beside_a_runner_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("raise SystemExit('ran')")
    (tmp_path / "model.pt").write_bytes(b"\x80\x02.")
    found = seen(tmp_path, "custom_runner", "stt")
    messages = [reason.message for reason in found.reasons]
    assert messages[0] == registry.RECOGNISED["custom_runner"].why
    assert any("handler.py" in message for message in messages)
    assert any("model.pt" in message for message in messages)
    assert found.details == {"files": "2", "code files": "1", "code": "handler.py"}


def test_an_adapter_without_its_packages_still_tells_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A diffusers pipeline on a node without diffusers, for one."""
    from services.showcase.siglip2 import build_fixed

    build_fixed(tmp_path)

    def version(name: str, real: Callable[[str], str] = importlib.metadata.version) -> str:
        if name == "pillow":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = seen(tmp_path, "transformers_siglip2", "image_embedding")
    assert [reason.message for reason in found.reasons] == [
        "adapter `transformers_siglip2` needs packages that are not installed: pillow"
    ]
    assert found.architecture == "SiglipModel"
    assert found.parameters
    assert "transformers_siglip2" not in registry.capabilities()
