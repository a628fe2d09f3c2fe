"""The control plane's own commands: what the clock or a comparison has made necessary, one outstanding of each.

The loops that find them look again and again, several times a second, and find the same ones until they are in the
log. While the writer is busy, or the log is away, each is waiting in its queue once; a further one of the same kind
about the same thing is not submitted before the first has been answered, however it was answered.
"""

from __future__ import annotations

from domain.deciding.naming import named_streams
from schemas.commands import Command
from schemas.replies import Reply
from services.control.submission import Submission
from services.control.writer import Writer

Key = tuple[type[Command], tuple[str, ...]]


class OwnCommands:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._outstanding: set[Key] = set()

    async def submit(self, command: Command) -> bool:
        """Hand it to the writer; False where one like it is on its way."""
        key = (type(command), tuple(named_streams(command)))
        if key in self._outstanding:
            return False
        self._outstanding.add(key)

        async def answered(_: Reply) -> None:  # what it changed is in the log, and if nothing, it is found again
            self._outstanding.discard(key)

        await self._writer.submit(Submission(command, answered, receipt=False))
        return True
