"""Safeguards taken out, one at a time, to see that the checkers bite.

Each is a patch of production code that a careless change could amount to. `test_mutations.py` tells stories
under it until one breaks; a mutation that no story notices would mean that its safeguard is not tested.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from msgspec.structs import replace

import domain.evidence
import domain.folding.fencing
import domain.leases
from services.eventlog.memory import MemoryLog


def _patched(names: dict[str, Any]) -> Callable[[], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def patch() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, replacement in names.items():
                stack.enter_context(mock.patch(name, replacement))
            yield

    return patch


_fence_work = domain.folding.fencing.fence_work
_claim_refused = domain.leases._claim_refused
_append = MemoryLog.append


def _any_generation(work: Any, generation: str, attempt: int, at_ms: int) -> Any:
    held = work.lease.generation if work.lease is not None else generation
    return _fence_work(work, held, attempt, at_ms)


def _any_attempt(work: Any, generation: str, attempt: int, at_ms: int) -> Any:
    held = work.lease.attempt if work.lease is not None else attempt
    return _fence_work(work, generation, held, at_ms)


def _claimed_by_anyone(command: Any, work: Any, node: Any) -> Any:
    return _claim_refused(replace(command, generation=node.generation) if node else command, work, node)


async def _append_without_receipts(self: Any, events: Any, receipts: Any, epoch: int) -> Any:
    return await _append(self, events, [], epoch)


async def _append_for_anyone(self: Any, events: Any, receipts: Any, epoch: int) -> Any:
    return await _append(self, events, receipts, self._leader.epoch)


MUTATIONS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "generation check": _patched(
        {
            "domain.evidence.fence_session": lambda node, generation: None,
            "domain.evidence.fence_work": _any_generation,
            "domain.folding.fold.fence_work": _any_generation,
            "domain.leases._claim_refused": _claimed_by_anyone,
        }
    ),
    "attempt check": _patched(
        {"domain.evidence.fence_work": _any_attempt, "domain.folding.fold.fence_work": _any_attempt}
    ),
    "self-stop": _patched({"worker.session.margin_ms": lambda term_ms: -1e12}),  # its term never ends
    "receipt": _patched(
        {
            "services.control.writer.Writer._remember": lambda self, command_id, receipt: None,
            "services.eventlog.memory.MemoryLog.append": _append_without_receipts,
        }
    ),
    "epoch check": _patched({"services.eventlog.memory.MemoryLog.append": _append_for_anyone}),
}
