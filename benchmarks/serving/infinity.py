"""`infinity-emb`, the comparison: in a virtual environment of its own, made when it is first needed.

The environment lies in `.tenure/bench-infinity`, and gets the torch version that is installed here; PIP_ARGS are more
options for pip, as in the Makefile. Its server runs with its own defaults, on CPU, as many threads as the others, no
telemetry, and stands still (SIGSTOP) while others are measured.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

RELEASE = "0.0.78"
MODEL = "minilm"
HOME = Path(__file__).parents[2] / ".tenure" / "bench-infinity"
INSTALL_S = 1_200.0
READY_S = 300.0
STOP_S = 10.0
POLL_S = 0.2


class Unavailable(Exception):
    """It can't be measured here; the message says why. What its programs said goes to stderr."""


async def _run(arguments: Sequence[str]) -> None:
    child = await asyncio.create_subprocess_exec(
        *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(INSTALL_S):
            out, _ = await child.communicate()
    except TimeoutError as error:
        child.kill()
        await child.wait()
        raise Unavailable(f"its installation took longer than {INSTALL_S:.0f} s") from error
    if child.returncode != 0:
        sys.stderr.write(out.decode(errors="replace"))
        raise Unavailable("its installation failed")


async def installed() -> Path:
    """The program, installed where it is not yet."""
    program, done = HOME / "bin" / "infinity_emb", HOME / f".installed-{RELEASE}"
    if not done.exists():
        torch = importlib.metadata.version("torch").partition("+")[0]
        pip = [str(HOME / "bin" / "python"), "-m", "pip", "install", "--quiet", *shlex.split(os.getenv("PIP_ARGS", ""))]
        await _run([sys.executable, "-m", "venv", "--clear", str(HOME)])
        await _run([*pip, f"torch=={torch}"])
        await _run([*pip, f"torch=={torch}", f"infinity-emb[torch,server]=={RELEASE}"])
        done.touch()
    return program


class Infinity:
    """Its server, up from `start` to `stop`; still but between `go` and `still`."""

    def __init__(self, folder: Path, threads: int, log: Path) -> None:
        self._folder = folder
        self._threads = threads
        self._log = log
        self._child: asyncio.subprocess.Process | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None else 0

    async def start(self) -> None:
        """Install, start, wait until it answers. Raises Unavailable."""
        program = await installed()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        with self._log.open("wb") as log:
            self._child = await asyncio.create_subprocess_exec(
                str(program), "v2", "--model-id", str(self._folder), "--served-model-name", MODEL, "--engine", "torch",
                "--device", "cpu", "--host", "127.0.0.1", "--port", str(port),
                env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            async with asyncio.timeout(READY_S):
                while not await self._answers(port):
                    if self._child.returncode is not None:
                        sys.stderr.write(self._log.read_text())
                        raise Unavailable("its server ended at once")
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise Unavailable(f"its server was not ready within {READY_S:.0f} s") from error

    @staticmethod
    async def _answers(port: int) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        line = await reader.readline()
        writer.close()
        return b" 200 " in line

    def go(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGCONT)

    def still(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGSTOP)

    async def stop(self) -> None:
        if self._child is None or self._child.returncode is not None:
            return
        self.go()
        self._child.terminate()
        try:
            await asyncio.wait_for(self._child.wait(), STOP_S)
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
