"""One child of this process, seen by the event loop: the end of its output, and its exit, once.

The kernel tells of the exit through a pidfd, whoever started the process and however; its exit code is taken by
waiting for exactly that pid, never for any child. Before it is taken, what is left of the process's group is killed:
while the ended leader has not been waited for, the number of its group can't belong to anybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import structlog

OUTPUT_TAIL_BYTES_MAX = 4_096
OUTPUT_READS_MAX = 64  # how often what a pipe holds is read after the exit; a process that lives on may still write
READ_BYTES = 65_536
EXIT_UNKNOWN = 255  # somebody else waited for it
_log = structlog.get_logger(__name__)


class Watch:
    """Owns `output`, the reading end of the process's output, and the right to wait for `pid`."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid = pid
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._tail = bytearray()
        self._reading = True
        os.set_blocking(output, False)
        self._pidfd = os.pidfd_open(pid)
        self._loop.add_reader(output, self._read)
        self._loop.add_reader(self._pidfd, self._end)

    @property
    def output_tail(self) -> str:
        return self._tail.decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL to its group, or to itself where it has none yet. Nothing where it has ended."""
        if self.exited.done():
            return  # waited for: its number may be another's by now
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _read(self) -> bool:
        """Take what is there; False where there is nothing more."""
        try:
            chunk = os.read(self._output, READ_BYTES)
        except BlockingIOError:
            return False
        self._tail += chunk
        del self._tail[:-OUTPUT_TAIL_BYTES_MAX]
        if not chunk:
            self._stop_reading()
        return bool(chunk)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._output)

    def _end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        exit_code = reap(self.pid)
        if self._reading:
            for _ in range(OUTPUT_READS_MAX):
                if not self._read():
                    break
        self._stop_reading()
        os.close(self._output)
        self.exited.set_result(exit_code)


def reap(pid: int) -> int:
    """The exit code of a child that has ended; negative: the signal that ended it."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        _log.error("exit_code_taken_by_another", pid=pid)
        return EXIT_UNKNOWN
    return os.waitstatus_to_exitcode(status)
