"""The parent's handle on one model process: start, ask, end, and how it ended.

The process gets a clean environment (an allow-list and the offline switches), its own group, an own
scratch folder as home and temporary folder, and one end of a socket pair. Answers come in the order of the
requests, so an answer that comes after its asker gave up is dropped and the next is still matched. When
the process ends, every open request fails with how it ended, and its record and scratch folder go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec import Struct

from schemas.codes import Code, Refusal
from schemas.profiles import RuntimeProfile
from worker.model import frames
from worker.model.measure import oom_kills
from worker.model.processes import Identity, Record, identify, kill_group, system_boot_id, write_record

OUTPUT_TAIL_BYTES_MAX = 4_096
KILL_WAIT_SECONDS_MAX = 30.0  # a process in uninterruptible sleep can't be ended faster by anybody
_log = structlog.get_logger(__name__)

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


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


def _unasked(partial: frames.Partial) -> None:
    _log.warning("partial_unasked", number=partial.number)


class ModelProcess:
    """One running model process. Made by `spawn` only."""

    def __init__(
        self, process: asyncio.subprocess.Process, identity: Identity, scratch: Path, record: Path, link: socket.socket
    ) -> None:
        self.identity = identity
        self.scratch = scratch
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._process = process
        self._record = record
        self._link = link
        self._writer: asyncio.StreamWriter | None = None
        self._open: deque[asyncio.Future[frames.Answer]] = deque()
        self._tail = bytearray()
        self._asked = False
        self.on_partial: Callable[[frames.Partial], None] = _unasked
        self._oom_kills = oom_kills()
        self._watch = asyncio.create_task(self._run())

    @classmethod
    async def spawn(cls, state: Path, profile: RuntimeProfile) -> ModelProcess:
        """Start the process. Raises Refusal where it can't be started or ends at once."""
        scratch = state / "scratch" / uuid.uuid4().hex
        scratch.mkdir(parents=True, mode=0o700)
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-s", "-P", "-m", "worker.model.child_main", str(theirs.fileno()), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=child_environment(scratch, profile),
                cwd=scratch,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        finally:
            theirs.close()
        child, parent = identify(process.pid), identify(os.getpid())
        if child is None or parent is None:
            ours.close()
            await process.wait()
            shutil.rmtree(scratch, ignore_errors=True)
            raise Refusal(Code.CHILD_DIED, f"the model process ended at once with exit code {process.returncode}")
        record = write_record(state / "children", Record(child, parent, system_boot_id(), str(scratch)))
        return cls(process, child, scratch, record, ours)

    async def ask(self, request: frames.Request, timeout_ms: float) -> frames.Answer:
        """The answer; raises TimeoutError, or Refusal where the child refused or ended."""
        if self.exited.done():
            raise self._death()
        if self._writer is None:
            reader, self._writer = await asyncio.open_unix_connection(sock=self._link)
            self._reading = asyncio.create_task(self._read(reader))
        answer: asyncio.Future[frames.Answer] = asyncio.get_running_loop().create_future()
        self._open.append(answer)
        async with asyncio.timeout(timeout_ms / 1_000.0):
            with contextlib.suppress(OSError):  # the child has gone; the watch fails the answer with how
                await frames.send_request(self._writer, request)
            received = await answer
        if isinstance(received, frames.Refused):
            raise Refusal(received.code, received.message)
        return received

    def tell(self, stop: frames.Stop) -> None:
        """Say that nobody waits for a request any more. It has no answer; a process that has gone needs none."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frames.encode(stop))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Match answers to requests until the link ends; the watch tells the rest what happened."""
        while True:
            try:
                received = await frames.receive_answer(reader)
            except (asyncio.IncompleteReadError, OSError):
                return
            except ValueError as error:  # not one of our frames: nothing after it can be trusted
                _log.error("child_frame_malformed", pid=self.identity.pid, error=str(error))
                kill_group(self.identity)
                return
            if isinstance(received, frames.Partial):
                self.on_partial(received)
                continue
            waiting = self._open.popleft()
            if not waiting.done():
                waiting.set_result(received)

    async def _run(self) -> None:
        """Keep the end of the output, wait for the exit, clean up."""
        output = self._process.stdout
        while output is not None and (chunk := await output.read(OUTPUT_TAIL_BYTES_MAX)):
            self._tail += chunk
            del self._tail[:-OUTPUT_TAIL_BYTES_MAX]
        exit_code = await self._process.wait()
        ended = Exit(
            exit_code,
            self._asked,
            self._memory_verdict(exit_code),
            self._tail.decode(errors="replace"),
            self.identity.pid,
        )
        self.exited.set_result(ended)
        while self._open:
            waiting = self._open.popleft()
            if not waiting.done():
                waiting.set_exception(self._death())
        if self._writer is not None:
            self._writer.close()
            self._reading.cancel()
        else:
            self._link.close()
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
    source_root = str(Path(__file__).resolve().parents[2])
    threads = str(profile.threads)
    return {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        **_OFFLINE,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the driver's order: a profile's device_index names what is measured
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "HF_HOME": str(scratch / "hf"),
        "PYTHONPATH": source_root,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "RAYON_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "JOBLIB_MULTIPROCESSING": "0",
    }
