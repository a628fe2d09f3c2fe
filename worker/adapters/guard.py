"""What goes wrong with one request of a batch stays with that request.

Adapters compute several requests together, and prepare them one by one. An exception that left the adapter there would
be the answer to all of them. Inside `Guarded` it refuses the request that it came from: a Refusal with its own code,
memory that ran out as OUT_OF_MEMORY, anything else as INTERNAL_ERROR, with its traceback in the process's log.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import Protocol

from schemas.codes import Code, Refusal
from worker.model.frames import Refused

MESSAGE_CHARACTERS_MAX = 2_000

# What runtimes say when memory is short, where they have no exception type of their own for it.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "not enough memory")


class Answers(Protocol):
    """The batch's answers, or its refusals, by the number of the request."""

    def __setitem__(self, index: int, refused: Refused, /) -> None: ...


class Guarded:
    """What is raised inside is the answer to request `index`, and the batch goes on."""

    def __init__(self, index: int, answers: Answers) -> None:
        self._index = index
        self._answers = answers

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._answers[self._index] = refusal_of(error)
        return True


def refusal_of(error: Exception, otherwise: Code = Code.INTERNAL_ERROR) -> Refused:
    """`otherwise` is for what was not expected."""
    if isinstance(error, Refusal):
        return Refused(error.code, error.message)
    text = f"{type(error).__name__}: {error}"
    if _is_out_of_memory(error, text):
        return Refused(Code.OUT_OF_MEMORY, text[:MESSAGE_CHARACTERS_MAX])
    traceback.print_exception(error, file=sys.stderr)  # the parent keeps the end of it
    return Refused(otherwise, text[:MESSAGE_CHARACTERS_MAX])


def _is_out_of_memory(error: Exception, text: str) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(sign in text for sign in _OUT_OF_MEMORY)
