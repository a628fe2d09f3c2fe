"""The showcase's models as parameters of tests: the first of each adapter and task always, the others when thorough."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from services.showcase import every_model, principal_models
from services.showcase.model import Model

EVERY_MODEL = every_model()
_PRINCIPAL = frozenset(model.name for model in principal_models())


def as_parameters(models: Iterable[Model] = EVERY_MODEL) -> list[Any]:
    return [
        pytest.param(model, id=model.name, marks=() if model.name in _PRINCIPAL else pytest.mark.thorough)
        for model in models
    ]
