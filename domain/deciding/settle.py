"""From an accepted outcome to changes that count: each event folded onto its stream before it is appended.

What would be stale at replay is never written. The first event is what the command was for; if that one
does not count, deciding and folding disagree, which is a defect and raises. A consequence on another
stream that no longer applies (the residency was lost meanwhile, say) is left out.
"""

from __future__ import annotations

from typing import NamedTuple

from domain.deciding.outcomes import Accepted
from domain.deciding.world import NotLoaded, World
from domain.folding.fold import fold
from domain.folding.states import State
from schemas.events import DeploymentCreated, Event, WorkRequested

# Their ids were made while deciding, so their streams are empty; the log's key catches a collision.
FRESH: tuple[type[Event], ...] = (WorkRequested, DeploymentCreated)


class Change(NamedTuple):
    """One event at its place: `version` in `stream`, with the state on either side."""

    stream: str
    version: int
    event: Event
    before: State | None
    after: State | None


def settle(accepted: Accepted, world: World) -> list[Change]:
    """The changes to append, in order. Changes nothing in `world`; raises NotLoaded."""
    changes: list[Change] = []
    latest: dict[str, tuple[State | None, int]] = {}
    for number, (stream, event) in enumerate((r.stream, r.event) for r in accepted.events):
        if stream in latest:
            before, version = latest[stream]
        elif stream in world.states:
            before, version = world.states[stream], world.versions.get(stream, 0)
        elif isinstance(event, FRESH) or world.complete:
            before, version = None, 0
        else:
            raise NotLoaded(stream)
        after, reason = fold(before, event)
        if reason is not None:
            if number == 0:
                raise RuntimeError(f"{type(event).__name__} on {stream} would not count: {reason}")
            continue
        changes.append(Change(stream, version + 1, event, before, after))
        latest[stream] = (after, version + 1)
    return changes


def enact(changes: list[Change], world: World) -> None:
    """Let the world be as if `changes` had been read from the log."""
    for change in changes:
        world.states[change.stream] = change.after
        world.versions[change.stream] = change.version
        world.fleet.note(change.before, change.after)
