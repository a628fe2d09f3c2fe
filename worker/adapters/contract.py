"""What every runtime adapter does, in the order it's done.

    inspect_support   in the parent, from the files alone: can this set run at all?
    prepare           in the child, confined: import the runtime, as far as a copy of the fork server has not
    start             in the child: read the weights
    probe             is the runtime usable on this device, without the model?
    health            one small real inference
    invoke            invocations: typed requests of the task, typed results
    stop              take no more invocations
    unload            drop the model
    collect_runtime_facts   what the loaded runtime says of itself

`inspect_support` must not import the runtime; the rest runs only in a model process. Expected failures
raise `schemas.codes.Refusal`; anything else that leaves an adapter is reported as LOAD_FAILED or
INTERNAL_ERROR by the child's loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from schemas.artifacts import FileEntry
from schemas.evidence import Health, Reason
from schemas.profiles import RuntimeProfile
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import TextChunk
from worker.model.frames import Facts, Refused


class Inspection(Struct, frozen=True):
    """The outcome of static inspection. Facts are None where the files don't tell; `details` are others, in words."""

    reasons: list[Reason] = []
    architecture: str | None = None
    parameters: int | None = None
    weights_bytes: int | None = None
    dimensions: int | None = None
    max_length: int | None = None
    details: dict[str, str] = {}

    @property
    def compatible(self) -> bool:
        return not self.reasons


class Turn(Protocol):
    """The adapter's way to the askers while it computes one batch. `index` counts the batch's requests."""

    def stopped(self, index: int) -> bool:
        """Whether nobody waits for this request any more. Cheap: to be asked at each step of a long computation."""
        ...

    def partial(self, index: int, chunk: TextChunk) -> None:
        """Send a piece of the answer ahead."""
        ...


class RuntimeAdapter(Protocol):
    """One instance serves one profile in one process."""

    def inspect_support(self, folder: Path, files: list[FileEntry], task: str) -> Inspection: ...

    def prepare(self, profile: RuntimeProfile) -> dict[str, str]: ...

    def start(self, folder: Path) -> Facts: ...

    def probe(self) -> str:
        """Empty when the device computes, else what is wrong."""
        ...

    def health(self) -> Health: ...

    def invoke(self, requests: Sequence[Request], turn: Turn) -> list[Result | Refused]:
        """One result or refusal for each request, in order: what is wrong with one never touches another.

        Raises only for what concerns the whole batch (out of memory, defects).
        """
        ...

    def stop(self) -> None: ...

    def unload(self) -> None:
        """Drop the model and give its memory back as far as the runtime does that. What came back is measured."""
        ...

    def collect_runtime_facts(self) -> Facts: ...
