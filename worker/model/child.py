"""The parent's handle on one model process: start, ask, end, and how it ended.

The process gets a clean environment (an allow-list and the offline switches), its own group, an own
scratch folder as home and temporary folder, and one end of a socket pair. Answers come in the order of the
requests, so an answer that comes after its asker gave up is dropped and the next is still matched. When
the process ends, every open request fails with how it ended, and its record and scratch folder go.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec import Struct

from schemas.codes import Code, Refusal
from schemas.profiles import RuntimeProfile
from worker.launch.clean_environment import clean_environment
from worker.launch.launching import Launcher, Started
from worker.launch.processes import Identity, Record, identify, kill_group, system_boot_id, write_record
from worker.memory.measure import oom_kills
from worker.model import frames
from worker.model.link import Link

KILL_WAIT_SECONDS_MAX = 30.0  # a process in uninterruptible sleep can't be ended faster by anybody
_log = structlog.get_logger(__name__)


class Exit(Struct, frozen=True):
    """How the process with this pid ended. `asked` is True where the worker wanted it to."""

    exit_code: int  # negative: the signal that ended it
    asked: bool
    out_of_memory: str = ""
    output_tail: str = ""
    pid: int = 0

    @property
    def code(self) -> Code:
        return Code.OUT_OF_MEMORY if self.out_of_memory else Code.CHILD_DIED

    @property
    def message(self) -> str:
        if self.exit_code < 0:
            how = f"was ended by {_signal_name(-self.exit_code)}"
        else:
            how = f"ended with exit code {self.exit_code}"
        why = f"; {self.out_of_memory}" if self.out_of_memory else ""
        who = f"the model process {self.pid}" if self.pid else "the model process"
        return f"{who} {how}{why}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _unasked(partial: frames.Partial | frames.Early) -> None:
    _log.warning("partial_unasked", number=partial.number)


class ModelProcess:
    """One running model process. Made by `spawn` only."""

    def __init__(self, launcher: Launcher, started: Started, identity: Identity, scratch: Path, record: Path) -> None:
        self.identity = identity
        self.way = started.way
        self.scratch = scratch
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._children = launcher.children
        self._process = started.watch
        self._record = record
        self._end = started.link
        self._link: Link | None = None
        self._open: deque[asyncio.Future[frames.Answer]] = deque()
        self._asked = False
        self.on_partial: Callable[[frames.Partial | frames.Early], None] = _unasked
        self._oom_kills = oom_kills()
        self._watch = asyncio.create_task(self._run())

    @classmethod
    async def spawn(cls, launcher: Launcher, profile: RuntimeProfile) -> ModelProcess:
        """Start the process. Raises Refusal where it can't be started or ends at once."""
        scratch = launcher.state / "scratch" / uuid.uuid4().hex
        scratch.mkdir(parents=True, mode=0o700)
        try:
            started = await launcher.start(scratch, child_environment(scratch, profile))
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        child, parent = identify(started.watch.pid), identify(os.getpid())
        try:
            if child is None or parent is None:
                exit_code = await launcher.children.ended(started.watch)
                raise Refusal(Code.CHILD_DIED, f"the model process ended at once with exit code {exit_code}")
            record = write_record(launcher.state / "children", Record(child, parent, system_boot_id(), str(scratch)))
        except BaseException:
            started.watch.kill()
            started.link.close()
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        return cls(launcher, started, child, scratch, record)

    async def ask(self, request: frames.Request, timeout_ms: float) -> frames.Answer:
        """The answer; raises TimeoutError, or Refusal where the child refused or ended."""
        if self.exited.done():
            raise self._death()
        if self._link is None:
            self._link = await Link.open(self._end, self._take, self._distrust)
            if self.exited.done():
                self._link.close()
                raise self._death()
        answer: asyncio.Future[frames.Answer] = asyncio.get_running_loop().create_future()
        self._open.append(answer)
        self._link.send(request)
        async with asyncio.timeout(timeout_ms / 1_000.0):
            received = await answer
        if isinstance(received, frames.Refused):
            raise Refusal(received.code, received.message)
        return received

    def tell(self, stop: frames.Stop) -> None:
        """Say that nobody waits for a request any more. It has no answer; a process that has gone needs none."""
        if self._link is not None:
            self._link.send(stop)

    def _take(self, answer: frames.Answer) -> None:
        """Match an answer to the request that it is to."""
        if isinstance(answer, frames.Partial | frames.Early):
            self.on_partial(answer)
            return
        if not self._open:
            raise ValueError(f"an answer that nobody asked for: {type(answer).__name__}")
        waiting = self._open.popleft()
        if not waiting.done():
            waiting.set_result(answer)

    def _distrust(self, reason: str) -> None:
        """Nothing that it says can be told apart any more."""
        _log.error("child_frame_malformed", pid=self.identity.pid, error=reason)
        kill_group(self.identity)

    async def _run(self) -> None:
        """Wait for the exit, tell it, clean up."""
        exit_code = await self._children.ended(self._process)
        ended = Exit(
            exit_code,
            self._asked,
            self._memory_verdict(exit_code),
            self._process.output_tail,
            self.identity.pid,
        )
        self.exited.set_result(ended)
        while self._open:
            waiting = self._open.popleft()
            if not waiting.done():
                waiting.set_exception(self._death())
        if self._link is not None:
            self._link.close()
        else:
            self._end.close()
        self._record.unlink(missing_ok=True)
        await asyncio.to_thread(shutil.rmtree, self.scratch, ignore_errors=True)

    def _memory_verdict(self, exit_code: int) -> str:
        """Why a SIGKILL that we did not send was the kernel's for memory, or empty."""
        now = oom_kills()
        if exit_code != -signal.SIGKILL or self._asked or now is None or self._oom_kills is None:
            return ""
        return f"the kernel counted {now - self._oom_kills} kills for memory meanwhile" if now > self._oom_kills else ""

    def _death(self) -> Refusal:
        ended = self.exited.result()
        detail = {"exit_code": str(ended.exit_code)}
        if ended.output_tail:
            detail["output"] = ended.output_tail
        return Refusal(ended.code, ended.message, detail)

    def expect_exit(self) -> None:
        """From here on its end is what the worker wants."""
        self._asked = True

    async def wait_exit(self, timeout_ms: float) -> Exit:
        """Raises TimeoutError where it doesn't end in time."""
        async with asyncio.timeout(timeout_ms / 1_000.0):
            return await asyncio.shield(self.exited)

    async def kill(self) -> Exit:
        """End it and its group now, and see it end."""
        self.expect_exit()
        kill_group(self.identity)
        ended = await self.wait_exit(KILL_WAIT_SECONDS_MAX * 1_000)
        await self._watch
        return ended


def child_environment(scratch: Path, profile: RuntimeProfile) -> dict[str, str]:
    """The whole environment of a model process."""
    return clean_environment(scratch, profile.threads)
