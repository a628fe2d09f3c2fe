"""The lock on a data folder: whoever holds it owns everything below the folder, processes included.

A `flock`, so the kernel drops it when the holder dies, however it dies. The file names the holder's pid for a person
to read; the pid is never used to decide anything.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from schemas.codes import Code, Refusal

LOCK_FILE = Path("run") / "up.lock"


class DataLock:
    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / LOCK_FILE
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take it now, or raise a Refusal (CONFLICT) that names the holder."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            advice = "Stop that one first (Ctrl-C where it runs, or SIGTERM), or use another TENURE_DATA_DIR."
            message = f"`tenure up` runs on {self._path.parents[1]} already, pid {pid}"
            raise Refusal(Code.CONFLICT, message, {"pid": pid, "advice": advice}) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
