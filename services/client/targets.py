"""Where deployments are served and for how long a worker may take, as the tables say it, so that they are asked seldom.

* What is remembered of a place is a node and a generation to ask, never an answer: the worker decides whether it holds
  the deployment. It is at most TARGETS_SECONDS_MAX old, of TARGETS_MAX deployments, and forgotten with any refusal.
* A profile never changes, so its `invoke_ms` is asked for once, together with the first look for a place. Where it
  can't be had, it is not known until the tables are asked again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from projections.rows import DeploymentRow, NodeRow, ResidencyRow, Row
from schemas.codes import Refusal
from schemas.queries import Query, QueryReply
from services.client.invoking import Targets

TARGETS_SECONDS_MAX = 5.0
TARGETS_MAX = 256

Key = tuple[str, str | None]  # deployment and the node that is wanted, if one is
R = TypeVar("R", bound=Row)


class Tables(Protocol):
    """What is asked of the client itself."""

    async def query(self, table: str, query: Query | None = None) -> QueryReply: ...

    async def rows(self, row: type[R], where: dict[str, str] | None = None) -> list[R]: ...


class KnownTargets:
    """Of one client."""

    def __init__(self, tables: Tables, clock: Callable[[], float] = time.monotonic) -> None:
        self._tables = tables
        self._clock = clock
        self._known: dict[Key, tuple[float, Targets]] = {}
        self._invoke_ms: dict[str, int] = {}  # of profiles

    @contextlib.contextmanager
    def of(self, key: Key) -> Iterator[Targets]:
        """Empty where they are not known. A refusal inside forgets them."""
        at, targets = self._known.get(key, (0.0, ()))
        try:
            yield targets if self._clock() - at < TARGETS_SECONDS_MAX else ()
        except Refusal:
            self._known.pop(key, None)
            raise

    async def look_up(self, deployment: DeploymentRow, node_id: str | None) -> Targets:
        """Its nodes and their generations, those the log calls resident first. The log only orders them."""
        held = await self._tables.rows(ResidencyRow, {"deployment_id": deployment.id})
        resident = {row.node_id for row in held if row.state == "resident"}
        nodes = {node.id: node for node in await self._tables.rows(NodeRow)}
        wanted = [node for node in deployment.node_ids if node in nodes and node_id in (None, node)]
        wanted.sort(key=lambda node: node not in resident)
        targets = [(node, nodes[node].generation) for node in wanted if nodes[node].generation != "0"]
        if deployment.profile_id not in self._invoke_ms:
            await self._look_up_profile(deployment.profile_id)
        if len(self._known) >= TARGETS_MAX:
            self._known.clear()
        self._known[(deployment.id, node_id)] = self._clock(), targets
        return targets

    def invoke_ms(self, deployment: DeploymentRow) -> int | None:
        """What its profile allows one invocation; None where that isn't known."""
        return self._invoke_ms.get(deployment.profile_id)

    async def _look_up_profile(self, profile_id: str) -> None:
        try:
            reply = await self._tables.query("profile", Query(where={"id": profile_id}, limit=1))
        except Refusal:  # its golden probes may be too large for a message
            return
        invoke_ms = _invoke_ms(reply.rows[0]) if reply.rows else None
        if invoke_ms is not None:
            if len(self._invoke_ms) >= TARGETS_MAX:
                self._invoke_ms.clear()
            self._invoke_ms[profile_id] = invoke_ms


def _invoke_ms(row: dict[str, Any]) -> int | None:
    """Read by itself: a profile of another release may have settings that are not known here."""
    try:
        found = row["profile"]["limits"]["invoke_ms"]
    except (KeyError, TypeError):
        return None
    return found if isinstance(found, int) and found > 0 else None
