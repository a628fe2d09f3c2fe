"""No code of a model's folder and no pickle under any name: each is a reason, and nothing harmless is."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.codes import Code
from worker.adapters.folder_rules import JSON_BYTES_MAX, pickle_reasons, remote_code_reasons


class Canary:
    """Unpickled, it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.mark), "w"))


def paths_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def write(folder: Path, name: str, content: bytes | str | dict[str, Any] | list[Any]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(content)


def safetensors(header: dict[str, Any] | None = None, pad_to: int | None = None) -> bytes:
    described = header or {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    raw = json.dumps(described).encode()
    raw += b" " * (max(pad_to or 0, len(raw)) - len(raw))
    return struct.pack("<Q", len(raw)) + raw + bytes(8)


def array(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def array_header(described: str) -> bytes:
    text = f"{{'descr': {described}, 'fortran_order': False, 'shape': (1,)}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


CANARY_PIPELINE = {"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet2DConditionModel"]}
ASKS_FOR_CODE: list[tuple[str, Any, str]] = [
    ("modeling.py", "", "modeling.py"),
    ("deep/er/kernel.SO", b"\x7fELF", "kernel.SO"),
    ("__pycache__/modeling.cpython-311.pyc", b"", ".pyc"),
    ("config.json", {"auto_map": {"AutoModel": "modeling.Model"}}, "auto_map"),
    ("config.json", {"vision": {"text": {"auto_map": {}}}}, "auto_map"),
    ("config.4.57.0.json", {"auto_map": {}}, "auto_map"),
    ("tokenizer_config.json", {"auto_map": ["tokenizing.Slow", None]}, "auto_map"),
    ("processor_config.json", {"image_processor": {"auto_map": {}}}, "auto_map"),
    ("preprocessor_config.json", {"auto_map": {}}, "auto_map"),
    ("video_preprocessor_config.json", {"auto_map": {}}, "auto_map"),
    ("2_Dense/config.json", {"auto_map": {}}, "auto_map"),
    ("config.json", {"custom_pipelines": {"x": {"impl": "pipe.Pipe"}}}, "custom_pipelines"),
    ("adapter_config.json", {"auto_mapping": {"parent_library": "os"}}, "auto_mapping"),
    ("sentence_bert_config.json", {"model_args": {"trust_remote_code": True}}, "trust_remote_code"),
    ("config.json", {"_attn_implementation": "somebody/attention"}, "repository"),
    ("config.json", {"attn_implementation": {"text": "somebody/attention"}}, "attn_implementation"),
    ("2_Dense/config.json", {"activation_function": "os.abort"}, "os.abort"),
    ("config.json", {"sbert_ce_default_activation_function": "torch.hub.load"}, "torch.hub.load"),
    ("config.json", {"sentence_transformers": {"activation_fn": "canary.Run"}}, "canary.Run"),
    ("modules.json", [{"path": "", "type": "canary.Module"}], "canary.Module"),
    ("modules.json", [{"path": ""}], "None"),
    ("model_index.json", {**CANARY_PIPELINE, "_class_name": ["pipeline", "Mine"]}, "pipeline class"),
    ("model_index.json", {**CANARY_PIPELINE, "unet": ["canary", "Unet"]}, "canary"),
    ("model_index.json", {**CANARY_PIPELINE, "unet": ["os.path", "Unet"]}, "os.path"),
    ("modular_model_index.json", {**CANARY_PIPELINE, "unet": ["canary", "Unet", {}]}, "canary"),
    ("config.json", "{", "not what is expected"),
    ("config.json", "\ufeff{}", "not what is expected"),
    ("config.json", b"\xff\xfe{\x00}\x00", "not what is expected"),
    ("config.json", "[" * 100_000 + "]" * 100_000, "config.json"),
    ("config.json", '{"a":' * 100 + "1" + "}" * 100, "nested"),
    ("config.json", " " * (JSON_BYTES_MAX + 1), "over"),
]
HARMLESS_CONFIGURATIONS: list[tuple[str, Any]] = [
    ("config.json", {"model_type": "bert", "hidden_act": "gelu", "_attn_implementation": "sdpa"}),
    ("config.json", '{"time_step_limit": [0.0, Infinity], "x": NaN}'),
    ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.Tanh"}),
    ("config.json", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
    ("config.json", {"activation_function": "gelu_new", "trust_remote_code": False}),
    ("modules.json", [{"path": "", "type": "sentence_transformers.models.Transformer"}]),
    (
        "model_index.json",
        {
            **CANARY_PIPELINE,
            "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
            "feature_extractor": [None, None],
            "tokenizer": ["transformers", "CLIPTokenizer"],
            "requires_safety_checker": True,
        },
    ),
    ("tokenizer.json", {"auto_map": "a word of the vocabulary"}),
    ("README.md", "auto_map"),
    ("merges.txt", "c l a s s"),
]


@pytest.mark.parametrize(("name", "content", "named"), ASKS_FOR_CODE)
def test_what_asks_for_code_is_a_reason(tmp_path: Path, name: str, content: Any, named: str) -> None:
    write(tmp_path, name, content)
    reasons = remote_code_reasons(tmp_path, paths_of(tmp_path))
    assert reasons
    assert {reason.code for reason in reasons} == {Code.RUNTIME_INCOMPATIBLE}
    assert any(name in reason.message and named in reason.message for reason in reasons), reasons


@pytest.mark.parametrize(("name", "content"), HARMLESS_CONFIGURATIONS)
def test_what_asks_for_none_is_not(tmp_path: Path, name: str, content: Any) -> None:
    write(tmp_path, name, content)
    assert remote_code_reasons(tmp_path, paths_of(tmp_path)) == []
    assert pickle_reasons(tmp_path, paths_of(tmp_path)) == []


def test_a_configuration_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    (reason,) = remote_code_reasons(tmp_path, paths_of(tmp_path))
    assert "no regular file" in reason.message


def test_what_is_missing_is_for_others_to_say(tmp_path: Path) -> None:
    assert remote_code_reasons(tmp_path, {"config.json"}) == []
    assert pickle_reasons(tmp_path, {"model.safetensors"}) == []


TORCH_ZIP = {"archive/data.pkl": pickle.dumps({}), "archive/version": b"3"}
PICKLED: list[tuple[str, Callable[[Path], bytes], str]] = [
    ("pytorch_model.bin", lambda _: b"", "pickle"),
    ("deep/er/WEIGHTS.Pt", lambda _: b"", "pickle"),
    ("a.ckpt", lambda _: b"", "pickle"),
    *(
        (name, lambda mark, protocol=protocol: pickle.dumps(Canary(mark), protocol), "pickle by its content")  # type: ignore[misc]
        for protocol in range(6)
        for name in ("model.safetensors", "weights", "vocab.txt")
    ),
    ("model.safetensors", lambda _: zipped(TORCH_ZIP), "zip archive"),
    ("tokenizer.model", lambda _: zipped(TORCH_ZIP), "zip archive"),
    ("model.safetensors", lambda _: tarred({"pickle": b""}), "tar archive"),
    ("voice.npy", lambda mark: array(np.array([Canary(mark)], dtype=object)), "pickled objects"),
    (
        "voice.npy",
        lambda mark: array(np.array([(1, Canary(mark))], dtype=[("a", "i4"), ("b", "O")])),
        "pickled objects",
    ),
    ("voice.npy", lambda _: b"\x93NUMPY\x01\x00\x0a\x01" + b"{'descr': '\\x7c\\x4f'}".ljust(266), "pickled objects"),
    ("voice.npy", lambda _: array_header("('O', (2,))"), "pickled objects"),
    ("voice.npy", lambda _: array_header("[('a', [('b', 'O')])]"), "pickled objects"),
    ("voice.npy", lambda _: b"\x93NUMPY\x01\x00\x10\x00 not a literal", "pickled objects"),
    ("voices.npz", lambda mark: zipped({"a.npy": array(np.array([Canary(mark)], dtype=object))}), "a.npy"),
    ("voices.npz", lambda _: zipped({"a.pkl": pickle.dumps({})}), "a.pkl"),
    ("voices.npz", lambda _: b"PK\x03\x04 and nothing more", "can't be read"),
]


@pytest.mark.parametrize(("name", "content", "named"), PICKLED)
def test_a_pickle_under_any_name_is_a_reason(
    tmp_path: Path, name: str, content: Callable[[Path], bytes], named: str
) -> None:
    folder, mark = tmp_path / "folder", tmp_path / "canary-ran"
    write(folder, name, content(mark))
    reasons = pickle_reasons(folder, paths_of(folder))
    assert [reason.code for reason in reasons] == [Code.RUNTIME_INCOMPATIBLE]
    assert name in reasons[0].message
    assert named in reasons[0].message
    assert not mark.exists()


HARMLESS: list[tuple[str, bytes]] = [
    ("model.safetensors", safetensors()),
    # Headers whose length reads like the beginning of a pickle and of a zip archive's name.
    ("model.safetensors", safetensors(pad_to=0x0280)),
    ("model.safetensors", safetensors(pad_to=0x1_0480)),
    ("voice.npy", array(np.zeros((2, 3), dtype="<f4"))),
    ("voice.npy", array(np.zeros(2, dtype=[("On", "f4"), ("b", "<U5")]))),
    ("voices.npz", zipped({"a.npy": array(np.zeros(3))})),
    ("spiece.model", b"\x0a\x0e\x0a\x05<unk>\x15\x00"),
    ("vocab.txt", b"(\n.\nc\nthe\n"),
    ("merges.txt", b"#version: 0.2\n"),
    ("empty", b""),
    ("one", b"\x80"),
]


@pytest.mark.parametrize(("name", "content"), HARMLESS)
def test_what_is_no_pickle_is_not(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path, name, content)
    assert pickle_reasons(tmp_path, paths_of(tmp_path)) == []


def test_a_file_that_cannot_be_looked_into_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "weights")
    (reason,) = pickle_reasons(tmp_path, paths_of(tmp_path))
    assert "can't be looked into" in reason.message
