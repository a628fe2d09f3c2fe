"""The worker's side of the fork server: one that is up, started anew when it ends, and asked for copies one at a time.

It is started with the worker and again whenever it ends, at once after a long life and with a growing pause after
short ones; after FAILURES_MAX short lives in a row it stays away and says so. Whoever asks for a copy while it
imports waits for that: a fresh interpreter would import the same. Whoever asks while there is none gets
`Unavailable` and starts a fresh interpreter instead. A server that declines, stays silent or says something else
than it should is ended, and the next one takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from worker.cancellation import end_tasks
from worker.launch import fork_server
from worker.launch.clean_environment import clean_environment
from worker.launch.own_children import OwnChildren
from worker.launch.processes import Record, identify, system_boot_id, write_record
from worker.launch.watch import Watch

IMPORT_SECONDS_MAX = 120.0
ANSWER_SECONDS_MAX = 2 * fork_server.FORK_SECONDS_MAX
LIFE_SECONDS_MIN = 60.0  # a life that was shorter counts as a failure
FAILURES_MAX = 6
PAUSE_SECONDS_MAX = 60.0
CLOSE_SECONDS_MAX = 5.0
_log = structlog.get_logger(__name__)


class Unavailable(Exception):
    """No copy can be had now; the message says why. Nothing of one is left."""


class Ends(NamedTuple):
    """Both ends of a model process's link and output."""

    link: socket.socket
    output: int
    far_link: socket.socket
    far_output: int

    @classmethod
    def make(cls) -> Ends:
        link, far_link = socket.socketpair()
        output, far_output = os.pipe2(os.O_CLOEXEC)
        return cls(link, output, far_link, far_output)

    def close_far(self) -> None:
        self.far_link.close()
        os.close(self.far_output)


class ForkServer:
    """See the module. `run` keeps it up; `fork` may be called by several at once."""

    def __init__(self, state: Path, begin: fork_server.Begin, children: OwnChildren) -> None:
        self._state = state
        self._begin = begin
        self._children = children
        self._settled = asyncio.Event()  # it is known whether there is one
        self._control: socket.socket | None = None
        self._watch: Watch | None = None
        self._why = "it has not been started"
        self.pid: int | None = None

    async def run(self) -> None:
        """Returns when there have been too many failures."""
        failures = 0
        while failures < FAILURES_MAX:
            if failures > 1:
                await asyncio.sleep(min(2.0 ** (failures - 1), PAUSE_SECONDS_MAX))
            begun = time.monotonic()
            try:
                await self.step()
            except OSError as error:
                self._why = f"it can't be started: {error}"
            _log.warning("fork_server_ended", reason=self._why)
            failures = 0 if time.monotonic() - begun >= LIFE_SECONDS_MIN else failures + 1
        _log.error("fork_server_given_up", failures=failures)

    async def step(self) -> None:
        """One life: from its start to its end."""
        self._settled.clear()
        self._why = ""
        scratch = self._state / "scratch" / uuid.uuid4().hex
        record: Path | None = None
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        try:
            with theirs:
                scratch.mkdir(parents=True, mode=0o700)
                watch = await self._start(theirs, scratch)
            record = self._write_record(watch.pid, scratch)
            await self._until_ready(control, watch)
            exit_code = await self._children.ended(watch)
            self._why = f"{self._why or 'it ended by itself'} (exit code {exit_code}); {watch.output_tail}"
        finally:
            self._control, self.pid = None, None
            self._settled.set()
            control.close()
            if self._watch is not None:
                self._watch.kill()
                self._watch = None
            if record is not None:
                record.unlink(missing_ok=True)
            shutil.rmtree(scratch, ignore_errors=True)

    async def _start(self, theirs: socket.socket, scratch: Path) -> Watch:
        command = (
            *(sys.executable, "-s", "-P", "-m", "worker.launch.fork_server"),
            str(theirs.fileno()),
            str(os.getpid()),
        )
        environment = {
            **clean_environment(scratch, threads=1),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a library that asks for devices while it is imported touches none
        }
        async with self._children.births:
            self._watch = start_program(self._children, command, environment, scratch, theirs.fileno())
        return self._watch

    def _write_record(self, pid: int, scratch: Path) -> Path | None:
        server, worker = identify(pid), identify(os.getpid())
        if server is None or worker is None:
            return None
        return write_record(self._state / "children", Record(server, worker, system_boot_id(), str(scratch)))

    async def _until_ready(self, control: socket.socket, watch: Watch) -> None:
        try:
            answer = await self._exchange(control, self._begin, (), IMPORT_SECONDS_MAX)
        except Unavailable as error:
            self._why = str(error)
            watch.kill()
            return
        if not isinstance(answer, fork_server.Ready):
            self._why = answer.reason if isinstance(answer, fork_server.Declined) else "a wrong answer"
            watch.kill()
            return
        _log.info("fork_server_ready", pid=watch.pid, import_ms=round(answer.import_ms), missing=answer.missing)
        self._control, self.pid = control, watch.pid
        self._settled.set()

    async def fork(self, order: fork_server.Fork, ends: Ends) -> Watch:
        """A model process with the far ends; the watch has the near end of its output. Raises Unavailable.

        Cancelled, it leaves no process: what came to be by then is ended. All far ends are closed in any case.
        """
        try:
            await self._settled.wait()
        except BaseException:
            ends.close_far()
            os.close(ends.output)
            raise
        birth = asyncio.ensure_future(self._birth(order, ends))
        try:
            return await asyncio.shield(birth)
        except asyncio.CancelledError:
            birth.add_done_callback(_end_newborn)
            await asyncio.wait([birth])
            raise

    async def _birth(self, order: fork_server.Fork, ends: Ends) -> Watch:
        try:
            async with self._children.births:
                return self._children.watch(await self._ask_for_copy(order, ends), ends.output)
        except BaseException:
            os.close(ends.output)
            raise
        finally:
            ends.close_far()

    async def _ask_for_copy(self, order: fork_server.Fork, ends: Ends) -> int:
        control, watch = self._control, self._watch
        if control is None or watch is None:
            raise Unavailable(f"there is no fork server: {self._why}")
        try:
            answer = await self._exchange(control, order, (ends.far_link.fileno(), ends.far_output), ANSWER_SECONDS_MAX)
            if isinstance(answer, fork_server.Forked):
                return answer.pid
            raise Unavailable(answer.reason if isinstance(answer, fork_server.Declined) else "a wrong answer")
        except Unavailable as error:
            self._control, self._why = None, str(error)
            watch.kill()
            raise Unavailable(f"the fork server made no copy: {error}") from error

    async def _exchange(
        self, control: socket.socket, request: fork_server.Request, handles: Sequence[int], seconds: float
    ) -> fork_server.Answer:
        body = fork_server.encode(request)
        if len(body) > fork_server.MESSAGE_BYTES_MAX:
            raise Unavailable(f"an order of {len(body)} bytes is over the bound of {fork_server.MESSAGE_BYTES_MAX}")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                socket.send_fds(control, [body], handles)  # one message at a time: there is room for it
                received = await loop.sock_recv(control, fork_server.MESSAGE_BYTES_MAX)
            if not received:
                raise Unavailable("it has ended")
            return fork_server.decode_answer(received)
        except TimeoutError as error:
            raise Unavailable(f"no answer within {seconds:g} s") from error
        except (OSError, msgspec.DecodeError) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error

    async def close(self, running: asyncio.Task[None]) -> None:
        """End it, and see it end."""
        watch = self._watch
        await end_tasks([running])
        self._why = "the worker stops"
        if watch is not None:
            watch.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self._children.ended(watch)


def start_program(
    children: OwnChildren, command: Sequence[str], environment: dict[str, str], folder: Path, handle: int
) -> Watch:
    """Start a program in a session of its own that keeps one file handle; call it while holding `births`.

    Raises OSError where it can't be started.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        process = subprocess.Popen(  # noqa: S603 - a program of ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            pass_fds=(handle,),
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    process.returncode = 0  # its exit is the watch's to see; without one this object would wait for it, too
    return children.watch(process.pid, reading)


def _end_newborn(birth: asyncio.Future[Watch]) -> None:
    if not birth.cancelled() and birth.exception() is None:
        birth.result().kill()
