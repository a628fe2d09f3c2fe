"""Trying to break out: what there is to reach, one attempt, and how its end is read.

Each attempt is made twice by the same process: outside, before it is confined, and inside. One that fails
outside proves nothing inside: the target may not be there, or the user may have no right to it anyway.
Inside, only an error that a layer gives counts as a refusal; a target that is gone meanwhile is none.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

from msgspec import Struct

from worker.sandbox import kernel
from worker.sandbox.paths import Policy

ENTRIES_MAX = 64  # of the artifact folder that are looked at for a file to try on

NOT_A_PROGRAM = b"\x00 no program\n"
REFUSALS = frozenset({errno.EPERM, errno.EACCES, errno.ENETUNREACH, errno.EXDEV, errno.EFBIG})


class Targets(Struct, frozen=True):
    """What the worker made outside for the model process to fail at; see `worker.sandbox.decoys`."""

    tcp_port: int
    udp_port: int  # a name server listens here
    far_address: str  # an address of this machine that is not its loopback; empty where it has none
    far_port: int  # bound there by the worker, without listening
    unix_socket: str
    abstract_socket: str
    outside_folder: str
    outside_file: str
    not_a_program: str  # may be executed, and is nothing the kernel can run
    program: str
    pid: int  # of a process of the same user that waits
    memory_address: int  # in that process
    memory_bytes: int


class Ground(Struct, frozen=True):
    """One process's field of attempts: the worker's targets and what the process laid out itself."""

    targets: Targets
    scratch: str
    artifact_file: str  # a file of the artifact; empty where none was found
    link: str  # a symbolic link in the scratch folder to the file outside
    brought: str  # in the scratch folder, may be executed, and is nothing the kernel can run
    descriptor: int  # the file outside, open since before


class Trial(Struct, frozen=True):
    """One way out. `stopped_by`: each set of layers that is enough to refuse it. `needed`: no proof without it."""

    action: str
    act: Callable[[Ground], str]
    stopped_by: tuple[frozenset[str], ...]
    needed: bool = True
    refusals: frozenset[int] = REFUSALS


class Outcome(Struct, frozen=True):
    """`got_through`: it worked. `refused`: a layer's error. Neither: it failed in a way that says nothing."""

    got_through: bool
    refused: bool
    detail: str


def try_out(trial: Trial, ground: Ground) -> Outcome:
    """Bounded: each attempt fails at once or within its own bound."""
    try:
        return Outcome(got_through=True, refused=False, detail=trial.act(ground))
    except OSError as error:
        return Outcome(got_through=False, refused=error.errno in trial.refusals, detail=kernel.reason(error))


class Unavailable(OSError):
    """The machine has no such target."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.ENODEV, why)


@contextlib.contextmanager
def laid_out(policy: Policy, targets: Targets) -> Iterator[Ground]:
    """What attempts need that has to be made before the process is confined."""
    link = os.path.join(policy.scratch, f"outside-{os.getpid()}")
    os.symlink(targets.outside_file, link)
    brought = _bring(policy.scratch)
    descriptor = os.open(targets.outside_file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield Ground(targets, policy.scratch, _a_file_of(policy.folder), link, brought, descriptor)
    finally:
        with contextlib.suppress(OSError):  # it was closed by a layer
            os.close(descriptor)
        for path in (link, brought):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _bring(scratch: str) -> str:
    """What a process could write there itself, and make a program of."""
    path = os.path.join(scratch, f"brought-{os.getpid()}")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    os.write(descriptor, NOT_A_PROGRAM)
    os.close(descriptor)
    return path


def _a_file_of(folder: str) -> str:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry, _ in zip(entries, range(ENTRIES_MAX), strict=False):
            if entry.is_file(follow_symlinks=False):
                return entry.path
    return ""
