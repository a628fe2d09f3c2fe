"""Own processes, known by pid and start time, and the sweep of those that outlived an earlier worker.

Every child is written down in a record file before it is used; the record goes when its end was seen. At
start, a worker ends what is recorded, still the same process (pid, start time, boot) and without its
recorded parent: a leftover of its own. Nothing else is ever killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

RECORDS_MAX = 1_024
SWEEP_SECONDS_MAX = 5.0
_log = structlog.get_logger(__name__)


class Identity(Struct, frozen=True):
    """A process that can't be mistaken for a later one with its pid: `started` is in clock ticks since boot."""

    pid: int
    started: int


class Record(Struct, frozen=True):
    child: Identity
    parent: Identity
    boot_id: str
    scratch: str


def system_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """The process with this pid now, or None. A zombie has ended: it holds no memory."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], int(fields[19])
    return None if state in {"Z", "X"} else Identity(pid, started)


def is_alive(identity: Identity) -> bool:
    return identify(identity.pid) == identity


def kill_group(identity: Identity) -> None:
    """SIGKILL to the child's process group, if the child is still itself."""
    if is_alive(identity):
        try:
            os.killpg(identity.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


def write_record(folder: Path, record: Record) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record.child.pid}.json"
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(record))
    partial.rename(path)
    return path


def sweep(folder: Path) -> int:
    """End own leftovers and remove their scratch folders; returns how many processes were ended. Blocking."""
    ended: list[Identity] = []
    boot_id = system_boot_id()
    for path in sorted(folder.glob("*.json"))[:RECORDS_MAX]:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=Record)
        except (msgspec.DecodeError, OSError):
            path.unlink(missing_ok=True)  # a record that was never whole names no process
            continue
        if record.boot_id == boot_id and is_alive(record.parent):
            continue  # another worker of this node still owns it
        if record.boot_id == boot_id and is_alive(record.child):
            kill_group(record.child)
            ended.append(record.child)
            _log.warning("leftover_ended", pid=record.child.pid)
        shutil.rmtree(record.scratch, ignore_errors=True)
        path.unlink(missing_ok=True)
    _wait_gone(ended)
    return len(ended)


def _wait_gone(identities: list[Identity]) -> None:
    until = time.monotonic() + SWEEP_SECONDS_MAX
    while any(is_alive(identity) for identity in identities) and time.monotonic() < until:
        time.sleep(0.01)  # a kernel tells of the end of processes that are not our children only when asked
