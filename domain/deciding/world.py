"""World: the folded streams a decision may look at, with the time and the ids it may use.

`get` raises NotLoaded for a stream that is not in memory. The caller loads it from the log and decides
again from the start: deciding has no effects, so it may be repeated.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from domain.folding.fleet import Fleet
from domain.folding.states import State, stream_of
from schemas.commands import Command

S = TypeVar("S", bound=State)


class NotLoaded(LookupError):
    """The decision needs this stream."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream


class Ids(Protocol):
    """A source of identifiers and secrets."""

    def token(self) -> str:
        """A new subject-safe id, unique for all practical purposes."""

    def secret(self) -> str:
        """A new unguessable string of at least 128 bits."""


class Limits(Protocol):
    """Terms the control plane grants, in milliseconds, and what it keeps free."""

    @property
    def lease_ms(self) -> int:
        """The term of a work lease."""

    @property
    def session_ms(self) -> int:
        """The term of a worker session."""

    @property
    def beat_ms(self) -> int:
        """How often a worker should send a heartbeat."""

    @property
    def queue_ms(self) -> int:
        """How long work may wait for a claim, each time it is queued."""

    @property
    def device_reserve_bytes(self) -> int:
        """What is left free on every device, whatever is asked for."""


class World:
    """`states` maps a stream id to its state, None for a stream that is known to be empty.

    `complete` says that every stream of the log is in it, so what is not there does not exist.
    """

    def __init__(self, fleet: Fleet, ids: Ids, limits: Limits) -> None:
        self.states: dict[str, State | None] = {}
        self.versions: dict[str, int] = {}
        self.complete = False
        self.fleet = fleet
        self.ids = ids
        self.limits = limits
        self.now_ms = 0

    def get(self, kind: type[S], noun: str, ident: str) -> S | None:
        """The state of `<noun>-<ident>`, None where it does not exist. Raises NotLoaded."""
        stream = stream_of(noun, ident)
        try:
            state = self.states[stream]
        except KeyError:
            if self.complete:
                return None
            raise NotLoaded(stream) from None
        return state if isinstance(state, kind) else None

    def stamp(self, command: Command) -> dict[str, Any]:
        """The fields every event takes from its command and its moment."""
        return {
            "at_ms": self.now_ms,
            "command_id": command.command_id,
            "actor": command.actor,
            "traceparent": command.traceparent,
        }
