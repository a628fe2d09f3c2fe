"""Small models of real architectures, made by the real libraries from configurations, for tests.

Each module makes one architecture and says how the library itself answers: `MODELS` lists what it offers. A module is
part of the adapters' contract suite once it is named here.
"""

from __future__ import annotations

import importlib

from tests.models.model import Model

MODULES = ("minilm", "cross_encoder", "generation", "whisper", "speech", "trocr", "siglip2", "diffusion")


def every_model() -> list[Model]:
    """The models of all modules, in their order."""
    return [model for name in MODULES for model in importlib.import_module(f"tests.models.{name}").MODELS]
