"""Static inspection: what a folder says of itself, and each reason why it can't run."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.artifacts import FileEntry
from schemas.codes import Code
from worker.adapters import registry
from worker.adapters.contract import Inspection
from worker.adapters.safetensors_header import MalformedHeader, read_header


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(end)


CONFIG = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 8, "max_position_embeddings": 64}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "modules.json").write_text(json.dumps(MODULES))
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": [4, 8], "b": [8]}))
    return tmp_path


def inspect(folder: Path) -> Inspection:
    files = [
        FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, "0" * 64)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    return registry.inspect("sentence_transformers", "embedding", folder, files)


def test_facts(folder: Path) -> None:
    seen = inspect(folder)
    assert seen.compatible, seen.reasons
    assert (seen.architecture, seen.parameters, seen.dimensions, seen.max_length) == ("BertModel", 40, 8, 64)
    assert seen.weights_bytes == (folder / "model.safetensors").stat().st_size


def _config(**changes: object) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def _module_type(name: str) -> Callable[[Path], object]:
    chain = [MODULES[0], {**MODULES[1], "type": name}]
    return lambda folder: (folder / "modules.json").write_text(json.dumps(chain))


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _index_without_its_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_config(auto_map={"AutoModel": "modeling.Model"}), "auto_map"),
        (_config(model_type="whisper"), "whisper"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json"),
        (lambda f: (f / "config.json").unlink(), "config.json"),
        (lambda f: (f / "modules.json").unlink(), "modules.json"),
        (lambda f: (f / "modules.json").write_text("[]"), "modules.json"),
        (_module_type("os.system"), "os.system"),
        (_module_type("sentence_transformers.models.CLIPModel"), "CLIPModel"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
        (_truncate, "model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "at least 8"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "declares a header"),
        (_index_without_its_shard, "model-1.safetensors"),
        (lambda f: (f / "pytorch_model.bin").write_bytes(b"\x80"), "pytorch_model.bin"),
        (lambda f: (f / "modeling.py").write_text(""), "modeling.py"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
    ],
)
def test_each_obstacle_is_a_reason(folder: Path, change: Callable[[Path], object], named: str) -> None:
    change(folder)
    seen = inspect(folder)
    assert not seen.compatible
    assert {reason.code for reason in seen.reasons} == {Code.RUNTIME_INCOMPATIBLE}
    assert any(named in reason.message for reason in seen.reasons), seen.reasons


def test_shards_are_counted_together(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name in ("x", "y"):
        (folder / f"{name}.safetensors").write_bytes(safetensors({name: [10]}))
    index = {"weight_map": {"x": "x.safetensors", "y": "y.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert inspect(folder).parameters == 20


def test_what_has_no_adapter_is_incompatible(folder: Path) -> None:
    for adapter, task in (("tensorrt_llm", "text_generation"), ("sentence_transformers", "text_generation")):
        seen = registry.inspect(adapter, task, folder, [])
        assert [reason.code for reason in seen.reasons] == [Code.RUNTIME_INCOMPATIBLE]


def test_header_lies_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for entry in (
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]},
        {"dtype": "Q9", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4]},
        7,
    ):
        raw = json.dumps({"a": entry}).encode()
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(16))
        with pytest.raises(MalformedHeader):
            read_header(path)


def test_importing_the_adapters_imports_no_runtime() -> None:
    import subprocess
    import sys

    check = "import sys, worker.agent; sys.exit(any(n in sys.modules for n in ('torch', 'transformers', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
