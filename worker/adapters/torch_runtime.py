"""What all adapters on torch have in common: the device, the threads, health, the end.

A subclass names its task's health request and does `load` and `answer`; this class does the rest of the contract:
torch is imported by `prepare` and never before, threads and device are the profile's, a health check is one real
inference whose output is checked and digested, and unloading empties the allocator's cache. Libraries are
`Any`: their types are not checked here.
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec import UnsetType

from schemas.artifacts import FileEntry
from schemas.codes import Code, Refusal
from schemas.evidence import Health
from schemas.profiles import RuntimeProfile
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import TextChunk
from worker.adapters.contract import Inspection, Turn
from worker.model.frames import Facts, Refused


class AloneTurn:
    """The turn of a health check: nobody stops it, nobody reads ahead."""

    def stopped(self, index: int) -> bool:
        return False

    def partial(self, index: int, chunk: TextChunk) -> None:
        return None


class TorchAdapter:
    """See the module."""

    LIBRARIES: ClassVar[tuple[str, ...]] = ("torch",)  # modules with a `__version__`, imported by `prepare`

    def __init__(self) -> None:
        self.torch: Any = None
        self.model: Any = None
        self._profile: RuntimeProfile | None = None
        self._stopped = False

    # What a subclass does.

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection:
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Read the weights into `self.model`."""
        raise NotImplementedError

    def health_request(self) -> Request:
        """A small input of the profile's task."""
        raise NotImplementedError

    def unsound(self, result: Result) -> str:
        """What is wrong with the answer to the health request, empty where nothing is."""
        raise NotImplementedError

    def answer(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        raise NotImplementedError

    def dimensions(self) -> int:
        return 0

    def max_length(self) -> int:
        return 0

    # The contract.

    @property
    def profile(self) -> RuntimeProfile:
        if self._profile is None:
            raise RuntimeError("prepare comes first")
        return self._profile

    @property
    def device(self) -> str:
        return f"cuda:{self.profile.device_index}" if self.profile.device == "cuda" else "cpu"

    @property
    def dtype(self) -> Any:
        return getattr(self.torch, self.profile.dtype)

    def attention(self) -> dict[str, str]:
        """The keyword that sets the attention code, where the profile chooses it."""
        chosen = self.profile.attention
        return {} if isinstance(chosen, UnsetType) else {"attn_implementation": chosen}

    def prepare(self, profile: RuntimeProfile) -> dict[str, str]:
        import importlib

        import torch

        self.torch, self._profile = torch, profile
        torch.set_num_threads(profile.threads)
        versions: dict[str, str] = {}
        for name in self.LIBRARIES:
            module = importlib.import_module(name)
            versions[name.replace("_", "-")] = str(module.__version__)
            if name == "transformers":
                module.logging.set_verbosity_error()
                module.logging.disable_progress_bar()
        if profile.device == "cuda" and not torch.cuda.is_available():
            raise Refusal(Code.LOAD_FAILED, "the profile runs on cuda and torch sees no usable CUDA device")
        return versions

    def start(self, folder: Path) -> Facts:
        self.load(folder)
        return self.collect_runtime_facts()

    def collect_runtime_facts(self) -> Facts:
        return Facts(
            dimensions=self.dimensions(),
            max_length=self.max_length(),
            parameters=self.parameters(),
        )

    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def probe(self) -> str:
        torch = self.torch
        ones = torch.ones(8, dtype=self.dtype, device=self.device)
        total = float((ones + ones).sum())
        return "" if total == 16.0 else f"a sum on {self.device} gave {total} where 16 is right"

    def health(self) -> Health:
        begun = time.perf_counter()
        wrong = self.probe()
        if wrong:
            return Health(True, False, False, False, _elapsed_ms(begun), detail=wrong)
        result = self.invoke([self.health_request()], AloneTurn())[0]
        latency_ms = _elapsed_ms(begun)
        if isinstance(result, Refused):
            return Health(True, True, True, False, latency_ms, detail=f"{result.code}: {result.message}")
        wrong = self.unsound(result)
        if wrong:
            return Health(True, True, True, False, latency_ms, detail=wrong)
        digest = hashlib.sha256(msgspec.msgpack.encode(result)).hexdigest()
        dimensions = self.dimensions() or None
        return Health(True, True, True, True, latency_ms, output_digest=digest, output_dimensions=dimensions)

    def invoke(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        if self._stopped:
            return [Refused(Code.DRAINING, "the model takes no more invocations") for _ in requests]
        return self.answer(requests, turn)

    def stop(self) -> None:
        self._stopped = True

    def unload(self) -> None:
        self.stop()
        self.model = None
        gc.collect()
        if self.torch is not None and self.profile.device == "cuda":
            self.torch.cuda.empty_cache()


def _elapsed_ms(begun: float) -> float:
    return (time.perf_counter() - begun) * 1_000.0
