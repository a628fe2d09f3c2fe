"""Static inspection by every adapter, on real files: the facts, and each obstacle as a typed reason.

Nothing is loaded but where it is shown that a load runs no code of the folder either.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.codes import Code
from schemas.tasks.requests import REQUEST_OF
from services.showcase.model import Model, files_of
from worker.adapters import registry
from worker.adapters.contract import Inspection

FOREIGN_TYPE = "dinov2"  # real, in the library, and no adapter's


def inspect(model: Model, folder: Path) -> Inspection:
    return registry.inspect(model.profile.adapter, model.profile.task, folder, files_of(folder))


def test_inspection_says_compatible_and_the_facts(model: Model, folder: Path) -> None:
    seen = inspect(model, folder)
    assert seen.compatible, seen.reasons
    assert seen.architecture
    assert seen.parameters
    assert seen.weights_bytes == sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


def test_the_same_bytes_are_built_each_time(model: Model, folder: Path, tmp_path: Path) -> None:
    """Else a digest of them would name nothing."""
    model.build(tmp_path)
    assert files_of(tmp_path) == files_of(folder)
    for entry in files_of(folder):
        assert (tmp_path / entry.path).read_bytes() == (folder / entry.path).read_bytes(), entry.path


def replace(path: Path, content: bytes) -> None:
    """A new file in the place of the link."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _cut(model: Model, folder: Path) -> str:
    weights = folder / model.weights
    replace(weights, weights.read_bytes()[:-1])
    return model.weights


def _no_weights(model: Model, folder: Path) -> str:
    (folder / model.weights).unlink()
    return model.weights


def _no_config(model: Model, folder: Path) -> str:
    (folder / model.config).unlink()
    return model.config


def _config_is_no_object(model: Model, folder: Path) -> str:
    replace(folder / model.config, b"[]")
    return model.config


def _foreign_type(model: Model, folder: Path) -> str:
    config = json.loads((folder / model.config).read_bytes())
    key = "model_type" if "model_type" in config else "_class_name"
    replace(folder / model.config, json.dumps({**config, key: FOREIGN_TYPE}).encode())
    return FOREIGN_TYPE


def _auto_map(model: Model, folder: Path) -> str:
    config = json.loads((folder / model.config).read_bytes())
    classes = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification", "AutoModelForCausalLM")
    config["auto_map"] = dict.fromkeys(classes, "canary.Canary")
    replace(folder / model.config, json.dumps(config).encode())
    return "auto_map"


def _pickle_beside(model: Model, folder: Path) -> str:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    return "pytorch_model.bin"


def _pickle_instead(model: Model, folder: Path) -> str:
    _no_weights(model, folder)
    return _pickle_beside(model, folder)


def _code(model: Model, folder: Path) -> str:
    (folder / "canary.py").write_text("")
    return "canary.py"


OBSTACLES: list[Callable[[Model, Path], str]] = [
    _cut, _no_weights, _no_config, _config_is_no_object, _foreign_type, _auto_map, _pickle_beside, _pickle_instead,
    _code,
]  # fmt: skip


@pytest.mark.parametrize("put", OBSTACLES, ids=[put.__name__.strip("_") for put in OBSTACLES])
def test_each_obstacle_is_a_reason(model: Model, copy: Path, put: Callable[[Model, Path], str]) -> None:
    named = put(model, copy)
    seen = inspect(model, copy)
    assert not seen.compatible
    assert {reason.code for reason in seen.reasons} == {Code.RUNTIME_INCOMPATIBLE}
    assert any(named in reason.message for reason in seen.reasons), seen.reasons


def test_all_obstacles_are_told_at_once(model: Model, copy: Path) -> None:
    named = [put(model, copy) for put in (_cut, _auto_map, _code, _pickle_beside)]
    messages = [reason.message for reason in inspect(model, copy).reasons]
    assert all(any(name in message for message in messages) for name in named), messages


def test_code_of_the_folder_is_never_run(model: Model, copy: Path, tmp_path: Path) -> None:
    """Not by inspection, and not by a load that did not wait for it."""
    _auto_map(model, copy)
    mark = tmp_path / "canary-ran"
    (copy / "canary.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Canary: pass\n")
    assert not inspect(model, copy).compatible
    with contextlib.suppress(Exception):  # how it fails is the library's, and it may as well load a class of its own
        adapter = registry.adapter_of(model.profile.adapter)
        adapter.prepare(model.profile)
        adapter.start(copy)
        adapter.unload()
    assert not mark.exists()


def test_another_task_has_a_reason(model: Model, folder: Path) -> None:
    others = set(REQUEST_OF) - set(registry.ENTRIES[model.profile.adapter].tasks)
    for task in others:
        seen = registry.inspect(model.profile.adapter, task, folder, files_of(folder))
        assert [reason.code for reason in seen.reasons] == [Code.RUNTIME_INCOMPATIBLE]


def test_importing_an_adapter_imports_no_runtime() -> None:
    modules = ", ".join(entry.path.partition(":")[0] for entry in registry.ENTRIES.values())
    heavy = "('torch', 'transformers', 'sentence_transformers', 'diffusers', 'numpy', 'PIL', 'soundfile')"
    check = f"import sys, {modules}; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
