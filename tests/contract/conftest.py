"""What the contract suites of the adapters share: every model of the showcase, its files, and a copy to be spoiled."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import pytest

from services.showcase.model import Model
from tests.showcase import as_parameters
from worker.adapters import registry


@pytest.fixture(scope="session")
def libraries() -> None:
    """What the libraries say while they are imported is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in {each for entry in registry.ENTRIES.values() for each in entry.imports}:
            __import__(name)


@pytest.fixture(scope="module", params=as_parameters())
def model(request: pytest.FixtureRequest) -> Model:
    chosen: Model = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(model: Model, libraries: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's files. Not to be changed: see `copy`."""
    made = tmp_path_factory.mktemp("model") / model.name
    made.mkdir()
    model.build(made)
    return made


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """Links to the model's files: to be replaced, never written to."""
    shutil.copytree(folder, tmp_path / "copy", copy_function=os.link)
    return tmp_path / "copy"
