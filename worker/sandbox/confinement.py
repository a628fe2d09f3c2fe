"""The layers that take from a model process what it does not need, in the order they are applied.

    network_namespace  no interface but a loopback that is down
    descriptors        files and sockets that were open are closed, but for the link to the parent and output
    no_new_privs       no program gives the process more rights
    not_dumpable       others of the same user can't read its memory, and it leaves no core
    rlimits            no core file, bounded open files, bounded size of a file
    landlock_files     read only the artifact and libraries, write only the scratch folder, run nothing
    landlock_tcp       no TCP connection or port (kernel 6.7, ABI 4)
    landlock_scopes    no abstract socket and no signal to a process outside (kernel 6.12, ABI 6)
    seccomp            no socket of any kind, no program or process, no way around the others
    capabilities       of root's rights only reading files is kept

They are applied by the process to itself, while it has one thread, because most of them bind the calling thread
alone; and they can't be taken off again. Capabilities go last: root may need one for a layer
before. `confine` never raises for a layer that the kernel refuses: it names it in `missing` with the
reason. Whether the rest is enough is found out by trying (`worker.sandbox.proof`).
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from worker.sandbox import capabilities, kernel, landlock, namespaces, seccomp
from worker.sandbox.paths import Policy, devices, readable

__all__ = ["FILE_BYTES_MAX", "LAYERS", "OPEN_FILES_MAX", "Applied", "Policy", "confine"]

LAYERS = (
    "network_namespace",
    "descriptors",
    "no_new_privs",
    "not_dumpable",
    "rlimits",
    "landlock_files",
    "landlock_tcp",
    "landlock_scopes",
    "seccomp",
    "capabilities",
)
OPEN_FILES_MAX = 1_024
FILE_BYTES_MAX = 1 << 30  # of one file in the scratch folder: a compiled-kernel cache fits, a filled disk doesn't
_STANDARD_DESCRIPTORS = (0, 1, 2)
# The kernel puts these on the calling thread alone: with more threads they would not hold.
_OF_ONE_THREAD = frozenset(LAYERS) - {"descriptors", "not_dumpable", "rlimits", "seccomp"}


class Applied(Struct, frozen=True):
    applied: list[str]
    missing: list[str]


def confine(policy: Policy, kept: Collection[int] = (), layers: Collection[str] = LAYERS) -> Applied:
    """Apply the layers in their order. `kept` are descriptors that stay open. Only tests name fewer layers than all.

    Python objects that own other descriptors must be gone, or never be finalised: their numbers get new owners.
    """
    applied: list[str] = []
    missing: list[str] = []
    held = capabilities.held()  # before a user namespace of its own gives it all of them there
    for layer in LAYERS:
        if layer not in layers:
            missing.append(f"{layer}: switched off")
            continue
        try:
            note = _apply(layer, policy, kept, held)
        except OSError as error:
            missing.append(f"{layer}: {kernel.reason(error)}")
        except (LeftOut, landlock.TooOld) as why:
            missing.append(f"{layer}: {why}")
        else:
            applied.append(f"{layer} {note}" if note else layer)
    return Applied(applied, missing)


class LeftOut(Exception):
    """A layer is left out on purpose; the message says why."""


def _apply(layer: str, policy: Policy, kept: Collection[int], held: int) -> str:
    """A note on how it was done, or empty."""
    if layer in _OF_ONE_THREAD:
        _check_one_thread()
    match layer:
        case "network_namespace":
            return namespaces.leave_the_network()
        case "descriptors":
            _close_all_but(kept)
        case "no_new_privs":
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        case "not_dumpable":
            _hide_memory(held)
        case "rlimits":
            _limit_resources()
        case "landlock_files":
            return f"abi {landlock.restrict_files(readable(policy), [Path(policy.scratch)], devices(policy))}"
        case "landlock_tcp":
            landlock.restrict_tcp()
        case "landlock_scopes":
            landlock.restrict_scopes()
        case "seccomp":
            seccomp.restrict()
        case "capabilities":
            capabilities.drop_all_but(held & 1 << capabilities.CAP_DAC_READ_SEARCH)
    return ""


def _check_one_thread() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise LeftOut(f"{threads} threads run already, and it would bind only one")


def _close_all_but(kept: Collection[int]) -> None:
    spared = {*_STANDARD_DESCRIPTORS, *kept}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in spared:
            with contextlib.suppress(OSError):  # the one that listed the folder is closed already
                os.close(int(name))


def _hide_memory(held: int) -> None:
    """Only where the parent can still measure this process: it reads /proc/<pid>/smaps_rollup by the same right.

    A core is emptied in any case: a limit of 0 is not asked where cores are piped to a program.
    """
    with contextlib.suppress(OSError), open("/proc/self/coredump_filter", "wb", buffering=0) as file:
        file.write(b"0")
    if not held >> capabilities.CAP_SYS_PTRACE & 1:
        raise LeftOut("a worker without CAP_SYS_PTRACE could no longer measure this process")
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def _limit_resources() -> None:
    """Not the address space: CUDA reserves more than there is. Not processes: that count is the user's, not ours."""
    for limit, bound in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES_MAX),
        (resource.RLIMIT_FSIZE, FILE_BYTES_MAX),
    ):
        _, hard = resource.getrlimit(limit)
        lower = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(limit, (lower, lower))
