"""EventLog: what the writer, the relay, the projector and an auditor need of a log.

Appending is atomic over all streams and receipts of a group, optimistic per stream, refused to a writer
whose epoch is over, and serialised: positions grow in commit order, so who reads after position p never
misses an event that commits later with a smaller one. Positions may have gaps.

One contract suite (`tests/contract`) runs on the in-memory and on the Postgres log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class NewEvent(NamedTuple):
    """An encoded event for `stream` at `version` (1 for the first)."""

    stream: str
    version: int
    topic: str
    state: bytes


class LogRow(NamedTuple):
    """An event as the log has it. `position` orders the whole log."""

    position: int
    stream: str
    version: int
    topic: str
    state: bytes


class NewReceipt(NamedTuple):
    """The outcome of one command. `last_event` is its last event's index in the appended batch, None for none."""

    command_id: str
    body_sha256: bytes
    outcome: bytes
    last_event: int | None


class Receipt(NamedTuple):
    body_sha256: bytes
    outcome: bytes
    position: int | None


class Leader(NamedTuple):
    """Who writes. `silent_ms` is how long ago it last said so, on the log's own clock."""

    epoch: int
    holder: str
    silent_ms: int


class LogError(Exception):
    """Base of what can go wrong with a log. Tree: VersionConflict, ReceiptExists, Superseded, LogUnavailable."""


class VersionConflict(LogError):
    """A stream has an event at this version already. Nothing was appended."""


class ReceiptExists(LogError):
    """A command id has a receipt already: a duplicate, or a commit that landed though its reply was lost."""


class Superseded(LogError):
    """Another writer has a newer epoch. Nothing was appended, and nothing ever will be by this one."""


class LogUnavailable(LogError):
    """The database cannot be reached. An append may have landed or not, and lands no later; its receipts tell."""


class EventLog(Protocol):
    """Bounds are the caller's: `limit` rows per read, the size of a batch per append."""

    async def append(self, events: Sequence[NewEvent], receipts: Sequence[NewReceipt], epoch: int) -> list[int]:
        """Append all or nothing; the positions of `events`, in order. Raises a LogError."""

    async def read(self, after: int, limit: int) -> list[LogRow]:
        """At most `limit` events with a position above `after`, in order."""

    async def read_streams(self, streams: Sequence[str], up_to: int | None = None) -> list[LogRow]:
        """All events of these streams, in log order, no further than position `up_to`."""

    async def receipts(self, command_ids: Sequence[str]) -> dict[str, Receipt]:
        """The receipts there are among these."""

    async def last_position(self) -> int:
        """The position of the newest event, 0 for an empty log."""

    async def leader(self) -> Leader:
        """Who holds the epoch now. Epoch 0 of `nobody` before the first."""

    async def take_epoch(self, holder: str, expected: int | None = None) -> int | None:
        """Become the writer: a new epoch, which ends every older one at once.

        With `expected` only if the epoch is still that one, else None: of two that stand by, one wins.
        """

    async def renew_epoch(self, epoch: int) -> bool:
        """Say that the holder of `epoch` lives; False where the epoch is over."""

    async def close(self) -> None:
        """Give connections back. The log cannot be used afterwards; closing again does nothing."""
