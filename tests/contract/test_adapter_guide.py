"""The adapter that docs/guide/adapters.md walks through: taken from the page, and put through the contract suite."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from services.showcase.model import Model
from tests.contract import test_adapter_inspection, test_adapters
from worker.adapters import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "adapters.md"
BLOCKS = {
    block.partition("\n")[0].removeprefix("# "): block
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
}
ENTRIES = dict(registry.ENTRIES)  # without the example
ADAPTER, SHOWCASE = "worker.adapters.text.static_embeddings", "services.showcase.static_embeddings"


def _imported(name: str, folder: Path, patch: pytest.MonkeyPatch) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(BLOCKS[name.replace(".", "/") + ".py"])
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example(libraries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Its model, with the adapter in the registry for as long."""
    folder = tmp_path_factory.mktemp("guide")
    with pytest.MonkeyPatch.context() as patch:
        _imported(ADAPTER, folder, patch)
        entry = eval(BLOCKS["an entry of ENTRIES in worker/adapters/registry.py"], {"Entry": registry.Entry})
        patch.setitem(registry.ENTRIES, "static_embeddings", entry)
        (model,) = _imported(SHOWCASE, folder, patch).MODELS
        yield model


@pytest.fixture(scope="module")
def its_folder(example: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("example")
    example.build(made)
    return made


def _contract() -> Iterator[Any]:
    for module in (test_adapters, test_adapter_inspection):
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("test_") or "importing" in name:
                continue
            if "put" in inspect.signature(test).parameters:
                obstacles = test_adapter_inspection.OBSTACLES
                yield from (pytest.param(test, put, id=f"{name}-{put.__name__.strip('_')}") for put in obstacles)
            else:
                yield pytest.param(test, None, id=name)


@pytest.mark.parametrize(("test", "put"), list(_contract()))
def test_the_example_keeps_the_contract(
    example: Model, its_folder: Path, tmp_path: Path, test: Callable[..., None], put: object
) -> None:
    adapter = registry.adapter_of("static_embeddings")
    adapter.prepare(example.profile)
    facts = adapter.start(its_folder)
    work = tmp_path / "work"
    work.mkdir()
    given = {
        "model": example,
        "folder": its_folder,
        "copy": shutil.copytree(its_folder, tmp_path / "copy"),
        "adapter": adapter,
        "started": (adapter, facts),
        "tmp_path": work,
        "put": put,
    }
    try:
        test(**{name: given[name] for name in inspect.signature(test).parameters})
    finally:
        adapter.unload()


def test_the_page_names_every_adapter() -> None:
    page = PAGE.read_text()
    for name, entry in ENTRIES.items():
        assert f"| `{name}` |" in page
        assert all(f"`{task}`" in page for task in entry.tasks)
    assert all(f"`{name}`" in page for name in registry.RECOGNISED)


def test_the_page_names_every_decoder() -> None:
    from worker.adapters.text.generation_files import ARCHITECTURES

    page = " ".join(PAGE.read_text().split())
    listed = ", ".join(f"`{name}`" for name in sorted(ARCHITECTURES))
    assert f"these model types: {listed}." in page
    assert f"{len(ARCHITECTURES)} decoder architectures" in page
