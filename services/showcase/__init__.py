"""Small models of real architectures, made by the real libraries from configurations: for the demo and the tests.

Each module makes one architecture and says how the library itself answers: `MODELS` lists what it offers. A module is
part of the adapters' contract suite and of `tenure demo --all` once it is named here. ML libraries are imported only
when a model is made or asked.
"""

from __future__ import annotations

import importlib

from services.showcase.model import Model

MODULES = ("minilm", "cross_encoder", "generation", "whisper", "speech", "trocr", "siglip2", "diffusion")


def every_model() -> list[Model]:
    """The models of all modules, in their order."""
    return [model for name in MODULES for model in importlib.import_module(f"services.showcase.{name}").MODELS]


def principal_models() -> list[Model]:
    """Of each adapter and task the first; the others are further architectures of the same."""
    first: dict[tuple[str, str], Model] = {}
    for model in every_model():
        first.setdefault((model.profile.adapter, model.profile.task), model)
    return list(first.values())
